"""Calibration by envelopes against the plain scan over breakpoints, in one run: seconds, ratio, and whether they agree.

Run     python tests/bench_crc.py --rows 10000
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def plain_scan(s: np.ndarray, c: np.ndarray, B: float, c_max: float) -> float | None:
    """The smallest feasible breakpoint, by an argmax over all rows at each of them, smallest first."""
    n, K = s.shape
    lambdas = [np.zeros(1)]
    for i in range(K):
        for j in range(K):
            dearer = c[:, i] > c[:, j]
            lambdas.append((s[:, i] - s[:, j])[dearer] / (c[:, i] - c[:, j])[dearer])
    lambdas = np.concatenate(lambdas)
    for lam in np.unique(lambdas[lambdas >= 0]):
        if (c[np.arange(n), (s - lam * c).argmax(1)].sum() + c_max) / (n + 1) <= B:
            return float(lam)
    return None


def main() -> None:
    import coderescue

    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter, allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=10_000)
    n = parser.parse_args().rows
    rng = np.random.default_rng(0)
    s, c = rng.random((n, 3)), rng.exponential([1, 2, 7], (n, 3)).clip(0, 60)
    options = {"bound": "crc", "c_min": 0.0, "c_max": 60.0, "delta": 0.05}
    B = 1.0
    start = time.process_time()
    (found,) = coderescue.coderescue(s, c, c, [B], **options)
    ours = time.process_time() - start
    start = time.process_time()
    lam = plain_scan(s, c, B, 60.0)
    scan = time.process_time() - start
    print(f"n = {n}: envelopes {ours:.4f} s, plain scan {scan:.2f} s of CPU, ratio {scan / ours:.0f}")
    print(f"lambda_hat {found['lambda_hat']} and {lam} (rounding can hide a tie from the scan)")


if __name__ == "__main__":
    main()
