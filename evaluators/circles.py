"""Circles: 26 circles in the unit square with disjoint interiors; the sum of the radii counts (higher is better).

Paper   Hill Sampling, arXiv:2609.25510, task "Circles" (there in floats, slack 1e-10, 0 for its Table 1)
Input   26 rows [x, y, r]; the file may also hold {"centers": 26 x [x, y], "radii": 26 numbers}, as JSON or .npz
Run     python evaluators/circles.py FILE.json [--json] [--plot packing.png]
Expect  the paper's packing: score 2.635983084917603, not valid as given (five pairs overlap by up to 2.4e-17)
Differs - exact, no tolerance: every float64 is an integer multiple of 2**-1074, so distances are compared as integers
        - the score is certified: the radii are shrunk by the smallest common amount that makes the packing valid
        - the paper's rule measures by np.linalg.norm, whose last bit depends on the machine's BLAS: here by norm (the
          prompt shows numpy's name)
"""

import inspect
import math
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

N_CIRCLES = 26
SLACK = 1e-10  # the paper's slack in the search; a larger violation is no packing
ONE = 1 << 1100  # the unit length on the integer grid
ENTRY = "construct_packing"
HIGHER = True
KNOWN = {
    "AlphaEvolve 2025-05 (the paper's 1.0)": 2.6358627564136983,
    "Hill Sampling, as printed": 2.635983084917604,
    "optimum of its contact graph": 2.6359830849176077,
}


def norm(v):
    """The length of a vector (2,), rounded alike on every machine: four IEEE operations, none of them fused."""
    return math.sqrt(float(v[0]) * float(v[0]) + float(v[1]) * float(v[1]))


def paper_rule(rows, slack):
    """The sum of the radii, None where a circle leaves the square or two overlap by more than the slack."""
    centers, radii = np.array([row[:2] for row in rows], float), np.array([row[2] for row in rows], float)
    if np.any(centers - radii[:, None] < -slack) or np.any(centers + radii[:, None] > 1 + slack):
        return None
    for i, j in combinations(range(len(rows)), 2):
        if norm(centers[i] - centers[j]) < radii[i] + radii[j] - slack:
            return None
    return float(np.sum(radii))


