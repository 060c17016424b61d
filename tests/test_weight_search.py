"""The weight-space baselines: the arithmetic on plain numbers, and the real engine with a small model (marker vllm)."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import common
import weight_search as ws
from fake_server import FakeServer
from run_tools import climbing, content, lines_of

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


class TinyModel(common.HttpChat):
    """A scripted server with one matrix for weights: what was asked under which weights, and what cleared the cache."""

    def __init__(self, url: str):
        super().__init__([url], None, temperature=1.0, max_tokens=8, price=None)
        self.llm, self.m, self.trace = self, torch.nn.Linear(300, 30, bias=False), []
        torch.nn.init.zeros_(self.m.weight)

    def load(self) -> None:
        pass

    def apply_model(self, change) -> None:
        change(self.m)
        self.trace.append("changed")

    def reset_prefix_cache(self) -> bool:
        self.trace.append("cleared")
        return True

    def __call__(self, requests, seeds):
        self.trace.append((self.m.weight.detach().clone(), list(seeds)))
        return super().__call__(requests, seeds)


def noisy_run(folder: Path, *flags: str) -> tuple[TinyModel, dict]:
    """The model after two rounds of two pairs, and the log's lines by (event, round)."""
    with FakeServer(climbing) as server:
        model = TinyModel(server.url)
        args = ws.parse(["circles", "--model", "m", "--N", "8", "--M", "2", "--P", "2", "--run", str(folder), *flags])
        args.max_size = None
        assert ws.search(args, common.Log(args.run, "weight_search.py", vars(args)), model) == 0
    return model, {(line["event"], line.get("unit", [0, 0, 0])[2]): line for line in lines_of(folder)}


def eps(t: int, j: int) -> torch.Tensor:
    return torch.randn(30, 300, generator=torch.Generator().manual_seed(common.seed_of(0, "noise", "circles", t, j)))


@pytest.mark.parametrize("method", ["noise", "es"])
def test_weight_search_asks_antithetic_models_restores_them_and_moves_up(method, tmp_path):
    model, lines = noisy_run(tmp_path / "a", "--method", method, "--sigma", "0.5", "--alpha", "0.25")
    theta, asked = torch.zeros(30, 300), [x for x in model.trace if isinstance(x, tuple)]
    assert [seeds for _, seeds in asked] == [[2 * k, 2 * k + 1] for k in range(8)]  # each answers N / 2P prompts
    for t in range(2):
        for k in range(4):
            expected = theta + (0.5 if k % 2 == 0 else -0.5) * eps(t, k // 2)
            assert torch.allclose(asked[4 * t + k][0], expected, atol=1e-5)
        if method == "es":  # 0.25 / (2 P sigma) = 0.125 times the standardised differences of the mean rewards
            rewards = [r / 2.6358627564136983 for r in scores(tmp_path / "a", t)]
            R = [(sum(rewards[4 * j : 4 * j + 2]) - sum(rewards[4 * j + 2 : 4 * j + 4])) / 2 for j in range(2)]
            up = 0.125 if R[0] > R[1] else -0.125  # two differences, standardised, are 1 and -1
            assert R[0] != R[1]
            assert lines["step", t]["scales"] == pytest.approx([up, -up])
            theta = theta + up * (eps(t, 0) - eps(t, 1))
    assert torch.allclose(model.m.weight, theta, atol=1e-5)
    changes = [x for x in model.trace if isinstance(x, str)]
    assert changes == ["changed", "cleared"] * (16 + 2 * (method == "es"))
    again, _ = noisy_run(tmp_path / "b", "--method", method, "--sigma", "0.5", "--alpha", "0.25")
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert torch.equal(again.m.weight, model.m.weight)


def scores(folder: Path, t: int) -> list[float]:
    """Certified scores of a round by index, 0 where invalid."""
    last = {
        line["unit"][3]: line
        for line in lines_of(folder)
        if line["event"] == "run" and line.get("unit", [0, 0, 9])[2] == t
    }
    return [last[i]["score"] if i in last and last[i]["status"] == "ok" else 0.0 for i in range(8)]


CHECK = """
import json, sys
import common, weight_search as ws
chat = common.open_chat(model=sys.argv[1], url=None, temperature=1.0, max_tokens=24, price_in=None, price_out=None)
weights, ask = ws.Weights(chat), [[{"role": "user", "content": "Name five rivers of Europe."}]] * 4
def bits():
    chat.bits = {}
    list(chat(ask, [1, 2, 3, 4]))
    return [chat.bits[i] for i in range(4)]
copy = lambda: weights.load().apply_model(lambda m: {n: p.detach().clone() for n, p in m.named_parameters()})[0]
before, told = copy(), bits() if sys.argv[2] == "filled" else None
weights.add({7: 0.02})
moved = bits()
weights.add({7: -0.02})
after = copy()
ulp = max(float(((after[n] - p).abs() / (p.abs() + 0.2)).max()) for n, p in before.items())
print(json.dumps({"told": told, "moved": moved, "relative": ulp, "parameters": len(before)}))
"""


@pytest.mark.vllm
def test_weights_come_back_up_to_rounding_and_answers_come_from_the_new_ones_alone():
    model = subprocess.run(
        [sys.executable, "tests/local_model.py", "smollm2"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    found = []
    for cache in ("filled", "empty"):  # whether the prefix cache holds anything when the weights change
        argv = [sys.executable, "-c", CHECK, model, cache]
        ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr[-2000:]
        found.append(json.loads(ran.stdout.splitlines()[-1]))
    assert found[0]["moved"] != found[0]["told"]  # the noise reaches the products, not a copy that nobody reads
    assert found[0]["moved"] == found[1]["moved"]  # to the bit: another engine, and the cache was cleared
    assert found[0]["parameters"] > 100
    assert found[0]["relative"] < 2 * 2.0**-23
