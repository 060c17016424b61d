"""Kill hill_sampling.py with SIGKILL at random moments, resume it, and compare with a run that nobody killed.

Run python tests/kill_test.py --times 20 [--seed 0]     (5 of these are part of the tests)
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fake_server import FakeServer
from run_tools import climbing, command, content, hill, lines_of

N, M = 3, 3
SETTINGS = ("circles", "--N", N, "--M", M, "--timeout-s", 20, "--price-in", 0.1, "--price-out", 0.7)


def latency_s(seed: int) -> float:
    return random.Random(-seed).uniform(0.0, 0.06)


def kill_once(folder: Path, server: FakeServer, draw: random.Random) -> str:
    """Start the run and kill it at some moment from before its first request to its end; returns the moment."""
    seen, k, jitter = len(server.requests), draw.randrange(N * M + 1), draw.uniform(0.0, 0.3)
    devnull = subprocess.DEVNULL
    with subprocess.Popen(
        command(*SETTINGS, "--url", server.url, "--run", folder), stdout=devnull, stderr=devnull
    ) as run:
        while len(server.requests) - seen < k and run.poll() is None:
            time.sleep(0.001)
        time.sleep(jitter)
        run.kill()
    return f"{jitter:.3f} s after request {len(server.requests) - seen} of at least {k}"


def kill_and_resume(folder: Path, whole: Path, draw: random.Random) -> str:
    """Kill a run once or twice and resume it; AssertionError where it differs from `whole`. Returns the moments."""
    moments = []
    with FakeServer(climbing, latency_s=latency_s) as server:
        for _ in range(draw.choice((1, 1, 2))):
            moments.append(kill_once(folder, server, draw))
            log = (folder / "log.jsonl").exists()
            logged = [line["seed"] for line in lines_of(folder) if line["event"] == "call"] if log else []
            before = Counter(request["seed"] for request in server.requests)
        ended = hill(*SETTINGS, "--url", server.url, "--run", folder)
    assert ended.returncode == 0, ended.stderr
    assert content(folder) == content(whole), f"another result after a kill {moments}"
    asked = Counter(request["seed"] for request in server.requests)
    assert all(asked[seed] == before[seed] for seed in logged), f"a logged reply was asked for again after {moments}"
    assert len(asked) == N * M
    assert sum((asked - Counter(asked.keys())).values()) <= N * len(moments), (
        "more than the calls in flight were asked twice"
    )
    return "; ".join(moments)


def whole_run(folder: Path) -> Path:
    """The run that nobody kills."""
    with FakeServer(climbing, latency_s=latency_s) as server:
        ended = hill(*SETTINGS, "--url", server.url, "--run", folder)
    assert ended.returncode == 0, ended.stderr
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole = whole_run(Path(folder, "whole"))
        for k in range(args.times):
            moments = kill_and_resume(Path(folder, str(k)), whole, random.Random(args.seed * 1000 + k))
            print(f"{k + 1:3d}  killed {moments}: equal", flush=True)
