"""The weight-space baselines: the arithmetic on plain numbers, and the real engine with a small model (marker vllm)."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import common
import weight_search as ws

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = {"P": 2, "sigma": 0.5, "alpha": 0.1}


def test_fitness_is_mean_maximum_or_softmax_weighted_mean():
    assert ws.fitness("es", [0.0, 1.0]) == 0.5
    assert ws.fitness("es-max", [0.0, 1.0]) == 1.0
    assert ws.fitness("es-softmax", [0.0, 1.0]) == pytest.approx(math.exp(2) / (1 + math.exp(2)))


def test_steps_are_standardised_differences_of_antithetic_pairs():
    """Rewards of +0, -0, +1, -1 are 3, 1, 0, 0: R = (2, 0), standardised (1, -1)."""
    assert ws.steps("es", [3.0, 1.0, 0.0, 0.0], update="appendix", **OPTIONS) == pytest.approx([0.05, -0.05])
    assert ws.steps("es", [3.0, 1.0, 0.0, 0.0], update="section-4.2", **OPTIONS) == pytest.approx([0.1, -0.1])
    assert ws.steps("es", [1.0] * 4, update="appendix", **OPTIONS) == [0.0, 0.0]


def test_steps_give_each_model_an_equal_share_of_the_rewards():
    rewards = [1.0, 5.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]  # the maxima of +0, -0, +1, -1: 5, 1, 0, 0
    assert ws.steps("es-max", rewards, update="appendix", **OPTIONS) == pytest.approx([0.05, -0.05])


@pytest.mark.parametrize(("flags", "said"), [
    (["--N", "0"], "--N 0: must be at least 1"),
    (["--M", "-3"], "--M -3: must be at least 1"),
    (["--P", "0"], "need P >= 1"),
    (["--N", "6", "--P", "2"], "a multiple of the 2P models"),
    (["--method", "es", "--P", "1"], "no spread"),
    (["--method", "es-max", "--N", "64", "--P", "32"], "makes it --method es"),
])  # fmt: skip
def test_weight_search_refuses_settings_that_mean_nothing(flags, said):
    with pytest.raises(common.UserError, match=said):
        ws.main(["circles", "--model", "m", *flags])


CHECK = """
import json, sys
import common, weight_search as ws
chat = common.open_chat(model=sys.argv[1], url=None, temperature=1.0, max_tokens=24, price_in=None, price_out=None)
weights, ask = ws.Weights(chat), [[{"role": "user", "content": "Name five rivers of Europe."}]] * 4
texts = lambda: [r.text for _, r in sorted(chat(ask, [1, 2, 3, 4]), key=lambda x: x[0])]
copy = lambda: weights.load().apply_model(lambda m: {n: p.detach().clone() for n, p in m.named_parameters()})[0]
before, told = copy(), texts()
weights.add({7: 0.02})
moved = texts()
weights.add({7: -0.02})
after = copy()
ulp = max(float(((after[n] - p).abs() / (p.abs() + 0.2)).max()) for n, p in before.items())
weights.add({7: 0.02})
print(json.dumps({"moved": moved != told, "again": texts() == moved, "relative": ulp, "parameters": len(before)}))
"""


@pytest.mark.vllm
def test_weights_come_back_up_to_rounding_and_noise_is_the_same_from_the_same_seed():
    model = subprocess.run(
        [sys.executable, "tests/local_model.py", "smollm2"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    ran = subprocess.run([sys.executable, "-c", CHECK, model], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["moved"]  # the noise reaches the products, not a copy that nobody reads
    assert found["again"]
    assert found["parameters"] > 100
    assert found["relative"] < 2 * 2.0**-23
