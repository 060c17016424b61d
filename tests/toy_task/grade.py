"""A stand-in for swebench's grader that needs no container: same arguments, same files, for the toy task alone."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

CODE = Path(__file__).parent / "environment" / "slug.py"
TEST = "import slug; raise SystemExit(slug.slug('Hello  World') != 'hello-world' or slug.unslug('a-b') != 'a b')"


def resolved(patch: str) -> bool | None:
    """Whether the patched code passes; None where the patch does not apply (swebench leaves no report then either)."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CODE.name).write_text(CODE.read_text())
        applied = subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=folder, check=False)
        if applied.returncode:
            return None
        return subprocess.run([sys.executable, "-c", TEST], cwd=folder, check=False).returncode == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-p", type=Path, required=True)
    parser.add_argument("-id", required=True)
    args, _ = parser.parse_known_args()
    for task, p in json.loads(args.p.read_text()).items():
        out = Path("logs/run_evaluation") / args.id / p["model_name_or_path"].replace("/", "__") / task
        verdict = resolved(p["model_patch"]) if p["model_patch"] else None
        if p["model_patch"]:
            out.mkdir(parents=True, exist_ok=True)
            (out / "patch.diff").write_text(p["model_patch"])
        if verdict is not None:
            (out / "report.json").write_text(json.dumps({task: {"resolved": verdict}}))
