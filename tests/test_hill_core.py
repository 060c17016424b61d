"""The pure loop of hill_sampling.py and its variations on scripted models: no network, no sandbox, no disk."""

import contextlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import common
import hill_sampling as hs
from fake_server import FakeServer


def play(rewards, search="hill", N=4, K=2, seed=0, start: float | None = 0.0, parents=None):
    """(records, contexts seen, seeds seen) of the core on scripted rewards[t][i]; programs are named "t.i"."""
    seen, seeds_seen = [], []

    def sample(t, contexts, seeds):
        seen.append(contexts)
        seeds_seen.append(seeds)
        return ((i, f"{t}.{i}") for i in reversed(range(len(contexts))))  # replies finish in another order

    def evaluate(t, programs):
        got = dict(programs)
        return [(got[i], start if t < 0 else rewards[t][i], f"out {t}.{i}") for i in sorted(got)]

    settings = {"N": N, "M": len(rewards), "K": K, "seed": seed}
    shown = {"parents": parents or hs.PARENTS[search], "context": lambda c: hs.context(search, c)}
    records = list(hs.hill_sampling("x0", sample, evaluate, **settings, **shown))
    return records, seen, seeds_seen


def best(records):
    return [r["best"].program for r in records]


def test_hill_sampling_moves_to_the_best_and_keeps_it_through_worse_rounds():
    records, seen, _ = play([[0.1, 0.9, 0.5, 0.2], [0.3, 0.4, 0.1, 0.2], [0.0, 0.0, 1.5, 0.0]])
    assert best(records) == ["x0", "0.1", "0.1", "2.2"]
    assert [r["accepted"] for r in records] == [False, True, False, True]
    assert seen == [["x0"] * 4, ["0.1"] * 4, ["0.1"] * 4]


def test_hill_sampling_moves_on_a_tie_and_takes_the_lowest_index_of_equals():
    records, _, _ = play([[-1.0, 0.0, 0.0, -2.0]])
    assert best(records) == ["x0", "0.1"]
    assert records[-1]["accepted"]


def test_hill_sampling_never_moves_to_an_invalid_program_even_from_an_invalid_start():
    records, _, _ = play([[None] * 4, [None, -5.0, None, None], [None] * 4], start=None)
    assert best(records) == ["x0", "x0", "1.1", "1.1"]
    assert [r["accepted"] for r in records] == [False, False, True, False]


def test_hill_sampling_accepts_gains_of_any_size():
    """Case 90: no threshold hides a gain of 1e-11, and an absent value never replaces the incumbent."""
    rounds = [2.6, 2.6000000001, None, None, 2.59, None, 2.60000000011]
    records, _, _ = play([[r] for r in rounds], N=1, start=2.6)
    assert [r["accepted"] for r in records[1:]] == [True, True, False, False, False, False, True]
    assert records[-1]["best"].reward == 2.60000000011


def test_hill_sampling_gives_every_sample_of_every_run_its_own_seed():
    seeds = [s for run in (0, 1, 2) for batch in play([[0.0] * 4] * 3, seed=run)[2] for s in batch]
    assert len(set(seeds)) == len(seeds)
    assert play([[0.0] * 4] * 2, seed=2)[2] == [
        [2_000_000, 2_000_001, 2_000_002, 2_000_003],
        [2_000_004, *range(2_000_005, 2_000_008)],
    ]


def test_hill_sampling_evaluates_while_replies_are_still_coming():
    order = []

    def sample(*_):
        for i in range(2):
            order.append(f"reply {i}")
            yield i, "y"

    def evaluate(t, programs):
        for i, _ in programs:
            order.append(f"run {i}")
        return [("y", 0.0, "")] * (1 if t < 0 else 2)

    settings = {"N": 2, "M": 1, "K": 1, "seed": 0, "parents": hs.hill, "context": str}
    list(hs.hill_sampling("x0", sample, evaluate, **settings))
    assert order == ["run 0", "reply 0", "run 0", "reply 1", "run 1"]


REWARDS = [[0.1] * 16, [0.2] * 16, [0.0] * 16]
REWARDS[0][1], REWARDS[0][12], REWARDS[1][1], REWARDS[1][0] = 0.9, 0.5, 1.0, 0.3
SHOWN = {  # what the children of round 2 (the third) are shown
    "hill": ["1.1"] * 16,
    "repeated": ["x0"] * 16,
    "top-k": ["1.1", "0.1"] * 8,
    "top-k-random": ["1.1", "0.1", "0.15", "1.2"] * 4,
    "top-k-diverse": ["1.1", "0.1", "x0", "0.2"] * 4,
    "in-context": ["0.1" + hs.DIVIDER + "1.1"] * 16,
    "feedback": ["1.1\n# It printed:\n#   out 1.1\n"] * 16,
    "in-context-rl": [
        hs.DIVIDER.join(["# reward 0.0\nx0", f"# reward {REWARDS[0][i]}\n0.{i}", f"# reward {REWARDS[1][i]}\n1.{i}"])
        for i in range(16)
    ],
    "subpopulation": ["1.1"] * 8 + ["0.12"] * 8,
}


