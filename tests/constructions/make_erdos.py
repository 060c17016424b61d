"""Make erdos.json: a step function for the minimum overlap problem, by a log barrier and basin hopping.

Method  minimise t over h in (0, 1)^n with sum n/2 and the overlap at every lag <= t: Newton on t - mu (sum of the
        logarithms of all slacks), mu falling to 1e-12; the best of many starts, then of many perturbations of the
        best; then every step is cut in two and that goes on. Only numpy, a fixed seed, fixed numbers of starts.
Run     OMP_NUM_THREADS=1 python tests/constructions/make_erdos.py OUT.json
Expect  see README.md beside this file; last digits may differ between versions of numpy's linear algebra
"""

import json
import sys

import numpy as np

STAGES = [(51, 200, 600), (102, 0, 150), (204, 0, 15)]  # steps, starts, perturbations


def overlaps(h: np.ndarray) -> np.ndarray:
    """The overlap at every lag, both signs: 2/n sum of h_i (1 - h_{i + lag}) with both indices in range."""
    return np.correlate(1 - h, h, "full") * 2 / len(h)


def project(h: np.ndarray) -> np.ndarray:
    """h moved into [0.01, 0.99] with sum n/2."""
    for _ in range(60):
        h = np.clip(h + 0.5 - h.mean(), 0.01, 0.99)
    return h


def barrier(h: np.ndarray, t: float, mu: float) -> float:
    s = np.concatenate([t - overlaps(h), h, 1 - h])
    return t - mu * np.log(s).sum() if s.min() > 0 else np.inf


def newton(h: np.ndarray, t: float, mu: float) -> tuple[float, np.ndarray]:
    """The gradient's slope along the Newton step of the barrier with sum(h) kept, and the step itself (h and t)."""
    n, k = len(h), np.arange(len(h))
    lam = mu / (t - overlaps(h))
    lag = np.arange(1 - n, n)[:, None]
    padded = np.concatenate([np.zeros(n), h, np.zeros(n)])
    up = (k + lag >= 0) & (k + lag < n)
    J = 2 / n * (up - padded[n + k + lag] - padded[n + k - lag])  # d overlap / d h  [lag][step]
    D = lam**2 / mu
    both = lam[n - 1 :] + lam[n - 1 :: -1]  # the multipliers of a lag and of its negative
    H = np.block([[(J.T * D) @ J, -(J.T @ D)[:, None]], [-(D @ J)[None], np.array([[D.sum()]])]])
    H[:n, :n] -= 2 / n * both[abs(k[:, None] - k)]
    H[k, k] += mu / h**2 + mu / (1 - h) ** 2
    g = np.append(J.T @ lam - mu / h + mu / (1 - h), 1 - lam.sum())
    ones, shift, scale = np.append(np.ones(n), 0), 0.0, 1e-6 * abs(H[k, k]).mean()
    while True:  # the overlap is not convex: shift until the matrix is positive definite
        try:
            np.linalg.cholesky(H + shift * np.eye(n + 1))
            break
        except np.linalg.LinAlgError:
            shift = max(2 * shift, scale)
    u, v = np.linalg.solve(H + shift * np.eye(n + 1), np.stack([g, ones], 1)).T
    d = (ones @ u) / (ones @ v) * v - u
    return float(g @ d), d


def descend(h: np.ndarray, mu: float, mu_end: float) -> tuple[float, np.ndarray]:
    """(largest overlap, h) at a local optimum near h."""
    t = overlaps(h).max() + 300 * mu
    while mu > mu_end:
        for _ in range(15):
            slope, d = newton(h, t, mu)
            step, here = 1.0, barrier(h, t, mu)
            while step > 1e-9 and not barrier(h + step * d[:-1], t + step * d[-1], mu) < here + 1e-4 * step * slope:
                step /= 2
            if step <= 1e-9:
                break
            h, t = h + step * d[:-1], t + step * d[-1]
            if -slope < 0.05 * mu:
                break
        mu *= 0.5
    return float(overlaps(h).max()), h


def main() -> None:
    rng = np.random.default_rng(0)
    best: tuple[float, np.ndarray] = (1.0, np.zeros(0))
    for n, starts, hops in STAGES:
        x = (np.arange(n) + 0.5) * 2 / n - 1
        if best[1].size:
            best = descend(project(np.repeat(best[1], n // best[1].size)), 1e-5, 1e-7)
        for i in range(starts + hops):
            wave = (1.1 - abs(x) ** rng.uniform(1, 4)) * (1 + rng.uniform(0.2, 1) * np.cos(rng.uniform(2, 40) * x))
            noise = (
                rng.choice([0.02, 0.05, 0.1, 0.2, 0.4])
                * rng.standard_normal(n)
                * (rng.random(n) < rng.choice([0.1, 0.3, 1]))
            )
            h = project(wave + noise if i < starts else best[1] + noise)
            best = min(best, descend(h, 1e-4 if i < starts else 2e-5, 1e-7), key=lambda found: found[0])
        print(n, best[0], flush=True)
    value, h = descend(np.clip(best[1], 1e-9, 1 - 1e-9), 1e-7, 1e-12)
    with open(sys.argv[1], "w") as file:
        json.dump(
            {"name": f"own, {len(h)} steps, made by make_erdos.py", "h": [round(v, 15) for v in h.tolist()]}, file
        )
    print("float value", value)


if __name__ == "__main__":
    main()
