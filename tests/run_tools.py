"""What several tests of recorded runs share: a scripted model, a script as a process, logs read and tampered with."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import common

ROOT = Path(__file__).resolve().parents[1]


def climbing(messages: list[dict], seed: int) -> str:
    """A model decided by its seed: it moves the radius of the circles in the prompt; one reply in six is no good."""
    draw = random.Random(seed)
    program = re.search(r"# EDIT-START.*?# EDIT-END", messages[-1]["content"], re.S)
    assert program is not None
    (radius,) = re.findall(r"side, radius, small = 5, ([\d.]+)", program[0])
    radius = float(radius) + draw.uniform(-0.004, 0.008)
    edited = re.sub(r"side, radius, small = 5, [\d.]+", f"side, radius, small = 5, {radius:.6f}", program[0])
    spoiled = {0: "I would rather not.", 1: f"```python\n{edited.replace('range(side)', 'rang(side)')}\n```"}
    return spoiled.get(draw.randrange(12), f"One edit \u2028:\n```python\n{edited}\n```")


def command(*argv: object, script: str = "hill_sampling.py") -> list[str]:
    return [sys.executable, str(ROOT / script), *map(str, argv)]


def hill(*argv: object, env: dict | None = None, **options) -> subprocess.CompletedProcess:
    """hill_sampling.py as a process of its own, away from the repository's folder."""
    environment = os.environ | {"PYTHONWARNINGS": "error::ResourceWarning"} | (env or {})
    return subprocess.run(
        command(*argv), capture_output=True, text=True, cwd="/", env=environment, timeout=120, **options
    )


def lines_of(folder: Path) -> list[dict]:
    """The log's whole lines."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_bytes().split(b"\n")[:-1]]


def content(folder: Path) -> dict:
    """What must be equal however a run was interrupted: all but sessions, engines, seconds, how and where it ran."""
    drop = ("line_sha256", "started", "argv", "sha256", "versions", "device")
    return {
        json.dumps([line["event"], line.get("unit")]): {
            k: v for k, v in line.items() if k[-2:] != "_s" and k not in drop
        }
        for line in lines_of(folder)
        if line["event"] not in ("session", "engine")
    }


def number_of(folder: Path, event: str, index: int = 0, t: int | None = None) -> int:
    """The number, from 1, of the first line of that event, round (any if None) and index, or of the result."""
    for number, line in enumerate(lines_of(folder), 1):
        unit = line.get("unit", ["", "", t, index] if event == "result" else None)
        if line["event"] == event and unit and unit[3] == index and t in (None, unit[2]):
            return number
    raise LookupError(f"{folder} has no {event} {t} {index}")


def edit_line(folder: Path, number: int, change, *, forge: bool) -> dict:
    """Apply change(line) to line `number` (from 1) of a log, and return it; forge: with a checksum that fits."""
    file = folder / "log.jsonl"
    lines = file.read_bytes().split(b"\n")
    line = json.loads(lines[number - 1])
    change(line)
    if forge:
        line["line_sha256"] = common.checksum(line)
    lines[number - 1] = json.dumps(line).encode()
    file.write_bytes(b"\n".join(lines))
    return line
