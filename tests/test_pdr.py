"""PDR: contexts and counts of the pure core, the published numbers recomputed, the script on the functions harness."""

import argparse
import contextlib
import json
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import common
import pdr
import rtv
from evaluators.outcomes import as_failed, mean_se, measure, of_priors, passing_priors
from fake_server import FakeServer

ROOT = Path(__file__).resolve().parents[1]
CASES = {c["id"]: c for c in map(json.loads, (Path(__file__).parent / "cases.jsonl").read_text("utf-8").splitlines())}
COLUMNS = ("iter0", "sel_k", "iter1", "final")
# arXiv:2604.16529: pass@1 of iteration 1 by 0..4 passing priors, the number of such tasks, the published Iter1
ITER1 = {
    "opus/swe": ([0.1, 33.4, 55.5, 85.4, 99.2], [81, 29, 25, 39, 326], 76.04),
    "opus/tb": ([1.8, 31.2, 43.0, 78.5, 94.1], [31, 4, 8, 9, 36], 52.49),
    "pro/swe": ([0.6, 36.9, 38.4, 87.0, 99.8], [87, 22, 22, 36, 333], 76.16),
    "pro/tb": ([3.8, 37.5, 45.8, 57.5, 93.1], [23, 7, 12, 5, 41], 56.89),
    "sonnet/swe": ([1.7, 18.8, 65.4, 88.1, 99.7], [94, 16, 28, 68, 294], 74.01),
    "sonnet/tb": ([3.0, 30.2, 58.0, 76.4, 91.7], [33, 6, 7, 9, 33], 50.0),
    "flash/swe": ([0.0, 34.7, 73.1, 88.1, 96.4], [93, 18, 20, 63, 306], 74.28),
    "flash/tb": ([1.0, 23.2, 68.1, 60.0, 91.0], [37, 7, 9, 5, 30], 43.68),
}


class Harness:
    """A harness of coin flips that keeps the contexts it was given."""

    def __init__(self, N, share=0.4):
        self.N, self.share, self.contexts = N, share, []

    def __call__(self, t, C):
        self.contexts.append(C)
        rng = random.Random(t)
        rows = [(task, i) for task in C for i in range(self.N)]
        return [{"task": task, "rollout": i, "outcome": rng.random() < self.share, "steps": t + 1} for task, i in rows]


def run(harness, *, tasks=("a", "b"), K=4, T=2, context="select", seed=0, V=8, G=2, spec="oracle"):
    """Records of the core, with the tournaments of rtv(), and the ballots of each selection."""
    ballots = []

    def select(t, R, S, keep):
        assert summarise(t, R) == S
        outcomes = rtv.by_task(R, [r["outcome"] for r in R])
        judge = rtv.simulated(spec, outcomes, seed, t0=0)
        kept = {task: sorted(o) for task, o in outcomes.items()}
        ballots.append([])
        settings = {"G": G, "V": V, "K": keep, "order": "balanced", "tie": "coin", "seed": seed}
        for record in rtv.rtv(kept, lambda b: ballots[-1].extend(b) or judge(b), **settings):
            kept = record["kept"]
        return kept

    def summarise(t, R):
        return rtv.by_task(R, [f"S{t}.{r['task']}.{r['rollout']}" for r in R])

    settings = {"N": harness.N, "K": K, "T": T, "context": context, "seed": seed}
    return list(pdr.pdr(list(tasks), harness, summarise, select, **settings)), ballots


# the published facts


@pytest.mark.parametrize("pair", ITER1)
def test_pdr_iter1_follows_from_the_context_table_but_for_sonnet_on_swe(pair):
    rates, counts, published = ITER1[pair]
    iter1 = mean_se([rate for rate, n in zip(rates, counts, strict=True) for _ in range(n)])[0]
    if pair == "sonnet/swe":  # a discrepancy of the paper, or of its transcription
        assert iter1 == pytest.approx(75.19, abs=0.005)
    else:
        assert iter1 == pytest.approx(published, abs=0.05)


