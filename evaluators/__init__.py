"""The border that the three mathematical evaluators share; their verify() needs nothing from here.

Why it is not in each of them: reading what an untrusted program wrote is the one step where a slip turns into a wrong
score, so it stands once (run_candidate: sandbox, strict parse, verify), and so does the command line (command).
"""

import argparse
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

MAX_JSON = 1 << 24  # characters of a result.json that we are ready to parse
TAIL = """

# the fixed part: write what the entry point returns as plain data; it is verified elsewhere, claimed values are dropped
import json as _json

_plain = lambda value: value.tolist() if hasattr(value, "tolist") else sorted(value)
_text = _json.dumps({entry}(){part}, default=_plain)
with open("result.json", "w") as _file:
    _file.write(_text)
"""
CHEAT = """import builtins, math, numpy as np
np.any = builtins.any = lambda *a, **k: False
np.isfinite = np.isclose = lambda a, *b, **k: True
np.linalg.norm = math.hypot = math.log = np.log = lambda *a, **k: 9.0
np.unique = np.correlate = lambda *a, **k: np.zeros(1)
builtins.len = builtins.max = builtins.sum = lambda *a, **k: 1
"""  # what a candidate might patch to be judged well; a self-test puts it before a bad construction


def strict_json(text: str) -> Any:
    """The data; ValueError for what is no JSON, NaN, Infinity, too long (also an integer), or nested too deep."""

    def refuse(constant: str):
        raise ValueError(f"{constant} is not finite")

    if len(text) > MAX_JSON:
        raise ValueError(f"{len(text)} characters are more than {MAX_JSON}")
    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deep") from None


def run_candidate(
    source: str, run_program: Callable, read: Callable, verify: Callable, *, max_size: int, **limits
) -> dict:
    """Run source in the sandbox and verify what it wrote: read(data) -> (construction, size), verify(that) -> dict.

    status: the sandbox's, "ok" with verify's keys, "invalid" with the reason, or "evaluator error" (never a score).
    """
    ran = run_program(source, expect_result=True, **limits)
    record = {
        "status": ran.status,
        "construction": None,
        "stdout": ran.stdout[-2000:],
        "stderr": ran.stderr[-2000:],
        "cpu_s": ran.cpu_s,
    }
    if ran.status != "ok":
        return record
    try:
        construction, size = read(strict_json(ran.result))
        if size > max_size:  # verifying it would stall the search
            raise ValueError(f"a construction of size {size} is more than the {max_size} that a search takes")
        return record | verify(construction) | {"construction": construction}
    except ValueError as error:
        return record | {"status": "invalid", "reason": str(error)[:500]}
    except Exception as error:  # the outer border: a fault of the evaluator is logged as one, it is no score
        return record | {"status": "evaluator error", "reason": f"{type(error).__name__}: {error}"[:500]}


def check_programs(task: str, run: Callable, expected: dict) -> None:
    """Run {label: (program, score or None for invalid)}; RuntimeError at the first that is judged otherwise."""
    for label, (program, score) in expected.items():
        record = run(program)
        if record["status"] == "evaluator error" or (record["status"] == "ok") != (score is not None):
            why = record.get("reason") or record["stderr"].strip()[-200:]
            raise RuntimeError(f"evaluator {task} broken: its {label} program came out as {record['status']} ({why})")
        if score is not None and abs(record["score"] - score) > 1e-9:
            raise RuntimeError(f"evaluator {task} broken: its {label} program scored {record['score']}, not {score}")


def read_file(path: str | Path) -> Any:
    """The data of a JSON or .npz file (a dict of lists); ValueError or OSError where it is neither."""
    if str(path).endswith(".npz"):
        import numpy as np

        try:
            with np.load(path, allow_pickle=False) as arrays:
                return {name: arrays[name].tolist() for name in arrays.files}
        except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is no .npz file of plain arrays: {error}") from None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))  # NaN is let in: verify says where it is
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON file: {error}") from None


def save_figure(module: ModuleType, construction: Any, path: str) -> None:
    from matplotlib.figure import Figure  # here, so that --help and verify do without it

    figure = Figure(figsize=(5, 5), layout="constrained")
    module.plot(construction, figure.subplots())
    figure.savefig(path, dpi=150)


def as_text(found: dict) -> str:
    distance = {f"score - {who}": value for who, value in found.get("distance", {}).items()}
    lines = {key: value for key, value in found.items() if key != "distance"} | distance
    return "\n".join(f"{key:{max(map(len, lines))}}  {value}" for key, value in lines.items())


def parse(module: ModuleType, argv: list[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    style = {"formatter_class": raw, "usage": argparse.SUPPRESS}  # an error is one line
    parser = argparse.ArgumentParser(description=module.__doc__, allow_abbrev=False, **style)
    parser.add_argument("file", help="the construction: JSON or .npz")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="OUT", help="draw it (png, pdf, svg)")
    return parser.parse_args(argv)


def command(module: ModuleType, argv: list[str] | None = None) -> int:
    """0: verified (after the repair, if any), 1: an invalid construction, 2: bad input (one line on stderr)."""
    args = parse(module, argv)
    try:
        construction = module.load(args.file)
        try:
            found: dict[str, Any] = {"verdict": "verified"} | module.verify(construction)
            found["size"] = len(construction)
            if hasattr(module, "exact_sum"):
                found["exact sum"] = module.exact_sum(construction)
        except ValueError as error:
            found = {"verdict": "invalid", "reason": str(error)}
        if args.plot and found["verdict"] == "verified":
            save_figure(module, construction, args.plot)
    except (ValueError, OSError, OverflowError, ImportError) as error:
        print(f"{Path(str(module.__file__)).name}: {error}", file=sys.stderr)
        return 2
    if "score" in found:
        found["distance"] = {who: found["score"] - value for who, value in module.KNOWN.items()}
    print(json.dumps(found) if args.json else as_text(found))
    return 0 if found["verdict"] == "verified" else 1
