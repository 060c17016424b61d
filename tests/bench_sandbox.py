"""What the sandbox costs: trivial numpy programs through run_program against bare interpreters that import numpy.

Run     python tests/bench_sandbox.py [--n 200]
Expect  a ratio of at most 1.5 (exit code 1 above it); both on all cores, in turns of 20, so that load hits both alike
Differs nothing: no paper has this number
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common

TURN, LIMIT = 20, 1.5


def boxed(_) -> None:
    run = common.run_program("import numpy\nprint(numpy.arange(3).sum())", timeout_s=60, memory_mb=1024)
    if (run.status, run.stdout) != ("ok", "3\n"):
        raise SystemExit(f"bench_sandbox: a trivial program ended with {run}")


def bare(_) -> None:
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--n", type=int, default=200, help="programs of each kind")
    n = parser.parse_args(argv).n
    name = common.sandbox()["name"]  # probed before the clock starts
    spent = {boxed: 0.0, bare: 0.0}
    for first in range(0, n, TURN):
        pair = [boxed, bare] if first // TURN % 2 else [bare, boxed]
        for kind in pair:
            begin = time.perf_counter()
            common.parallel(kind, [(i, None) for i in range(first, min(first + TURN, n))])
            spent[kind] += time.perf_counter() - begin
    ratio = spent[boxed] / spent[bare]
    print(f"{n} numpy programs, {len(common.CORES)} at once: {name} {spent[boxed]:.2f} s, bare {spent[bare]:.2f} s")
    print(f"ratio {ratio:.3f} (limit {LIMIT})")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