def test_pdr_costs_32_rollouts_32_summaries_and_216_comparisons_a_task():
    harness = Harness(16)
    records, ballots = run(harness, tasks=["a"])
    assert [len(b) for b in ballots] == [96, 120]
    assert sum(len(r["rollouts"]) for r in records) == 32


@pytest.mark.parametrize(("flags", "said"), [
    ([], "96 rollout calls, 32 summary calls, 216 vote calls"),
    (["--diagnose"], "240 vote calls"),
    (["--context", "random"], "120 vote calls"),
    (["--T", "1"], "48 rollout calls, 16 summary calls, 120 vote calls"),
    (["--judge", "coin"], "96 rollout calls, 16 summary calls, 0 vote calls"),
    (["--compare", "trace"], "96 rollout calls, 16 summary calls, 216 vote calls"),
    (["--N", "1"], "6 rollout calls, 1 summary calls, 0 vote calls"),
    (["--T", "1", "--judge", "oracle"], "48 rollout calls, 0 summary calls, 0 vote calls"),
])  # fmt: skip
def test_pdr_estimate_says_the_calls_of_a_task(tmp_path, capsys, flags, said):
    assert pdr.main(["--problems", write_problems(tmp_path, 1), "--estimate", "--max-tokens", "10", *flags]) == 0
    out = capsys.readouterr().out
    assert said in out
    if not flags:
        assert "1 tasks, 32 rollouts" in out
        assert "at most 3760 completion tokens" in out  # 96 + 2 x 32 + 216 replies of 10 tokens


# contexts


def test_pdr_select_gives_all_rollouts_the_k_that_rtv_kept():
    harness = Harness(6)
    records, _ = run(harness, K=2)
    assert all(c == "" for contexts in harness.contexts[0].values() for c in contexts)
    for task in ("a", "b"):
        kept = records[0]["kept"][task]
        assert len(kept) == 2
        assert records[1]["priors"][task] == [kept] * 6
        assert len(set(harness.contexts[1][task])) == 1
        assert [f"S0.{task}.{i}\n" in harness.contexts[1][task][0] for i in range(6)] == [i in kept for i in range(6)]
        assert len(records[1]["kept"][task]) == 1


def test_pdr_random_draws_a_subset_of_its_own_for_each_rollout():
    harness = Harness(16)
    records, ballots = run(harness, context="random")
    assert len(ballots) == 1  # the final one: random needs no votes for its contexts
    drawn = records[1]["priors"]["a"]
    assert all(len(set(js)) == 4 for js in drawn)
    assert len(set(map(tuple, drawn))) > 8
    assert drawn != records[1]["priors"]["b"]
    for js, text in zip(drawn, harness.contexts[1]["a"], strict=True):
        assert [f"S0.a.{i}\n" in text for i in range(16)] == [i in js for i in range(16)]


def test_pdr_single_gives_each_its_own_whatever_k_is():
    harness = Harness(5)
    records, _ = run(harness, context="single", K=3)
    assert records[1]["priors"]["a"] == [[0], [1], [2], [3], [4]]
    assert [f"S0.a.{i}\n" in text for i, text in enumerate(harness.contexts[1]["a"])] == [True] * 5


def test_pdr_case_50_drawn_subsets_ignore_global_noise():
    case = CASES[50]["input"]

    def draw(noise):
        random.seed(noise)
        draw = f"{case['seed']}:a:0"
        return pdr.choose("random", list(range(case["n"])), K=case["k"], N=case["n"], draw=draw)

    assert draw(1) == draw(2)
    assert len(draw(1)) == 16
    assert {len(set(js)) for js in draw(1)} == {case["k"]}


def test_pdr_k_of_all_or_more_takes_everything():
    harness = Harness(3)
    records, ballots = run(harness, K=5)
    assert ballots[0] == []
    assert records[1]["priors"]["a"] == [[0, 1, 2]] * 3


