"""Make circles.json: 26 circles at the float64 optimum of their contact graph, exactly valid.

Method  1. from rings of 1 + 8 + 12 + 4 + 1 circles a log barrier method (Newton) climbs to a local optimum; the best
           is shaken, half of the time with a circle thrown elsewhere, and climbs again, 80 times; then the next seed,
           until one reaches 2.635981
        2. the 78 active constraints (contacts and walls) are solved for the 78 unknowns, with residuals of 80 digits
        3. all is rounded to floats; radii go down by units in the last place until evaluators.circles finds the packing
           exactly valid, then up wherever one does, after a shift of its center by one such unit if need be
Run     python tests/constructions/make_circles.py OUT.json
Expect  2.63598308491760778... at the optimum (60 digits), 2.6359830849176071... in float64 (README.md beside this file)
"""

import itertools
import json
import math
import sys
from decimal import Decimal, getcontext
from pathlib import Path

import numpy as np

N = 26
I, J = np.array(list(itertools.combinations(range(N), 2))).T
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


def climb(xy: np.ndarray, mu: float) -> np.ndarray:
    """A local maximum of the sum of the radii near xy: Newton on the log barrier, its weight mu falling to 1e-13."""

    def barrier(z: np.ndarray, mu: float) -> float:
        s = slacks(z)
        return -z[2 * N :].sum() - mu * np.log(s).sum() if s.min() > 0 else np.inf

    x, y = np.clip(xy, 0.02, 0.98)
    z = np.concatenate([x, y, np.full(N, 0.45 * min(0.02, np.hypot(x[I] - x[J], y[I] - y[J]).min()))])
    gain = np.repeat([0.0, -1.0], [2 * N, N])
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


def search(seed: int) -> np.ndarray:
    """Climb from rings of circles, shake the best, climb again, 80 times."""
    rng, c = np.random.default_rng(seed), [(0.5, 0.5)]
    for count, radius in ((8, 0.24), (12, 0.42)):
        a = 2 * np.pi * (np.arange(count) / count + rng.random())
        c += list(zip(0.5 + radius * np.cos(a), 0.5 + radius * np.sin(a), strict=True))
    c += [(0.08, 0.08), (0.92, 0.08), (0.08, 0.92), (0.92, 0.92), tuple(rng.random(2))]
    best = climb(np.array(c).T, 1e-4)
    for _ in range(80):
        xy = best[: 2 * N].reshape(2, N) + 10 ** rng.uniform(-3, -1) * rng.standard_normal((2, N))
        if rng.random() < 0.5:
            xy[:, rng.integers(N)] = rng.random(2)
        best = max(best, climb(xy, 10 ** rng.uniform(-6, -3)), key=lambda z: z[2 * N :].sum())
    return best


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
    """Rows of floats, exactly valid: to nearest, radii down where violated, then up wherever an ulp allows it."""
    from evaluators.circles import check, violations

    def faults(rows: list[list[float]]) -> list[list[int]]:
        """The circles of each violated condition."""
        return [
            [int(word) for word in what.split() if word.isdigit()] for what, v, _ in violations(check(rows)) if v > 0
        ]

    rows = [[float(exact[i]), float(exact[N + i]), float(exact[2 * N + i])] for i in range(N)]
    while found := faults(rows):
        i = min(found[0], key=lambda i: rows[i][2])  # the smaller radius loses less
        rows[i][2] = math.nextafter(rows[i][2], 0)
    changed = True
    while changed:
        changed = False
        for row in sorted(rows, key=lambda row: -row[2]):
            old = list(row)
            for dx, dy in itertools.product((0, 1, -1), repeat=2):
                row[:] = [old[0] + dx * math.ulp(old[0]), old[1] + dy * math.ulp(old[1]), math.nextafter(old[2], 1)]
                if not faults(rows):
                    changed = True
                    break
            else:
                row[:] = old
    return rows


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    seed = 0
    while (z := search(seed))[2 * N :].sum() < 2.635981:
        print(f"seed {seed}: {z[2 * N :].sum():.9f}", flush=True)
        seed += 1
    exact = polish(z)
    print(f"optimum {sum(exact[2 * N :]):.60f}")
    rows = rounded(exact)
    with open(sys.argv[1], "w") as file:
        json.dump(
            {"name": "own, made by make_circles.py", "centers": [r[:2] for r in rows], "radii": [r[2] for r in rows]},
            file,
        )


if __name__ == "__main__":
    main()