@pytest.mark.parametrize("search", hs.PARENTS)
def test_hill_sampling_variation_shows_its_own_parents(search):
    assert play(REWARDS, search, N=16)[1][2] == SHOWN[search]


@pytest.mark.parametrize("search", hs.PARENTS)
@pytest.mark.parametrize("other", hs.PARENTS)
def test_hill_sampling_variation_wired_to_anothers_parents_is_noticed(search, other):
    """Only feedback and hill have parents in common; they differ in what is shown of them."""
    same = hs.PARENTS[search] is hs.PARENTS[other]
    assert same == (search == other or {search, other} == {"hill", "feedback"})
    assert (play(REWARDS, search, N=16, parents=hs.PARENTS[other])[1][2] == SHOWN[search]) == same


@pytest.mark.parametrize("search", hs.PARENTS)
def test_hill_sampling_variations_use_the_same_seeds(search):
    assert play([[0.0] * 8] * 2, search, N=8)[2] == [list(range(8)), list(range(8, 16))]


def test_subpopulation_climbs_in_groups_of_eight_and_merges_after_four_rounds():
    rewards = [[0.0] * 16 for _ in range(5)]
    rewards[0][3], rewards[1][12] = 0.5, 0.9
    rewards[4] = [0.0] * 16
    _, seen, _ = play(rewards, "subpopulation", N=16)
    assert seen[1] == ["0.3"] * 8 + ["0.8"] * 8  # the second group moved on a tie with the start
    assert seen[2] == ["0.3"] * 8 + ["1.12"] * 8
    assert seen[4] == ["1.12"] * 16


def test_in_context_rl_starts_again_after_four_rounds():
    rewards = [[0.1, 0.9], [0.3, 0.2], [0.4, 0.2], [0.1, 0.2], [0.0, 0.0]]
    seen = play(rewards, "in-context-rl", N=2)[1]
    assert seen[4] == ["# reward 0.9\n0.1"] * 2


def test_top_k_random_draws_k_more_from_the_history_by_a_fixed_seed():
    shown = play(REWARDS, "top-k-random")[1]
    assert shown[2][:2] == ["1.1", "0.1"]
    assert shown == play(REWARDS, "top-k-random")[1]
    assert {p for p in shown[2][2:]} <= {"x0", *(f"{t}.{i}" for t in (0, 1) for i in range(4))}


def test_top_k_diverse_adds_the_least_similar_program():
    trials = [hs.Trial(-1, 0, "a b c", 1.0, ""), hs.Trial(0, 0, "a b d", 0.9, ""), hs.Trial(0, 1, "x y z", 0.1, "")]
    assert [p[0].program for p in hs.top_k_diverse(trials[0], trials, 2, 1, 1, 0)] == ["a b c", "x y z"]


def test_top_k_diverse_knows_a_program_that_failed_before_it_passed():
    rows = [(0, 0, "a", None), (1, 0, "a", 0.9), (1, 1, "b", 0.8), (1, 2, "c", 0.7), (2, 0, "d", 0.6)]
    trials = [hs.Trial(t, i, program, reward, "") for t, i, program, reward in rows]
    shown = hs.top_k_diverse(trials[1], trials, 4, 2, 3, 0)
    assert [p[0].program for p in shown] == ["a", "b", "c", "d"]


def test_top_keeps_distinct_valid_programs_best_first():
    trials = [
        hs.Trial(-1, 0, "x", None, ""),
        *(hs.Trial(0, i, p, r, "") for i, (p, r) in enumerate(zip("aabc", [1.0, 1.0, 2.0, None], strict=True))),
    ]
    assert [(t.program, t.i) for t in hs.top(trials, 4)] == [("b", 2), ("a", 0)]
    assert hs.top(trials[:1], 4) == trials[:1]


def test_tf_idf_vectors_have_length_one():
    for v in hs.tf_idf(["a b b", "b c", "a b c d"]):
        assert math.isclose(hs.dot(v, v), 1.0)


def test_hill_sampling_seeds_do_not_depend_on_servers_processes_or_n():
    """Case 46: 128 distinct seeds, equal with 1 and 8 servers and any PYTHONHASHSEED; a larger N keeps the first."""
    asked = [s for batch in play([[0.0] * 64] * 2, N=64)[2] for s in batch]
    assert len(set(asked)) == 128
    assert play([[0.0] * 128], N=128)[2][0][:64] == asked[:64]
    code = "import test_hill_core as t; print([s for b in t.play([[0.0] * 64] * 2, N=64)[2] for s in b])"
    here = Path(__file__).parent
    env = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": f"{here.parent}:{here}"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, cwd=here, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == asked
    for replicas in (1, 8):
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(FakeServer(lambda _, seed: f"{seed}")) for _ in range(replicas)]
            urls = [server.url for server in servers]
            chat = common.open_chat(model=None, url=urls, temperature=1.0, max_tokens=1, price_in=None, price_out=None)
            replies = dict(chat([[{"role": "user", "content": "x"}]] * 128, asked))
        assert [replies[i].text for i in range(128)] == [str(s) for s in asked]
        assert [len(server.requests) for server in servers] == [128 // replicas] * replicas