def test_pdr_one_iteration_is_rtv_and_three_go_on():
    harness = Harness(4)
    assert [r["iteration"] for r in run(harness, T=1)[0]] == [0]
    records, ballots = run(Harness(4), T=3, K=2)
    assert [len(b) // 8 for b in ballots] == [4, 4, 6]  # two tasks: 4 -> 2, 4 -> 2, 4 -> 2 -> 1
    assert [len(r["kept"]["a"]) for r in records] == [2, 2, 1]


def test_pdr_names_a_task_without_rollouts():
    class Loses(Harness):
        def __call__(self, t, C):
            return [r for r in super().__call__(t, C) if r["task"] != "b"]

    with pytest.raises(ValueError, match=r"iteration 0 has no rollout of \['b'\]"):
        run(Loses(4), context="random")


def test_pdr_a_missing_rollout_has_no_summary_and_no_vote():
    class Loses(Harness):
        def __call__(self, t, C):
            return [r for r in super().__call__(t, C) if r["rollout"] != 2]

    harness = Loses(5)
    records, _ = run(harness, context="single")
    assert records[1]["priors"]["a"] == [[0], [1], [], [3], [4]]
    assert harness.contexts[1]["a"][2] == ""


@pytest.mark.parametrize("wrong", [{"K": 0}, {"T": 0}, {"context": "best"}])
def test_pdr_impossible_settings_are_an_error(wrong):
    with pytest.raises(ValueError, match="need N, K, T >= 1"):
        run(Harness(2), **wrong)


# rates


def test_measure_columns_are_those_of_the_paper():
    records, _ = run(Harness(16, share=0.3), tasks=[f"t{k}" for k in range(40)])
    m = measure(records, {})
    outcomes = [[r["outcome"] for r in record["rollouts"]] for record in records]
    assert m["iter0"] == pytest.approx(sum(outcomes[0]) / 640)
    assert m["iter1"] == pytest.approx(sum(outcomes[1]) / 640)
    assert m["iter0"] < m["sel_k"]
    assert m["final"] == m["coverage"][1]  # the oracle
    assert sum(m["pass_counts"][0].values()) == 40
    assert sum(k * n for k, n in m["pass_counts"][0].items()) == sum(outcomes[0])
    by_priors = m["by_passing_priors"]
    assert sum(rate * n for rate, n in by_priors.values()) == pytest.approx(sum(outcomes[1]))
    assert sum(k * n for k, (_, n) in by_priors.items()) / 4 / 640 == pytest.approx(m["sel_k"])
    assert m["steps"] == [1, 2]


def test_measure_leaves_a_task_out_of_all_columns_where_any_of_its_rollouts_is_ungraded():
    records, _ = run(Harness(4), tasks=["a", "b"], K=2)
    records[1]["rollouts"][0]["outcome"] = None
    m = measure(records, {})
    assert (m["tasks"], m["ungraded_tasks"], sum(m["pass_counts"][0].values())) == (2, 1, 1)
    for r in records[1]["rollouts"]:
        r["outcome"] = None
    none = measure(records, {})
    assert [none[c] for c in COLUMNS] == [None] * 4


def test_report_gives_all_four_columns_both_ways(capsys):
    """Task b has one ungraded rollout in the second iteration; as failed it counts in every column."""

    def record(t, priors, kept, **tasks):
        R = [
            {"task": task, "rollout": i, "outcome": o, "steps": 1}
            for task, os in tasks.items()
            for i, o in enumerate(os)
        ]
        return {"iteration": t, "rollouts": R, "priors": dict.fromkeys(tasks, priors), "kept": kept}

    records = [
        record(0, [[], []], {"a": [0], "b": [0]}, a=[True, False], b=[True, True]),
        record(1, [[0], [0]], {"a": [1], "b": [1]}, a=[True, True], b=[False, None]),
    ]
    m, failed = measure(records, {}), measure(as_failed(records), {})
    assert [m[c] for c in COLUMNS] == [0.5, 1.0, 1.0, 1.0]
    assert [failed[c] for c in COLUMNS] == [0.75, 1.0, 0.5, 0.5]
    pdr.report(m | {"usage": {}}, failed, 2)
    said = capsys.readouterr().out.split("\n")
    assert said[:3] == [
        "2 tasks, 1 left out for an ungraded rollout",
        "                    Iter0  Sel-K  Iter1  Final",
        "pass@1 %             50.0  100.0  100.0  100.0",
    ]
    assert said[4] == "ungraded as failed   75.0  100.0   50.0   50.0"


def test_sel_k_of_random_contexts_is_the_share_of_passing_priors():
    before = {"a": {0: True, 1: False, 2: False}}
    assert of_priors(before, {"a": [[0, 1], [1, 2]]})[0] == 0.25
    after = {"a": {0: True, 1: False}}
    assert passing_priors(before, after, {"a": [[0, 1], [1, 2]]}) == {0: (0.0, 1), 1: (1.0, 1)}


# the script


def write_problems(folder, n):
    """Function problems in HumanEval's format, without a public example: times1(x), times2(x), ..."""
    rows = []
    for k in range(1, n + 1):
        prompt = f'def times{k}(x):\n    """Return {k} times x."""\n'
        rows.append({"task_id": f"times{k}", "prompt": prompt, "entry_point": f"times{k}"})
        rows[-1] |= {
            "canonical_solution": f"    return {k} * x\n",
            "test": f"def check(f):\n    assert f(2) == {2 * k}\n",
        }
    (folder / "problems.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    return str(folder / "problems.jsonl")


def model(messages, seed):
    """Solves a task by chance, or by a summary that says how; summarises that; votes for such a summary."""
    text = "\n".join(m["content"] for m in messages)
    if "Summarise the attempt" in text:
        return "recipe" if "RIGHT" in text else "nothing"
    if "Final verdict" in text:
        return f"Final verdict: Solution {1 + (text.find('recipe') > text.find('nothing') > -1)}"
    k, right = text.partition("def times")[2][0], seed % 2 == 0 or "recipe" in text
    return f"```python\ndef times{k}(x):\n    return x * {k if right else 0}  # {'RIGHT' if right else 'wrong'}\n```"


def script(*argv, code=0):
    ran = subprocess.run([sys.executable, str(ROOT / "pdr.py"), *argv], capture_output=True, text=True, timeout=120)
    assert ran.returncode == code, ran.stderr
    return ran.stdout


def lines(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").split("\n")[:-1]]


def test_pdr_script_improves_resumes_and_replays(tmp_path):
    run = tmp_path / "run"
    with FakeServer(model) as server:
        argv = ["--problems", write_problems(tmp_path, 2), "--url", server.url, "--N", "4", "--K", "2", "--V", "2"]
        argv += ["--turns", "1", "--run", str(run), "--seed", "3", "--diagnose"]
        out = script(*argv, "--plot")
        calls = len(server.requests)
        whole = (run / "log.jsonl").read_bytes()
        (run / "log.jsonl").write_bytes(whole[: len(whole) // 2])  # killed in the middle of a line
        script(*argv)
        again = lines(run)[-1]
        assert calls < len(server.requests) < 2 * calls
        assert len({body["seed"] for body in server.requests}) == calls  # a seed of its own for each unit
        assert not any("outcome" in json.dumps(body) for body in server.requests)
    first = json.loads(whole.split(b"\n")[-2])
    timeless = [{k: v for k, v in r.items() if k not in ("wall_s", "t_s", "line_sha256")} for r in (first, again)]
    assert timeless[0] == timeless[1]
    assert first["iter0"] < first["iter1"] == first["final"] == 1
    assert first["usage"]["summary"]["calls"] == 16
    assert "Iter0  Sel-K  Iter1  Final" in out
    assert (run / "figure.png").stat().st_size > 1000
    assert "0 differences" in script("--run", str(run), "--replay")
    assert "0 differences" in script("--run", str(run), "--replay", "--execute")


@pytest.mark.parametrize("harness", ["swe_bench", "terminal_bench"])
def test_pdr_script_refuses_a_harness_without_a_server(harness, capsys):
    with pytest.raises(common.UserError, match="needs --run, --url and --model"):
        pdr.main(["--harness", harness, "--problems", "x", "--run", "runs/none"])
    with pytest.raises(common.UserError, match="has no --execute"):
        pdr.check_harness(argparse.Namespace(harness=harness, execute=True, replay=True))
    with pytest.raises(SystemExit):
        pdr.parse(["--context", "random", "--diagnose"])
    assert "no tournament before the last one" in capsys.readouterr().err


def test_pdr_fields_are_those_of_the_benchmark():
    assert pdr.parse(["--harness", "terminal_bench", "--problems", "x"]).fields == "tb"
    assert pdr.parse(["--harness", "swe_bench", "--problems", "x"]).fields == "swe"
    assert pdr.parse(["--harness", "swe_bench", "--problems", "x", "--fields", "tb"]).fields == "tb"


def test_pdr_what_the_agents_of_a_harness_spend_counts_for_the_limit(tmp_path):
    rollouts = [{"steps": 1, "tokens": 9, "cost_usd": cost} for cost in (0.5, 0.25)]
    pdr.ADAPTERS["bill"] = ModuleType("bill")
    vars(pdr.ADAPTERS["bill"])["harness"] = lambda **_: lambda *_: rollouts
    try:
        for limit, stops in ((0.75, True), (0.76, False)):
            argv = ["--run", str(tmp_path / str(limit)), "--url", "http://x", "--max-cost-usd", str(limit)]
            args = pdr.parse(argv)
            args.harness = "bill"
            log = common.Log(args.run, "pdr.py", vars(args), max_cost_usd=limit)
            with pytest.raises(common.Stopped, match="is spent") if stops else contextlib.nullcontext():
                assert pdr.of_harness(args, log)(0, {}) == rollouts
            assert lines(tmp_path / str(limit))[-1]["rollouts"] == rollouts  # paid for, and kept
    finally:
        del pdr.ADAPTERS["bill"]


def test_pdr_goes_on_where_the_cost_of_a_rollout_is_unknown_and_says_so(tmp_path, capsys):
    rollouts = [{"steps": 1, "tokens": 9, "cost_usd": cost} for cost in (0.5, None, None)]
    log = common.Log(None, "pdr.py", {}, max_cost_usd=1.0)
    pdr.spend(log, 0, rollouts)
    assert log.cost == 0.5
    said = "warning: the cost of 2 of 3 rollouts of iteration 0 is unknown: not counted in --max-cost-usd\n"
    assert capsys.readouterr().err == said
    with pytest.raises(common.Stopped, match=r"--max-cost-usd 1\.0 is spent \(1\.0000, iteration 1\)"):
        pdr.spend(log, 1, rollouts)
    argv = ["--harness", "swe_bench", "--problems", "x", "--run", str(tmp_path / "run"), "--url", "http://x"]
    with pytest.raises(common.UserError, match="needs --price-in and --price-out"):  # before a rollout is paid for
        pdr.main([*argv, "--model", "m", "--max-cost-usd", "1"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("status", ["missing", "no_trajectory", "unreadable", "Submitted"])
def test_summarise_asks_nothing_about_a_rollout_that_left_nothing(status):
    asked = []

    def ask(units, _):
        asked.extend(units)
        return [common.Reply("seen", "stop", 1, 1)] * len(units)

    there = {"task": "a", "rollout": 0, "problem": "p", "transcript": "x", "answer": None, "status": "ok"}
    gone = {**there, "rollout": 1, "transcript": "", "answer": None, "status": status}
    patch = {**gone, "rollout": 3, "answer": "a patch"}
    rollouts = [there, gone, {**gone, "rollout": 2, "answer": "\n"}, patch]
    stub = f"{rtv.STUB}the rollout left nothing]"
    assert rtv.summarise(rollouts, ask, fields="swe", cut_chars=400, t=0) == ["seen", stub, stub, "seen"]
    assert asked == [("summary", "a", 0, 0), ("summary", "a", 0, 3)]
