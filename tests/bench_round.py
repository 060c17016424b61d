"""Wall time of a Hill Sampling round against max(generation, evaluation): do programs run while replies are written?

Run     python tests/bench_round.py [--n 128]       a fake server over HTTP; exit code 1 where a ratio is above 1.1
Latency of a reply: lognormal (sigma 0.3), 64 in flight as in a run; every program computes for a stated time in the
sandbox. Generation alone, evaluation alone and the round are timed in one run: generation-bound, then evaluation-bound.
"""

import argparse
import math
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common
import hill_sampling as hs
from evaluators import circles
from fake_server import FakeServer

LIMIT = 1.1
BUSY = "    import time\n    while time.process_time() < {cpu_s}: pass\n"


def seconds(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def ratio(n: int, latency_s: float, cpu_s: float) -> float:
    """The ratio for one pair of a median latency and of CPU seconds a program (the start of Python is part of them)."""
    head, body = circles.START.split(f"def {circles.ENTRY}():\n")
    program = f"{head}def {circles.ENTRY}():\n{BUSY.format(cpu_s=cpu_s)}{body}"
    assert program != circles.START

    def latency(seed: int) -> float:
        return math.exp(random.Random(seed).gauss(math.log(latency_s), 0.3))

    with FakeServer(lambda _, seed: f"```python\n{program}\n# {seed}\n```", latency_s=latency) as server:
        settings = {"--url": server.url, "--N": n, "--M": 1, "--timeout-s": 60}
        args = hs.parse(["circles", *[str(x) for pair in settings.items() for x in pair]])
        keys = ("model", "url", "temperature", "max_tokens", "price_in", "price_out")
        chat = common.open_chat(**{k: getattr(args, k) for k in keys})
        requests, seeds = [[{"role": "user", "content": "an edit, please"}]] * n, list(range(n))
        generation = seconds(lambda: list(chat(requests, seeds)))

        def wiring() -> hs.Wiring:
            log = common.Log(None, "hill_sampling.py", vars(args))
            return hs.Wiring(args, log, chat, argparse.Namespace(update=id))

        alone, both = wiring(), wiring()
        evaluation = seconds(lambda: alone.evaluate(0, iter([(i, program) for i in range(n)])))
        contexts = [program] * n
        whole = seconds(lambda: both.evaluate(0, both.sample(0, contexts, seeds)))
        assert all(both.records[0, i]["status"] == "ok" for i in range(n))
    found = whole / max(generation, evaluation)
    print(f"{n} edits: generation {generation:.1f} s, evaluation {evaluation:.1f} s, round {whole:.1f} s, ", end="")
    print(f"ratio {found:.3f} (limit {LIMIT})", flush=True)
    return found


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--n", type=int, default=128, help="edits a round")
    n = parser.parse_args(argv).n
    settings = {"latency_s": (20, 4), "cpu_s": (0.2, 1.0)}
    return int(max([ratio(n, *pair) for pair in zip(*settings.values(), strict=True)]) > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
