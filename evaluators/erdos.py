"""Erdos: a step function h on [0, 2] with values in [0, 1] and integral 1, with a small overlap (lower is better).

Paper   Hill Sampling, arXiv:2609.25510, task "Erdos": C5 <= max over k of the integral of h(x) (1 - h(x + k)) dx
Input   a list of n heights of equal steps; the file may also hold {"h": [...]}, as JSON or .npz
Run     python evaluators/erdos.py FILE.json [--json] [--plot steps.png]
Expect  AlphaEvolve's 95 steps (2025-05): 0.3809230351084502; the paper reports 0.38089767 and no function
Differs - no tolerance: the paper takes an integral within 1e-3 of 1, which is worth over 1e-4; here h is repaired to
          integral exactly 1, so that every h in [0, 1] gives a true bound, computed in integers and rounded up
"""

import inspect
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

ENTRY = "run"
HIGHER = False
ONE = 1 << 60  # heights are rounded to multiples of 1 / ONE
KNOWN = {
    "AlphaEvolve 2025-05 (the paper's 1.0)": 0.3809230351084502,
    "Hill Sampling, as printed (not certified)": 0.38089767,
    "Hyra 2026-07, 1024 steps": 0.3808594223653146,
}
SLACK = 1e-3 + 1e-5  # of the paper's np.isclose on the integral: atol and the default rtol


def paper_rule(h):
    """The largest overlap, None where a height is outside [0, 1] or the integral is not about 1."""
    h, dx = np.array(h, float), 2 / len(h)
    if np.any(h < 0) or np.any(h > 1) or not np.isclose(np.sum(h) * dx, 1, atol=1e-3):
        return None
    return float(np.max(np.correlate(h, 1 - h, mode="full")) * dx)


def check(h: Any) -> list[int]:
    """The heights in units of 1 / ONE; ValueError for what is no list of finite numbers in [0, 1]."""
    h = h.tolist() if type(h) is np.ndarray else h
    if not isinstance(h, (list, tuple)) or not h:
        raise ValueError("a step function is a list of at least one height")
    for i, v in enumerate(h):
        if type(v) not in (int, float):
            raise ValueError(f"h[{i}] is no number but {type(v).__name__}")
        if type(v) is float and not math.isfinite(v):
            raise ValueError(f"h[{i}] = {v} is not finite")
        if not 0 <= v <= 1:
            raise ValueError(f"h[{i}] is outside the range [0, 1]" + (f": {v}" if type(v) is float else ""))
    return [round(v * ONE) for v in h]  # exact: ONE is a power of two


def products(a: list[int]) -> list[int]:
    """Sum of a_i a_{i + lag} for lag = 0 ... n - 1, by one product of large integers (Kronecker substitution)."""
    n = len(a)
    width = (2 * ONE.bit_length() + n.bit_length()) // 8 + 1  # bytes that hold any coefficient
    forward = int.from_bytes(b"".join(v.to_bytes(width, "little") for v in a), "little")
    backward = int.from_bytes(b"".join(v.to_bytes(width, "little") for v in reversed(a)), "little")
    digits = (forward * backward).to_bytes(2 * n * width, "little")
    return [int.from_bytes(digits[k * width : (k + 1) * width], "little") for k in range(n - 1, 2 * n - 1)]


def overlaps(a: list[int]) -> tuple[Fraction, Fraction]:
    """The largest overlap of the repaired function, and of the heights as given (the paper's rule, exactly).

    Repaired: 1 - h if the sum is below n/2 (same overlaps), scaled to sum n/2. With S = sum a >= n ONE / 2 the heights
    are a_i n / 2S <= 1; the overlap is the integral of h over the common part (at either end) minus the product sum, in
    these units (2 S part - n product) / 2 S**2. As given: 2 (ONE part - product) / n ONE**2.
    """
    n = len(a)
    if 2 * sum(a) < n * ONE:
        a = [ONE - v for v in a]
    total, head, tail, repaired, given = sum(a), sum(a), sum(a), 0, 0
    for lag, product in enumerate(products(a)):
        part = max(head, tail)
        repaired, given = max(repaired, 2 * total * part - n * product), max(given, ONE * part - product)
        head, tail = head - a[n - 1 - lag], tail - a[lag]
    return Fraction(repaired, 2 * total**2), Fraction(2 * given, n * ONE**2)


