"""Make circles.json: 26 circles at the float64 optimum of their contact graph, exactly valid.

Method  1. from rings of 1 + 8 + 12 + 4 + 1 circles, shaken, a log barrier method (Newton) climbs to a local optimum; the
           starts of seeds 0, 1, ... are tried until one reaches 2.63598
        2. the active constraints (contacts and walls, 78 for 78 unknowns) are solved to 60 digits, residuals in Decimal
        3. the centers are rounded to floats, every radius down; then single radii go up by one unit in the last place as
           long as evaluators.circles finds the packing exactly valid
Run     python tests/constructions/make_circles.py OUT.json
Expect  2.63598308491760778... at the optimum (60 digits), 2.6359830849176071... in float64 (README.md beside this file)
"""

import json
import math
import sys
from decimal import Decimal, getcontext
from itertools import combinations
from pathlib import Path

import numpy as np

N = 26
I, J = np.array(list(combinations(range(N), 2))).T
ROWS = np.arange(len(I))


def slacks(z: np.ndarray) -> np.ndarray:
    """Of x, y, r: four walls a circle, r > 0, then d^2 - (r + s)^2 of every pair; all positive inside."""
    x, y, r = z.reshape(3, N)
    pairs = (x[I] - x[J]) ** 2 + (y[I] - y[J]) ** 2 - (r[I] + r[J]) ** 2
    return np.concatenate([x - r, 1 - x - r, y - r, 1 - y - r, r, pairs])


def jacobian(z: np.ndarray) -> np.ndarray:
    x, y, r = z.reshape(3, N)
    E, O, P = np.eye(N), np.zeros((N, N)), np.zeros((len(I), 3 * N))
    walls = np.block([[E, O, -E], [-E, O, -E], [O, E, -E], [O, -E, -E], [O, O, E]])
    for k, v in enumerate((x, y)):
        P[ROWS, k * N + I], P[ROWS, k * N + J] = 2 * (v[I] - v[J]), -2 * (v[I] - v[J])
    P[ROWS, 2 * N + I] = P[ROWS, 2 * N + J] = -2 * (r[I] + r[J])
    return np.concatenate([walls, P])


def climb(z: np.ndarray) -> np.ndarray:
    """A local maximum of the sum of the radii near z: Newton on the log barrier, its weight falling to 1e-13."""

    def barrier(z: np.ndarray, mu: float) -> float:
        s = slacks(z)
        return -z[2 * N :].sum() - mu * np.log(s).sum() if s.min() > 0 else np.inf

    mu, gain = 1e-2, np.repeat([0.0, -1.0], [2 * N, N])
    while mu > 1e-13:
        for _ in range(30):
            s, A = slacks(z), jacobian(z)
            lam = mu / s
            g, H, pull = gain - A.T @ lam, (A.T * (lam / s)) @ A, 2 * lam[5 * N :]
            for k, sign in ((0, 1), (1, 1), (2, -1)):  # minus the multipliers times the second derivatives of the pairs
                D = np.zeros((N, N))
                np.add.at(D, (I, J), pull)
                D = np.diag(D.sum(0) + D.sum(1)) - sign * (D + D.T)
                H[k * N : k * N + N, k * N : k * N + N] -= sign * D
            low = np.linalg.eigvalsh(H)[0]
            d = -np.linalg.solve(H + max(0, 1e-8 - 1.5 * low) * np.eye(3 * N), g)
            step, here = 1.0, barrier(z, mu)
            while step > 1e-9 and not barrier(z + step * d, mu) < here + 1e-4 * step * (g @ d):
                step /= 2
            if step <= 1e-9 or -g @ d < 1e-2 * mu:
                break
            z = z + step * d
        mu /= 3
    return z


def rings(seed: int) -> np.ndarray:
    """A shaken start: 1 circle in the middle, rings of 8 and 12, 4 corners, 1 anywhere; radii small enough to be valid."""
    rng, c = np.random.default_rng(seed), [(0.5, 0.5)]
    for count, radius in ((8, 0.22), (12, 0.4)):
        a = 2 * np.pi * (np.arange(count) / count + rng.random())
        c += list(zip(0.5 + radius * np.cos(a), 0.5 + radius * np.sin(a), strict=True))
    c += [(0.08, 0.08), (0.92, 0.08), (0.08, 0.92), (0.92, 0.92), tuple(rng.random(2))]
    xy = np.clip(np.array(c) + 0.02 * rng.standard_normal((N, 2)), 0.02, 0.98).T
    nearest = np.min(np.hypot(xy[0, I] - xy[0, J], xy[1, I] - xy[1, J]))
    return np.concatenate([*xy, np.full(N, 0.45 * min(nearest, 0.02))])


def polish(z: np.ndarray) -> list[Decimal]:
    """The point where the 78 smallest slacks vanish: Newton with a float Jacobian and residuals of 80 digits."""
    getcontext().prec = 80
    scale = np.concatenate([np.ones(5 * N), 2 * (z[2 * N :][I] + z[2 * N :][J])])  # so that all slacks are lengths
    active = np.argsort(slacks(z) / scale)[: 3 * N]
    exact, inverse = [Decimal(v) for v in z], np.linalg.inv(jacobian(z)[active])
    for _ in range(60):
        residual = slacks(np.array(exact, dtype=object))[active]
        size = max(map(abs, residual))
        step = inverse @ np.array([float(v / size) if size else 0.0 for v in residual])
        exact = [v - Decimal(s) * size for v, s in zip(exact, step, strict=True)]
    if size > Decimal("1e-65"):
        raise ValueError(f"Newton's method did not settle: residual {size}")
    return exact


def rounded(exact: list[Decimal]) -> list[list[float]]:
    """Rows of floats, exactly valid: centers to nearest, radii down, then up again one by one while that stays valid."""
    from evaluators.circles import check, violations

    def valid(rows: list[list[float]]) -> bool:
        return all(amount <= 0 for _, amount, _ in violations(check(rows)))

    rows = [[float(exact[i]), float(exact[N + i]), math.nextafter(float(exact[2 * N + i]), 0)] for i in range(N)]
    while not valid(rows):
        rows = [[x, y, math.nextafter(r, 0)] for x, y, r in rows]
    for row in sorted(rows, key=lambda row: -row[2]):  # a unit in the last place of a large radius is worth most
        while True:
            row[2] = math.nextafter(row[2], 1)
            if not valid(rows):
                row[2] = math.nextafter(row[2], 0)
                break
    return rows


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    seed = 0
    while (z := climb(rings(seed)))[2 * N :].sum() < 2.63598:
        print(f"seed {seed}: {z[2 * N :].sum():.9f}", flush=True)
        seed += 1
    exact = polish(z)
    print(f"seed {seed}: optimum {sum(exact[2 * N :]):.60f}")
    rows = rounded(exact)
    with open(sys.argv[1], "w") as file:
        json.dump({"name": "own, made by make_circles.py", "centers": [r[:2] for r in rows], "radii": [r[2] for r in rows]}, file)


if __name__ == "__main__":
    main()
