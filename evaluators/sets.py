"""Sets: a finite set U of integers >= 0 with 0 in it, few distinct sums, many distinct differences (higher is better).

Paper   Hill Sampling, arXiv:2609.25510, task "Sets": theta(U) = 1 + log(|U-U| / |U+U|) / log(2 max U + 1) <= C6
Input   a list of distinct integers; the file may also hold {"U": [...]}, or an .npz with U or its gaps ("deltas")
Run     python evaluators/sets.py FILE.json [--json] [--plot set.png]
Expect  {0, 1, 4, 10, 12, 17}: 1.1095433583508467, the paper's best; AlphaEvolve's 54,265 elements: 1.158417281556896
Differs - exact counts for integers of any size, in little memory: the pairs are taken by the residue of their sum
          modulo q, each class marked in one small array (the paper's rule needs 23.6 GB for 54,265 elements)
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

ENTRY = "run"
HIGHER = True
BLOCK = 1 << 22  # pairs in flight
KNOWN = {
    "Hill Sampling (six elements)": 1.1095433583508467,
    "AlphaEvolve 2025-05 (the paper's 1.0)": 1.158417281556896,
    "best bound reported since (not checked here)": 1.19102809,
}


def paper_rule(U):
    """theta(U) in floating point: U - U should be large, U + U and max(U) small."""
    sums = {a + b for a in U for b in U}
    differences = {a - b for a in U for b in U}
    return 1 + np.log(len(differences) / len(sums)) / np.log(2 * max(U) + 1)


def check(U: Any) -> list[int]:
    """The sorted elements; ValueError for what is no list of distinct integers >= 0 with 0 and one more among them."""
    U = U.tolist() if type(U) is np.ndarray else U
    if not isinstance(U, (list, tuple)):
        raise ValueError(f"a set is a list of integers, not {type(U).__name__}")
    for i, u in enumerate(U):
        if type(u) is not int:
            raise ValueError(f"element {i} is no integer but {type(u).__name__}")
        if u < 0:
            raise ValueError(f"element {i} is negative")
    if len(U) < 2:
        raise ValueError("fewer than 2 elements")
    if 0 not in U:
        raise ValueError("0 is not in the set")
    ordered = sorted(U)
    if any(a == b for a, b in pairwise(ordered)):
        raise ValueError(f"{len(U) - len(set(U))} elements are repeated")
    return ordered


def classes(U: np.ndarray, q: int, sign: int) -> Iterator[tuple[int, Iterator[np.ndarray]]]:
    """For each residue t: how many classes it stands for, and blocks of all w with a + sign * b = t + q * w.

    Sums take each unordered pair once. Differences have one class of t and -t (q is odd), w is shifted to be >= 0.
    """
    top, group = int(U[-1]) // q, [U[U % q == s] // q for s in range(q)]

    def blocks(t: int) -> Iterator[np.ndarray]:
        for s, a in enumerate(group):
            r = (t - s) % q if sign > 0 else (s - t) % q
            if not len(a) or not len(group[r]) or (sign > 0 and s > r):
                continue
            b = group[r] + (s + r >= q) if sign > 0 else top + 1 - (s < r) - group[r]
            step = BLOCK // len(b) + 1
            for i in range(0, len(a), step):
                yield np.add.outer(a[i : i + step], b)

    for t in range(q if sign > 0 else q // 2 + 1):
        yield 2 if sign < 0 and t else 1, blocks(t)


def count(U: np.ndarray, sign: int) -> int:
    """|U + U| (sign 1) or |U - U| (sign -1). U is sorted, int64 below 2**62, else object (Python integers)."""
    total, pairs, top = 0, len(U) ** 2, int(U[-1])
    if top < 1 << 31 and pairs > top >> 7:  # dense: a byte for each value of a class, few enough to stay in the cache
        q = max(top >> 21, pairs >> 23) | 1
        marks = np.zeros(2 * (top // q) + 3, bool)
        for weight, blocks in classes(U, q, sign):
            marks[:] = False
            for block in blocks:
                marks[block] = True
            total += weight * int(np.count_nonzero(marks))
        return total
    for weight, blocks in classes(U, pairs >> 22 | 1, sign):  # sparse: sort the values of a class
        values = np.concatenate([U[:0], *(block.ravel() for block in blocks)])
        if U.dtype == object:
            total += weight * len(set(values.tolist()))
        elif len(values):
            values.sort()
            total += weight * (1 + int(np.count_nonzero(values[1:] != values[:-1])))
    return total


def verify(U: Any) -> dict:
    """score (theta, the nearest float), sums, differences, max, all from exact counts; ValueError names the fault."""
    ordered = check(U)
    top = ordered[-1]
    array = np.array(ordered, dtype=np.int64 if top < 1 << 62 else object)
    sums, differences = count(array, 1), count(array, -1)
    with localcontext() as context:
        context.prec = 50
        theta = 1 + (Decimal(differences) / Decimal(sums)).ln() / Decimal(2 * top + 1).ln()
    return {"score": float(theta), "sums": sums, "differences": differences, "max": top}


def reward(score: float) -> float:
    """The paper's normalisation: AlphaEvolve's set of 54,265 elements is 1."""
    return score / 1.158417281556896


START = '''# EDIT-START
import numpy as np


def run():
    """Return U, a list of distinct integers >= 0 with 0 in it, and its score."""
    size, first = 20, [0, 1, 3]
    U = list(first)
    while len(U) < size:  # append the smallest integer that makes no sum twice
        sums = {a + b for a in U for b in U}
        c = U[-1] + 1
        while any(a + c in sums for a in U) or 2 * c in sums:
            c += 1
        U.append(c)
    sums = {a + b for a in U for b in U}
    differences = {a - b for a in U for b in U}
    return U, 1 + np.log(len(differences) / len(sums)) / np.log(2 * max(U) + 1)
# EDIT-END
'''
BARE = START[: START.index("    size, first")] + "    raise NotImplementedError\n# EDIT-END\n"  # --information none
PROMPT = """Find a finite set U of integers >= 0, with 0 in it, that has many distinct differences but few distinct sums
and a small maximum: the score below should be as large as possible. Sets of score 1.158 are known. This is the
current program:

```python
{program}
# below the block: how a set is judged (fixed)
RULE```

Improve run() with one small edit: change a number, the first elements, or how the next element is chosen. It must
use only numpy and finish within a few seconds. Reply with the whole block from `# EDIT-START` to `# EDIT-END` in one
```python code block, and nothing else.
""".replace("RULE", inspect.getsource(paper_rule).replace("{", "{{").replace("}", "}}"))


def elements_of(data: Any) -> Any:
    """The elements of {"U": [...]}, {"deltas": [...]} (from 0) or a plain list; verify judges them."""
    if isinstance(data, dict) and "deltas" in data:
        if not isinstance(data["deltas"], list) or any(type(d) is not int for d in data["deltas"]):
            raise ValueError("deltas is no list of integers")
        return list(accumulate(data["deltas"], initial=0))
    return data.get("U") if isinstance(data, dict) else data


def size(U: Any) -> int:
    """What max_size limits, lest a candidate stall the search: the elements, times ten and more beyond 62 bits."""
    if not isinstance(U, list):
        return 0
    bits = max((u.bit_length() for u in U if type(u) is int), default=0)
    return len(U) * (1 if bits <= 62 else 10 * (bits // 64 + 1))


def run(
    program: str, run_program: Callable, *, timeout_s: float, memory_mb: int = 1024, max_size: int = 20_000
) -> dict:
    """Run the candidate in the sandbox and verify its set of size() up to max_size: see evaluators.run_candidate."""
    from evaluators import TAIL, run_candidate  # here, so that verify can be copied without the package

    source = program + TAIL.format(entry=ENTRY, part="[0]")
    limits = {"timeout_s": timeout_s, "memory_mb": memory_mb, "max_size": max_size}
    return run_candidate(source, run_program, lambda U: (U, size(U)), verify, **limits)


def self_test(run_program: Callable) -> None:
    """RuntimeError where the six-mark ruler, a set with floats, or a cheat is not judged as it must be."""
    from evaluators import CHEAT, check_programs

    good = "def run():\n    return [0, 1, 4, 10, 12, 17], 9.0\n"
    cheat = CHEAT + "def run():\n    return [0, 1, 1], 99.0\n"
    runs = {"ruler": (good, 1.1095433583508467), "float": (good.replace("17", "17.0"), None), "cheat": (cheat, None)}
    check_programs("sets", lambda program: run(program, run_program, timeout_s=10), runs)


def load(path: str | Path) -> Any:
    """The elements in a JSON or .npz file, in any of the shapes of `Input`; verify judges them."""
    from evaluators import read_file

    return elements_of(read_file(path))


def plot(U: Any, axes: Any) -> None:
    """Draw on matplotlib axes how many elements lie up to each value."""
    axes.step([float(u) for u in sorted(U)], range(1, len(U) + 1), where="post", color="#08519c")
    axes.set(xlabel="value", ylabel="elements up to it", xlim=(0, None), ylim=(0, None), title=f"{len(U)} elements")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import common
    from evaluators import command

    common.entry(lambda: command(sys.modules[__name__]))