def check(rows: Any) -> list[tuple[int, int, int]]:
    """The rows on the integer grid; ValueError for a wrong count, shape, type, or what is not in [0, 1]."""
    rows = rows.tolist() if type(rows) is np.ndarray else rows
    if not isinstance(rows, (list, tuple)) or len(rows) != N_CIRCLES:
        raise ValueError(f"a packing is a list of {N_CIRCLES} rows [x, y, r]")
    for i, row in enumerate(rows):
        if not isinstance(row, (list, tuple)) or len(row) != 3:
            raise ValueError(f"circle {i} is no row [x, y, r]")
        for name, v in zip("xyr", row, strict=True):
            if type(v) not in (int, float):
                raise ValueError(f"circle {i}: {name} is no number but {type(v).__name__}")
            if type(v) is float and not math.isfinite(v):
                raise ValueError(f"circle {i}: {name} = {v} is not finite")
            if not 0 <= v <= 1:  # also keeps huge integers out of the arithmetic
                raise ValueError(f"circle {i}: {name} is outside [0, 1]" + (f": {v}" if type(v) is float else ""))
    return [tuple(v.as_integer_ratio()[0] * (ONE // v.as_integer_ratio()[1]) for v in row) for row in rows]


def violations(z: list[tuple[int, int, int]]) -> Iterator[tuple[str, int, int]]:
    """(condition, violation, the shrink that mends it), both rounded up to the grid and positive where violated."""
    for i, (x, y, r) in enumerate(z):
        out = max(r - x, r - y, x + r - ONE, y + r - ONE)
        yield f"circle {i} leaves the square", out, out
    for (i, (x, y, r)), (j, (u, v, s)) in combinations(enumerate(z), 2):
        overlap = r + s - math.isqrt((x - u) ** 2 + (y - v) ** 2)
        yield f"circles {i} and {j} overlap", overlap, (overlap + 1) // 2


def to_float(grid: int, direction: float) -> float:
    """grid / ONE as a float, rounded towards direction (-inf or inf); int / int is correctly rounded to nearest."""
    near = grid / ONE
    p, q = near.as_integer_ratio()
    wrong = p * ONE > grid * q if direction < 0 else p * ONE < grid * q
    return math.nextafter(near, direction) if wrong else near


def verify(rows: Any) -> dict:
    """score (certified sum, rounded down), valid (exact), float_valid (paper, slack 0), worst (length), paper_score.

    ValueError names the first violated condition; an overlap, or a circle outside, by more than SLACK is one.
    paper_score is None where the paper's rule rejects.
    """
    z = check(rows)
    conditions = list(violations(z))
    limit = SLACK.as_integer_ratio()[0] * (ONE // SLACK.as_integer_ratio()[1])
    worst = max(amount for _, amount, _ in conditions)
    broken = [(what, amount) for what, amount, _ in conditions if amount > limit]
    if broken:
        what, amount = broken[0]
        raise ValueError(f"{what} by {amount / ONE:.3g} (violations: {len(broken)}, the worst {worst / ONE:.3g})")
    shrink = max(0, max(need for _, _, need in conditions))
    for i, (_, _, r) in enumerate(z):
        if r < shrink:
            raise ValueError(f"circle {i} is smaller than the shrink of {shrink / ONE:.3g} that the others need")
    return {
        "score": to_float(sum(r for _, _, r in z) - N_CIRCLES * shrink, -math.inf),
        "valid": worst <= 0,
        "float_valid": paper_rule(rows, 0.0) is not None,
        "worst": to_float(max(worst, 0), math.inf),
        "paper_score": paper_rule(rows, SLACK),
    }


def reward(score: float) -> float:
    """The paper's normalisation: AlphaEvolve's packing of May 2025 is 1."""
    return score / 2.6358627564136983


START = '''# EDIT-START
import numpy as np


def construct_packing():
    """Return centers (26, 2), radii (26,) and the sum of the radii."""
    side, radius, small = 5, 0.077, 0.03
    centers, radii = [], []
    for i in range(side):
        for j in range(side):
            centers.append([(i + 0.5) / side, (j + 0.5) / side])
            radii.append(radius)
    centers.append([0.4, 0.4])
    radii.append(small)
    return np.array(centers), np.array(radii), sum(radii)
# EDIT-END
'''
BARE = START[: START.index("    side")] + "    raise NotImplementedError\n# EDIT-END\n"  # --information none
PROMPT = """Pack 26 circles into the unit square so that the sum of their radii is as large as possible. The circles
must stay inside the square and must not overlap. The best known sum is 2.636. This is the current program:

```python
{program}
# below the block: how a packing is judged (fixed)
RULE```

Improve construct_packing() with one small edit: change a number, a position or a radius, or add a step. It must
still return 26 centers and 26 radii, use only numpy and finish within a few seconds. Reply with the whole block
from `# EDIT-START` to `# EDIT-END` in one ```python code block, and nothing else.
""".replace(
    "RULE", inspect.getsource(paper_rule).replace(" norm(", " np.linalg.norm(").replace("{", "{{").replace("}", "}}")
)


def rows_of(data: Any) -> Any:
    """Rows from {centers, radii}, [centers, radii] or rows; what has another shape is left for verify to name."""
    if isinstance(data, dict) and "z" in data:
        flat = [float(v) for v in data["z"] if isinstance(v, str)]  # decimal strings x, y, r, x, ...
        return [flat[i : i + 3] for i in range(0, len(flat), 3)]
    if isinstance(data, dict):
        data = [data.get("centers"), data.get("radii")]
    if not isinstance(data, list) or len(data) != 2:
        return data
    if not all(isinstance(part, list) for part in data) or len(data[0]) != len(data[1]):
        raise ValueError("centers and radii are no lists of one length")
    return [[*c, r] if isinstance(c, list) else c for c, r in zip(*data, strict=True)]


def run(program: str, run_program: Callable, *, timeout_s: float, memory_mb: int = 1024) -> dict:
    """Run the candidate in the sandbox and verify its packing: see evaluators.run_candidate for the record."""
    from evaluators import TAIL, run_candidate  # here, so that verify can be copied without the package

    source = program + TAIL.format(entry=ENTRY, part="[:2]")
    limits = {"timeout_s": timeout_s, "memory_mb": memory_mb}
    return run_candidate(source, run_program, lambda data: (rows_of(data), 1), verify, max_size=1, **limits)


def self_test(run_program: Callable) -> None:
    """RuntimeError where the start program, overlaps of 1e-9, or a cheat are not judged as they must be."""
    from evaluators import CHEAT, check_programs

    cheat = CHEAT + "def construct_packing():\n    return np.full((26, 2), 0.5), np.full(26, 0.4), 1000.0\n"
    overlap = START.replace("radius, small = 5, 0.077, 0.03", "radius, small = 5, 0.1 + 5e-10, 0.03")
    runs = {"start": (START, 1.955), "overlap": (overlap, None), "cheat": (cheat, None)}
    check_programs("circles", lambda program: run(program, run_program, timeout_s=10), runs)


def load(path: str | Path) -> Any:
    """The rows in a JSON or .npz file, in any of the shapes of `Input`; verify judges them."""
    from evaluators import read_file

    return rows_of(read_file(path))


def exact_sum(rows: Any) -> str:
    """The sum of the radii as given, cut to 16 decimals."""
    digits = str(sum(r for _, _, r in check(rows)) * 10**16 // ONE).zfill(17)
    return f"{digits[:-16]}.{digits[-16:]}"


def plot(rows: Any, axes: Any) -> None:
    """Draw the packing on matplotlib axes."""
    from matplotlib.patches import Circle, Rectangle

    axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, linewidth=1.2))
    for x, y, r in rows:
        axes.add_patch(Circle((x, y), r, facecolor="#9ecae1", edgecolor="#08519c", linewidth=0.8))
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes.set_title(f"{len(rows)} circles, sum of radii {sum(row[2] for row in rows):.6f}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import common
    from evaluators import command

    common.entry(lambda: command(sys.modules[__name__]))