def verify(h: Any) -> dict:
    """score (certified bound on C5, rounded up), integral (as given), paper_score (None where it rejects).

    ValueError names the first violated condition. paper_score is paper_rule's value taken exactly and rounded once:
    the last bits of np.correlate depend on the machine's BLAS.
    """
    exact, given = overlaps(check(h))
    integral = Fraction(2, len(h)) * sum(map(Fraction, h))
    score = exact.numerator / exact.denominator  # int / int is correctly rounded to nearest
    return {
        "score": score if Fraction(score) >= exact else math.nextafter(score, math.inf),
        "integral": float(integral),
        "paper_score": float(given) if abs(float(integral) - 1) <= SLACK else None,
    }


def reward(score: float) -> float:
    """The paper's normalisation, higher is better: AlphaEvolve's step function of May 2025 is 1."""
    return 0.38092303510845016 / score


START = '''# EDIT-START
import numpy as np


def run():
    """Return the heights h on [0, 2] (values in [0, 1], mean 1/2), the largest overlap and the number of steps."""
    n, tries, size, seed = 30, 100, 0.1, 0
    rng = np.random.default_rng(seed)
    x = np.linspace(-1, 1, n)
    h = 0.6 * (1 - x**2) + 0.1
    h *= n / 2 / h.sum()
    best = np.max(np.correlate(h, 1 - h, "full")) * 2 / n
    for _ in range(tries):  # move a little from one step to another, keep it if that helps
        g = h.copy()
        i, j = rng.integers(n, size=2)
        d = min(size * rng.random(), g[i], 1 - g[j])
        g[i] -= d
        g[j] += d
        value = np.max(np.correlate(g, 1 - g, "full")) * 2 / n
        if value < best:
            h, best = g, value
    return h, best, n
# EDIT-END
'''
BARE = START[: START.index("    n, tries")] + "    raise NotImplementedError\n# EDIT-END\n"  # --information none
PROMPT = """Find a step function h on [0, 2] with values in [0, 1] and integral 1 whose largest overlap, the maximum
over all shifts k of the integral of h(x) (1 - h(x + k)), is as small as possible. The best known value is 0.38086.
This is the current program:

```python
{program}
# below the block: how the heights are judged (fixed; the integral is then scaled to exactly 1)
RULE```

Improve run() with one small edit: change a number, the first shape, or the search. It must use only numpy and
finish within a few seconds. Reply with the whole block from `# EDIT-START` to `# EDIT-END` in one ```python code
block, and nothing else.
""".replace("RULE", inspect.getsource(paper_rule).replace("{", "{{").replace("}", "}}"))


def heights_of(data: Any) -> Any:
    """The heights of {"h": [...]} or of a plain list; what has another shape is left for verify to name."""
    return data.get("h") if isinstance(data, dict) else data


def run(
    program: str, run_program: Callable, *, timeout_s: float, memory_mb: int = 1024, max_size: int = 10_000
) -> dict:
    """Run the candidate in the sandbox and verify its heights, at most max_size: see evaluators.run_candidate."""
    from evaluators import TAIL, run_candidate  # here, so that verify can be copied without the package

    source = program + TAIL.format(entry=ENTRY, part="[0]")
    limits = {"timeout_s": timeout_s, "memory_mb": memory_mb, "max_size": max_size}
    return run_candidate(source, run_program, lambda h: (h, len(h) if isinstance(h, list) else 0), verify, **limits)


def self_test(run_program: Callable) -> None:
    """RuntimeError where 0.5 everywhere, a height outside [0, 1], or a cheat is not judged as it must be."""
    from evaluators import CHEAT, check_programs

    good = "def run():\n    return [0.5] * 200, 0.4999, 200\n"
    cheat = CHEAT + "def run():\n    return np.array([1.2, -0.2] * 50), 0.3, 100\n"
    runs = {"flat": (good, 0.5), "range": (good.replace("0.5]", "0.5, 1.5, -0.5]"), None), "cheat": (cheat, None)}
    check_programs("erdos", lambda program: run(program, run_program, timeout_s=10), runs)


def load(path: str | Path) -> Any:
    """The heights in a JSON or .npz file, in any of the shapes of `Input`; verify judges them."""
    from evaluators import read_file

    return heights_of(read_file(path))


def plot(h: Any, axes: Any) -> None:
    """Draw the step function on matplotlib axes."""
    axes.stairs(h, np.linspace(0, 2, len(h) + 1), fill=True, color="#9ecae1", edgecolor="#08519c")
    axes.set(
        xlim=(0, 2),
        ylim=(0, 1.05),
        xlabel="x",
        ylabel="h(x)",
        title=f"{len(h)} steps, overlap {verify(h)['score']:.8f}",
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import common
    from evaluators import command

    common.entry(lambda: command(sys.modules[__name__]))
