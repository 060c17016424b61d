"""SWE-Bench adapter: published samples, the cases, a stand-in agent, and mini-SWE-agent itself without a container."""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluators import harnesses, swe_bench, trajectories
from fake_server import FakeServer
from harness_e2e import (
    CASES,
    TASK,
    TESTS,
    TOY,
    local_agent,
    run_adapter,
    scripted,
    stand_in,
    tool,
    unreadable,
    write_source,
)

PATCH = "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"


def trajectory(end: str = "Submitted", patch: str | None = PATCH, says: str = "look") -> dict:
    """A finished run of one step in the form of mini-swe-agent-1.1."""
    usage = {"usage": {"prompt_tokens": 90, "completion_tokens": 10}}
    step = {"role": "assistant", "content": says, "extra": {"actions": [{"command": "cat f"}], "response": usage}}
    info = {"exit_status": end, "submission": patch, "model_stats": {"instance_cost": 0.0, "api_calls": 1}}
    talk = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "p"},
        step,
        {"role": "tool", "content": "a"},
    ]
    return {"info": info | {"config": {"model": {"model_name": "openai/m"}}}, "messages": [*talk, {"role": "exit"}]}


def leave(run: Path, runs: dict[str, dict | list | None]) -> Path:
    """A folder as mini-SWE-agent leaves it; None is an environment that failed: an empty patch and no trajectory."""
    preds = {}
    for task, data in runs.items():
        patch = data["info"]["submission"] if isinstance(data, dict) else ""
        preds[task] = {"instance_id": task, "model_name_or_path": "openai/m", "model_patch": patch}
        if data is not None:
            (run / task).mkdir(parents=True)
            (run / task / f"{task}.traj.json").write_text(json.dumps(data))
    run.mkdir(parents=True, exist_ok=True)
    (run / "preds.json").write_text(json.dumps(preds))
    return run


def report(logs: Path, run: str, task: str, patch: str, **verdict) -> None:
    out = logs / "run_evaluation" / run / "openai__m" / task
    out.mkdir(parents=True)
    (out / "patch.diff").write_text(patch)
    (out / "report.json").write_text(json.dumps({task: verdict}))


def test_load_reads_all_of_the_published_format(shared):
    rollouts = swe_bench.load(shared / "data/harness/swebench/it0")
    keys = ("task", "rollout", "status", "outcome", "steps", "tokens", "cost_usd")
    assert [tuple(r[k] for k in keys) for r in rollouts] == [
        ("tiny__calc-1", 0, "Submitted", True, 6, 1470, None),
        ("tiny__calc-1", 1, "Submitted", False, 6, 1470, None),
    ]
    for r in rollouts:
        assert list(r) == list(harnesses.ROLLOUT)
        assert r["problem"] == "calc.mean([1, 2, 3]) returns 3.0, it should return 2.0."
        assert r["transcript"].count("] agent\n") == 6
        assert r["transcript"].count("] output\n") == 5
        assert r["answer"].startswith("diff --git a/calc.py")
    (later,) = swe_bench.load(shared / "data/harness/swebench/it1")
    assert (later["steps"], later["outcome"], later["problem"]) == (4, True, rollouts[0]["problem"])


def test_load_reads_v1_lists_of_messages_and_text_actions(shared):
    rollouts = {r["task"]: r for r in swe_bench.load(shared / "data/harness/mini")}
    steps = {"deterministic_local": 4, "upstream_github_issue": 10, "upstream_local": 2}
    assert {task: r["steps"] for task, r in rollouts.items()} == steps
    assert {r["outcome"] for r in rollouts.values()} == {None}
    assert rollouts["deterministic_local"]["cost_usd"] == 0.04
    assert rollouts["upstream_local"]["status"] == "unknown"
    assert all(r["transcript"] and "Recommended Workflow" not in r["transcript"] for r in rollouts.values())


def test_transcript_is_the_same_bytes_when_every_grade_is_flipped(shared, tmp_path):
    shutil.copytree(shared / "data/harness/swebench", tmp_path / "swe", copy_function=shutil.copyfile)
    before = swe_bench.load(tmp_path / "swe/it0")
    flip = {"true": "false", "false": "true", "PASSED": "FAILED", "FAILED": "PASSED"}
    grades = [p for folder in ("logs", "reports") for p in (tmp_path / "swe" / folder).rglob("*.*") if p.is_file()]
    for path in (p for p in grades if p.suffix in (".json", ".txt", ".log")):
        path.write_text(re.sub(r'(?<="resolved": )\w+|PASSED|FAILED', lambda m: flip[m[0]], path.read_text()))
    after = swe_bench.load(tmp_path / "swe/it0")
    assert [r["outcome"] for r in after] == [not r["outcome"] for r in before]
    assert [{**r, "outcome": 0} for r in after] == [{**r, "outcome": 0} for r in before]


def test_mini_case_82_null_contents_parts_and_tool_calls():
    case = CASES[82]
    r, expected = trajectories.mini(case["input"]["json"]), case["expected"]
    assert (r["steps"], r["status"]) == (expected["steps"], expected["exit_status"])
    assert r["patch"].startswith(expected["patch_startswith"])
    assert r["cost_usd"] in expected["cost_usd_any_of"]
    assert all(text in r["transcript"] for text in expected["rendered_contains"])
    assert r["problem"] == "add() is wrong."


def test_clean_patch_case_88_fences_and_the_final_newline():
    case = CASES[88]
    cleaned = [swe_bench.clean_patch(p) for p in case["input"]["patches"]]
    assert cleaned == case["expected"]["model_patch"]
    assert [not p for p in cleaned] == case["expected"]["empty_flags"]
    assert swe_bench.clean_patch(PATCH + " \n") == PATCH + " \n"  # an empty context line is part of the patch


@pytest.mark.parametrize(
    ("says", "typed", "shown"),
    [
        ("I will list the files with ls later.", ["ls"], "I will list the files with ls later.\n$ ls"),
        ("look", ["cat f", "cat f"], "look\n$ cat f\n$ cat f"),
        ("go\n```mswea_bash_command\ncat f\n```", ["cat f"], "go\n```mswea_bash_command\ncat f\n```"),
        ("go\n```bash\ncat f | wc\n```", ["cat f"], "go\n```bash\ncat f | wc\n```\n$ cat f"),
        ("go", [""], "go"),
    ],
)
def test_mini_shows_every_command_that_ran(says, typed, shown):
    actions = {"actions": [{"command": c} for c in typed]}
    talk = [{"role": "user", "content": "p"}, {"role": "assistant", "content": says, "extra": actions}]
    assert trajectories.mini({"messages": talk})["transcript"] == f"[1] agent\n{shown}"


def test_scores_are_none_where_swebench_wrote_no_report(shared, tmp_path):
    base = shared / "data/harness/swebench"
    shutil.copytree(base / "logs", tmp_path / "logs", copy_function=shutil.copyfile)
    for run, verdict in {"it0-r0": True, "it0-r1": False, "garbage": None, "empty": None}.items():
        patch = "".join(p.read_text() for p in (base / "logs/run_evaluation" / run).rglob("patch.diff"))
        preds = swe_bench.write_predictions([{"task": "tiny__calc-1", "answer": patch}], tmp_path / f"{run}.json")
        assert swe_bench.scores(preds) == {"tiny__calc-1": verdict}


def test_scores_never_take_the_verdict_on_another_patch(tmp_path):
    report(tmp_path / "logs", "old", "t", PATCH, resolved=True)
    other = swe_bench.write_predictions([{"task": "t", "answer": PATCH.replace("+b", "+c")}], tmp_path / "other.json")
    same = swe_bench.write_predictions([{"task": "t", "answer": PATCH.rstrip()}], tmp_path / "same.json")
    assert swe_bench.scores(other) == {"t": None}
    assert swe_bench.scores(same) == {"t": True}
    assert swe_bench.run_id(other) != swe_bench.run_id(same)


@pytest.mark.parametrize(
    ("verdict", "outcome", "why"),
    [
        ({"resolved": False, "infra_failure": True}, None, "infra_failure"),
        ({"resolved": None}, None, "empty report"),
        ({}, None, "empty report"),
        ({"resolved": False, "infra_failure": False}, False, ""),
        ({"resolved": True, "infra_failure": True}, True, ""),
    ],
)
def test_a_report_without_a_verdict_is_named_and_forgotten_so_that_the_patch_is_graded_again(
    verdict, outcome, why, tmp_path
):
    run = leave(tmp_path / "r00", {"t": trajectory()})
    report(run / "logs", "x", "t", PATCH, **verdict)
    (run / "t/report.json").write_text("{}")  # the agent's own file: no report of swebench's
    assert swe_bench.scores(run / "preds.json") == {"t": outcome}
    assert [(r["status"], r["outcome"]) for r in swe_bench.load(tmp_path)] == [("Submitted", outcome)]
    said = [f"t rollout 0: Submitted: no verdict ({why}): {swe_bench.trajectories.UNGRADED}"] if why else []
    assert swe_bench.check(tmp_path) == said
    gone = ["r00/logs/run_evaluation/x/openai__m/t/report.json"] if why else []
    assert swe_bench.forget_failed(tmp_path) == gone
    assert (run / "t/report.json").exists()
    assert swe_bench.check(tmp_path) == []


def test_write_predictions_refuses_two_patches_of_one_task(tmp_path):
    with pytest.raises(ValueError, match="two patches chosen for t"):
        swe_bench.write_predictions([{"task": "t", "answer": "a"}, {"task": "t", "answer": "b"}], tmp_path / "p.json")


@pytest.mark.parametrize(
    ("used", "limits", "status"),
    [
        ({"instance_cost": 3.01, "api_calls": 40}, {"step_limit": 250, "cost_limit": 3.0}, "cost_limit"),
        ({"instance_cost": 3.0, "api_calls": 40}, {"step_limit": 0, "cost_limit": 3.0}, "cost_limit"),
        ({"instance_cost": 2.99, "api_calls": 250}, {"step_limit": 250, "cost_limit": 3.0}, "step_limit"),
        ({"instance_cost": 9.0, "api_calls": 250}, {"step_limit": 250, "cost_limit": 0}, "step_limit"),
        ({"instance_cost": 3.5, "api_calls": 250}, {"step_limit": 250, "cost_limit": 3.0}, "cost_limit"),
        ({"instance_cost": 0.0, "api_calls": 1}, {}, "LimitsExceeded"),
    ],
)
def test_load_gives_each_limit_a_status_of_its_own_and_no_grade(used, limits, status, tmp_path):
    limited = trajectory("LimitsExceeded", "")
    limited["info"]["model_stats"] = used
    limited["info"]["config"]["agent"] = limits
    run = leave(tmp_path / "r00", {"t": limited})
    (r,) = swe_bench.load(tmp_path)
    assert (r["status"], r["outcome"], r["answer"], r["tokens"]) == (status, None, "", 100)
    assert r["cost_usd"] == (used["instance_cost"] or None)
    assert swe_bench.forget_failed(run) == []
    assert swe_bench.check(tmp_path) == [f"t rollout 0: empty patch ({status})"]


def test_load_names_the_limit_of_a_whole_process_and_a_killed_agent_which_are_retried(tmp_path):
    spent, killed = trajectory("RuntimeError", ""), trajectory("", None)
    spent["info"]["exception_str"] = "Global cost/call limit exceeded: $5.0100 / 80"
    run = leave(tmp_path / "r00", {"a": spent, "b": killed})
    assert [r["status"] for r in swe_bench.load(tmp_path)] == ["global_limit", "unfinished"]
    failed = "the environment, the server or the grading failed"
    assert swe_bench.check(tmp_path) == [
        f"a rollout 0: {failed} (global_limit): {harnesses.AGAIN}",
        f"b rollout 0: {failed} (unfinished): {harnesses.AGAIN}",
    ]
    assert swe_bench.forget_failed(run) == ["a", "b"]


def test_forget_failed_takes_out_what_the_agent_did_not_end_itself(tmp_path):
    runs = {
        "ok": trajectory(),
        "no_env": None,
        "api": trajectory("APIConnectionError", ""),
        "limit": trajectory("TimeExceeded", ""),
    }
    run = leave(tmp_path / "r00", {**runs, "killed": trajectory("", None), "v1": trajectory()["messages"]})
    assert swe_bench.forget_failed(run) == ["api", "killed", "no_env"]
    assert sorted(json.loads((run / "preds.json").read_text())) == ["limit", "ok", "v1"]


def test_forget_failed_restores_what_a_kill_tore_from_the_trajectories(tmp_path):
    run = leave(tmp_path / "r00", {"a": trajectory(), "b": trajectory("LimitsExceeded", "")})
    whole = json.loads((run / "preds.json").read_text())
    (run / "preds.json").write_text('{"a": {"instance_')
    assert swe_bench.forget_failed(run) == []
    assert json.loads((run / "preds.json").read_text()) == whole


def test_load_names_missing_and_unreadable_trajectories(tmp_path):
    run = leave(tmp_path / "r03", {"a": None, "b": trajectory()})
    (run / "b/b.traj.json").write_text("{")
    assert [(r["rollout"], r["status"], r["transcript"]) for r in swe_bench.load(tmp_path)] == [
        (3, "no_trajectory", ""),
        (3, "unreadable", ""),
    ]
    with pytest.raises(ValueError, match=r"no preds\.json that can be read, and no \.traj\.json"):
        swe_bench.load(TOY)


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("preds.json", '{"a": 5}', "a is 5"),
        ("preds.json", '{"a": {"model_patch": ["x"]}}', "model_patch is ['x']"),
        ("preds.json", "[]", "preds.json is []"),
        ("preds.json", '{"a": {"instance_', "preds.json: Unterminated string starting at: line 1 column 8 (char 7)"),
        ("a/a.traj.json", "[1, 2]", "messages[0] is 1"),
        ("a/a.traj.json", "{}", "the trajectory is empty"),
        ("a/a.traj.json", '{"messages": [{"role": "user", "content": {"x": 1}}]}', "content is {'x': 1}"),
        ("a/a.traj.json", '{"info": {"model_stats": {"instance_cost": NaN}}}', "instance_cost is nan"),
        ("a/a.traj.json", "[" * 100_000, "a.traj.json: maximum recursion depth exceeded"),
        ("logs/run_evaluation/x/openai__m/a/report.json", '{"a": {"resolved": "no"}}', "resolved is 'no'"),
        ("logs/run_evaluation/x/openai__m/a/report.json", "[]", "report.json is []"),
    ],
)
def test_load_calls_a_rollout_unreadable_and_check_says_why(file, text, why, tmp_path):
    run = leave(tmp_path / "r00", {"a": trajectory()})
    report(run / "logs", "x", "a", PATCH, resolved=True)
    (run / file).write_text(text)
    leave(tmp_path / "r01", {"a": trajectory(says="other")})
    first, second = swe_bench.load(tmp_path)
    assert (first["status"], first["outcome"], second["status"]) == ("unreadable", None, "Submitted")
    (said,) = swe_bench.check(tmp_path)
    assert said.startswith(f"a rollout 0: unreadable: {why}")


def test_load_survives_any_part_of_another_kind(tmp_path):
    run = leave(tmp_path / "r00", {"a": trajectory()})
    report(run / "logs", "x", "a", PATCH, resolved=False, infra_failure=False)
    assert unreadable(swe_bench, tmp_path, lambda: swe_bench.forget_failed(run)) > 100


def test_load_survives_any_part_of_another_kind_in_the_published_samples(shared, tmp_path):
    for name in ("swebench/it0/r0", "swebench/logs/run_evaluation/it0-r0"):
        shutil.copytree(shared / "data/harness" / name, tmp_path / Path(name).name, copy_function=shutil.copyfile)
    (tmp_path / "it0-r0").rename(tmp_path / "r0/logs")
    run = tmp_path / "r0"
    assert unreadable(swe_bench, run, lambda: swe_bench.forget_failed(run), step=29) > 10


def test_forget_failed_mends_what_is_torn_and_keeps_what_was_paid_for(tmp_path):
    run = leave(tmp_path / "r00", {"a": trajectory(), "b": trajectory("LimitsExceeded", "")})
    whole = json.loads((run / "preds.json").read_text())
    report(run / "logs", "x", "a", PATCH, resolved=True)
    torn = run / "logs/run_evaluation/x/openai__m/a/report.json"
    torn.write_text('{"a"')
    gone = ["logs/run_evaluation/x/openai__m/a/report.json"]
    for text in ("[]", '{"a": 5, "b": {"model_patch": 1}}', "\xff"):
        (run / "preds.json").write_bytes(text.encode("latin-1"))
        assert [swe_bench.forget_failed(run), swe_bench.forget_failed(run)] == [gone, []]
        torn.write_text('{"a"')
        assert json.loads((run / "preds.json").read_text()) == whole
    torn.unlink()
    (run / "b/b.traj.json").write_text("[1, 2]")
    (run / "a/a.traj.json").write_text('{"info": 5}')
    assert swe_bench.forget_failed(run) == ["a"]  # v1 says nothing of its end, so what is predicted stays


def test_check_finds_twins_gaps_and_failures(tmp_path):
    leave(tmp_path / "r00", {"a": trajectory(), "b": trajectory("APIError", "")})
    leave(tmp_path / "r01", {"a": trajectory(), "c": trajectory(says="other")})
    said = swe_bench.check(tmp_path)
    assert "a rollout 1: the same transcript as a rollout 0 (one seed for both?)" in said
    assert any(line.startswith("b rollout 0:") and "APIError" in line for line in said)
    assert [line for line in said if "no rollout" in line] == ["b: no rollout 1", "c: no rollout 0"]


def test_cli_checks_with_error_counts_and_names_a_mistake_in_one_line(tmp_path):
    leave(tmp_path / "r00", {"a": trajectory(), "b": None})
    report(tmp_path / "logs", "x", "a", PATCH, resolved=True)
    done = run_adapter("swe_bench", "check", str(tmp_path))
    assert done.returncode == 1
    assert "2 rollouts of 2 tasks: 1 Submitted, 1 no_trajectory" in done.stdout
    assert "pass@1 100.0% (1 of 1 graded; 50.0% with 1 ungraded as failed)" in done.stdout
    wrong = run_adapter("swe_bench", "check", str(tmp_path / "none"))
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    lines = run_adapter("swe_bench", "load", str(tmp_path)).stdout.split("\n")[:-1]
    assert [json.loads(line)["task"] for line in lines] == ["a", "b"]


def test_cli_forget_says_what_it_took_out_and_scores_gives_the_verdicts_on_a_file(tmp_path):
    leave(tmp_path / "it0/r00", {"a": trajectory(), "b": None})
    leave(tmp_path / "it0/r01", {"a": trajectory("APIError", "")})
    assert run_adapter("swe_bench", "forget", str(tmp_path / "it0")).stdout == "2 forgotten\nr00/b\nr01/a\n"
    assert run_adapter("swe_bench", "forget", str(tmp_path / "it0")).stdout == "0 forgotten\n"
    assert [json.loads((tmp_path / f"it0/r0{i}/preds.json").read_text()).keys() for i in (0, 1)] == [{"a"}, set()]
    report(tmp_path / "it0/r00/logs", "x", "a", PATCH, resolved=True)
    chosen = [{"task": "a", "answer": PATCH}, {"task": "b", "answer": None}]
    file = swe_bench.write_predictions(chosen, tmp_path / "chosen.json")
    verdicts = '{"task": "a", "outcome": true}\n{"task": "b", "outcome": null}\n'
    rate = "pass@1 100.0% (1 of 1 graded; 50.0% with 1 ungraded as failed)\n"
    assert run_adapter("swe_bench", "scores", str(file)).stdout == verdicts + rate
    for todo, name in (("forget", "none"), ("scores", "none.json"), ("scores", "it0")):
        wrong = run_adapter("swe_bench", todo, str(tmp_path / name))
        assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)


def test_command_gives_each_index_its_seed_and_server():
    kw = {"data": Path("ds"), "model": "m", "temperature": 0.7, "workers": 4, "url": ["http://a:1", "http://b:2/v1/"]}
    argv = swe_bench.command(1, out=Path("r01"), seed=7, backend="podman", extra=("-c", "x={out}/y"), **kw)
    config = [b for a, b in itertools.pairwise(argv) if a == "-c"]
    assert config[0] == "swebench.yaml"
    assert {"model.model_kwargs.api_base=http://b:2/v1", "model.model_kwargs.seed=7", "x=r01/y"} <= set(config)
    assert {"environment.executable=podman", "docker", "openai/m"} <= {*config, *argv}
    kw["model"] = "openai/gpt-oss-20b"  # litellm takes the first openai/ away, the server sees the rest
    assert "openai/openai/gpt-oss-20b" in swe_bench.command(0, out=Path("r00"), seed=0, backend="docker", **kw)
    assert "swerex_modal" in swe_bench.command(0, out=Path("r00"), seed=0, backend="modal", **kw)


def test_cli_command_derives_the_seed_of_each_index_as_the_harness_does(tmp_path):
    data = write_source(tmp_path / "ds", "img")
    asks = ["command", "--data", str(data), "--url", "http://a:1", "--model", "m"]
    for more, out, seed in [
        ([], "r00", 0),
        (["--index", "3"], "r03", 3),
        (["--index", "3", "--t", "1"], "r03", 19),
        (["--index", "3", "--t", "1", "--N", "4", "--seed", "7", "--out", "x"], "x", 7_000_007),
    ]:
        printed = shlex.split(run_adapter("swe_bench", *asks, *more).stdout)
        assert printed[:4] == ["mini-extra", "swebench", "--subset", str(data)]
        assert printed[printed.index("-o") + 1] == out
        assert f"model.model_kwargs.seed={seed}" in printed
    run = leave(tmp_path / "r02", {TASK: trajectory()})
    lines = run_adapter("swe_bench", *asks, "--index", "2", "--out", str(run)).stdout.split("\n")[:-1]
    assert len(lines) == 2
    assert lines[1].startswith("python -m swebench.harness.run_evaluation -d ")


@pytest.mark.parametrize("adapter", ["swe_bench", "terminal_bench"])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([], "the following arguments are required: --data, --url, --model"),
        (["--data", "nowhere"], "--data nowhere: no such folder"),
        (["--url", "foo"], "--url foo: not an http(s) address"),
        (["--index", "-1"], "--index -1: must be in [0, N - 1] with --N 16"),
        (["--index", "16"], "--index 16: must be in [0, N - 1] with --N 16"),
        (["--t", "-1"], "--t -1: must be at least 0"),
        (["--seed", "-1"], "--seed -1: must be at least 0"),
        (["--workers", "0"], "--workers 0: must be at least 1"),
        (["--temperature", "nan"], "--temperature nan: must be in [0, 10]"),
        (["--temperature", "hot"], "argument --temperature: invalid float value: 'hot'"),
    ],
)
def test_cli_command_refuses_what_no_run_can_mean_in_one_line(adapter, wrong, said, tmp_path):
    data = write_source(tmp_path / "ds", "img") if adapter == "swe_bench" else TESTS
    asks = {"--data": str(data), "--url": "http://a:1", "--model": "m"} | dict([wrong] if wrong else [])
    done = run_adapter(adapter, "command", *(a for pair in asks.items() for a in pair if wrong))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"{adapter}.py")
    assert done.stderr.endswith(f": error: {said}\n")


def test_cli_errors_are_one_line_everywhere(tmp_path):
    (tmp_path / "ds").mkdir()
    command = ["command", "--data", str(tmp_path / "ds"), "--url", "http://a:1", "--model", "m"]
    for argv in ([], ["chekc"], ["check"], ["load", "a", "b"], ["load", str(tmp_path)], command):
        done = run_adapter("swe_bench", *argv)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), argv
    (tmp_path / "ds/test.jsonl").write_text("{\n")
    assert f"{tmp_path}/ds/test.jsonl line 1: " in run_adapter("swe_bench", *command).stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"instance_id": "a", "problem_statement": "p"}\n\n{"instance_id": ', "line 3: Expecting value"),
        ('[{"instance_id": "a"}]', "line 1: needs the texts instance_id and problem_statement"),
        ('{"instance_id": "a"}', "line 1: needs the texts instance_id and problem_statement"),
        ('{"instance_id": "a", "problem_statement": 5}', "line 1: needs the texts"),
        ('{"instance_id": "a", "problem_statement": "p"}\n' * 2, "line 2: a stands there twice"),
        ("\xff", "line 1: 'utf-8' codec can't decode"),
        ("\n", " is empty"),
    ],
)
def test_pdr_names_file_and_line_of_a_data_set_that_is_wrong(text, said, tmp_path):
    (tmp_path / "own.jsonl").write_bytes(text.encode("latin-1"))
    asks = ["--problems", "own.jsonl", "--run", "run", "--url", "http://127.0.0.1:9", "--model", "m"]
    argv = [sys.executable, str(TESTS.parent / "pdr.py"), "--harness", "swe_bench", *asks]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "own.jsonl" in done.stderr
    assert said in done.stderr


def test_write_dataset_shares_one_folder_only_where_contexts_are_shared(tmp_path):
    source = write_source(tmp_path / "source", "img")
    odd = "{braces} {{ x }} {% y %} \u2028 line"
    assert swe_bench.write_dataset(source, {TASK: ["", ""]}, tmp_path / "a") == [tmp_path / "a/ds"] * 2
    folders = swe_bench.write_dataset(source, {TASK: [odd, "two"]}, tmp_path / "b")
    assert folders == [tmp_path / "b/ds00", tmp_path / "b/ds01"]
    (row,) = [json.loads(line) for line in (folders[0] / "test.jsonl").read_text("utf-8").splitlines()]
    assert odd in row["problem_statement"]
    assert row["image_name"] == row["image"] == "img"
    assert swe_bench.tasks(folders[0]) == swe_bench.tasks(source)
    with pytest.raises(ValueError, match="1 of 1 tasks are not in the data set"):
        swe_bench.write_dataset(source, {"nope": [""]}, tmp_path / "c")


AGENT = f"""
import json, pathlib, sys
out, count = pathlib.Path(sys.argv[sys.argv.index("-o") + 1]), pathlib.Path(__file__ + ".count")
tries = count.read_text() + "x" if count.exists() else "x"
count.write_text(tries)
if tries == "FAIL":
    sys.exit("no such image")
task = {TASK!r}
(out / task).mkdir(parents=True, exist_ok=True)
data = json.loads({json.dumps(trajectory())!r})
if len(tries) > 1:  # the first time the environment fails: a prediction and no trajectory
    (out / task / (task + ".traj.json")).write_text(json.dumps(data))
patch = data["info"]["submission"] if len(tries) > 1 else ""
prediction = {{"model_patch": patch, "instance_id": task, "model_name_or_path": "m"}}
(out / "preds.json").write_text(json.dumps({{task: prediction}}))
"""


def asks(tmp_path: Path, text: str = AGENT, **kw) -> tuple[Path, dict[str, Any]]:
    program = stand_in(tmp_path, text)
    served: dict[str, Any] = {"url": ["http://a"], "model": "m", "N": 1, "seed": 0, "temperature": 0.7, "workers": 2}
    where = {"run_dir": tmp_path / "run", "source": write_source(tmp_path / "source", "img"), "backend": "docker"}
    return program, served | where | {"agent": str(program)} | kw


def test_harness_retries_an_environment_that_failed_and_then_rests(tmp_path):
    program, kw = asks(tmp_path, grader=None)
    rollout = swe_bench.harness(**kw)
    (r,) = rollout(0, {TASK: [""]})
    assert (r["status"], r["outcome"], r["answer"]) == ("Submitted", None, PATCH)
    assert rollout(0, {TASK: [""]}) == [r]
    assert Path(f"{program}.count").read_text() == "xx"


GRADER = """
import json, pathlib, sys
def given(flag): return sys.argv[sys.argv.index(flag) + 1]
for task, p in json.loads(pathlib.Path(given("-p")).read_text()).items():
    out = pathlib.Path("logs/run_evaluation") / given("-id") / p["model_name_or_path"] / task
    if (out / "report.json").exists():
        continue
    out.mkdir(parents=True, exist_ok=True)
    (out / "patch.diff").write_text(p["model_patch"])
    (out / "report.json").write_text(json.dumps({task: {"resolved": True}}))
    with open(__file__ + ".count", "a") as count:
        count.write(task + " ")
"""


def test_harness_grades_only_what_has_no_verdict_when_a_rollout_comes_later(tmp_path):
    agent, kw = asks(tmp_path, "pass\n")  # what it leaves is put there below
    grader = stand_in(kw["source"], GRADER)
    kw |= {"agent": os.path.relpath(agent), "grader": os.path.relpath(grader)}  # relative to the caller's folder
    row = json.loads((kw["source"] / "test.jsonl").read_text())
    (kw["source"] / "test.jsonl").write_text("".join(json.dumps(row | {"instance_id": t}) + "\n" for t in "ab"))
    rollout, contexts = swe_bench.harness(**kw), {"a": [""], "b": [""]}
    leave(tmp_path / "run/it0/r00", {"a": trajectory()})
    first = rollout(0, contexts)
    assert [(r["status"], r["outcome"]) for r in first] == [("Submitted", True), ("missing", None)]
    leave(tmp_path / "run/it0/r00", {"b": trajectory(patch=PATCH.replace("+b", "+c"))})
    assert [r["outcome"] for r in rollout(0, contexts)] == [True, True]
    assert Path(f"{grader}.count").read_text() == "a b "


def test_harness_says_what_the_program_said_when_it_fails(tmp_path):
    _, kw = asks(tmp_path, "raise SystemExit('cannot pull the image')\n", grader=None)
    with pytest.raises(RuntimeError, match=r"ended with 1: cannot pull the image .*agent\.log"):
        swe_bench.harness(**kw)(0, {TASK: [""]})
    with pytest.raises(ValueError, match="2 contexts a task, but N=1"):
        swe_bench.harness(**kw)(0, {TASK: ["", ""]})
    kw["agent"] = str(tmp_path / "none")
    with pytest.raises(RuntimeError, match="is not installed here"):
        swe_bench.harness(**kw)(0, {TASK: [""]})
    for wrong in ({"workers": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match="need workers >= 1 and seed >= 0"):
            swe_bench.harness(**{**kw, **wrong})


def test_pdr_calls_what_a_harness_cannot_read_the_users_to_mend_and_names_the_harness(tmp_path):
    _, kw = asks(tmp_path)
    for more, code, said in [
        (["--seed", "-1"], 2, "pdr.py: --harness swe_bench: need workers >= 1 and seed >= 0: workers=4 seed=-1\n"),
        (["--agent", "no-such-agent"], 3, "pdr.py: no-such-agent is not installed here: name the program with --agent"),
    ]:
        own = ["--problems", str(kw["source"]), "--run", str(tmp_path / str(code)), "--N", "1", "--K", "1", *more]
        argv = [sys.executable, str(TESTS.parent / "pdr.py"), "--harness", "swe_bench", *own]
        argv += ["--url", "http://127.0.0.1:9", "--model", "m", "--judge", "coin"]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
        assert done.stderr.startswith(said)


def test_pdr_without_a_grade_prints_the_columns_with_ungraded_as_failed_and_leaves_the_patches(tmp_path):
    _, kw = asks(tmp_path)
    argv = [sys.executable, str(TESTS.parent / "pdr.py"), "--harness", "swe_bench", "--problems", str(kw["source"])]
    argv += ["--agent", kw["agent"], "--grader", "true", "--run", str(tmp_path / "run"), "--url", "http://127.0.0.1:9"]
    argv += ["--model", "m", "--N", "1", "--K", "1", "--T", "1", "--judge", "coin"]
    said = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split("\n")
    assert said[2].split() == ["pass@1", "%", "-", "-", "-", "-"]
    assert said[4].split() == ["ungraded", "as", "failed", "0.0", "-", "-", "0.0"]
    assert json.loads((tmp_path / "run/chosen.json").read_text())[TASK]["model_patch"] == PATCH


def test_run_logged_refuses_a_second_process_on_the_same_folder(tmp_path):
    log = tmp_path / "agent.log"
    with log.open("ab") as held:  # as a harness that outlived its killed parent holds it
        child = subprocess.Popen(
            [sys.executable, "-c", "import fcntl, sys; fcntl.flock(1, 2); input()"], stdin=-1, stdout=held
        )
    while subprocess.run(["flock", "-n", str(log), "true"], check=False).returncode == 0:
        pass
    with pytest.raises(RuntimeError, match="another process still writes"):
        harnesses.run_logged(["true"], log, tmp_path, {})
    child.communicate(b"\n")
    harnesses.run_logged(["true"], log, tmp_path, {})


@pytest.fixture(scope="module")
def mini() -> str:
    """mini-SWE-agent in an environment of its own, cached by version; outside CI a failing install is a skip."""
    try:
        return str(tool("mini-swe-agent") / "mini-extra")
    except subprocess.CalledProcessError as e:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"mini-swe-agent could not be installed: {e}")


def test_pdr_through_the_real_agent_shows_each_rollout_its_context_in_the_first_message(mini, tmp_path):
    write_source(tmp_path / "source", "none")
    own = ["--agent", str(local_agent(tmp_path, mini)), "--grader", f"{sys.executable} {TOY / 'grade.py'}"]
    own += ["--problems", str(tmp_path / "source"), "--harness", "swe_bench", "--backend", "local", "--workers", "2"]
    paper = ["--N", "2", "--T", "2", "--K", "1", "--V", "1", "--context", "single", "--run", str(tmp_path / "run")]
    with FakeServer(scripted) as server:
        argv = [sys.executable, str(TESTS.parent / "pdr.py"), *own, *paper, "--url", server.url, "--model", "openai/s"]
        subprocess.run(argv, check=True, cwd=tmp_path)
        assert {r["model"] for r in server.requests} == {"openai/s"}  # agent, summariser and judge: one name
        asked = [r for r in server.requests if "tools" in r]
        again = subprocess.run(argv, check=True, cwd=tmp_path, capture_output=True, text=True)
        assert len(asked) == len([r for r in server.requests if "tools" in r]), again.stdout
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text("utf-8").split("\n")[:-1]]
    first, second = (line["rollouts"] for line in lines if line["event"] == "rollouts")
    keys = ("rollout", "status", "outcome", "steps")
    assert [tuple(r[k] for k in keys) for r in first] == [(0, "Submitted", True, 5), (1, "Submitted", False, 5)]
    assert [tuple(r[k] for k in keys) for r in second] == [(0, "Submitted", True, 3), (1, "Submitted", True, 3)]
    assert second[0]["problem"] == first[0]["problem"] == (TOY / "instruction.md").read_text()
    assert not any(word in r["transcript"] for r in first for word in ("resolved", "outcome", "reward"))
    opening = {r["seed"]: r["messages"][1]["content"] for r in asked if len(r["messages"]) == 2}
    assert sorted(opening) == [0, 1, 2, 3]
    summaries = [set(re.findall(r"Summary (\d+): {{ tried }}", opening[seed])) for seed in sorted(opening)]
    assert [len(s) for s in summaries] == [0, 0, 1, 1]
    assert summaries[2] != summaries[3]
    assert (lines[-1]["event"], lines[-1]["iter0"], lines[-1]["iter1"]) == ("result", 0.5, 1.0)
    scores = run_adapter("swe_bench", "scores", str(tmp_path / "run/chosen.json")).stdout
    assert scores.startswith(f'{{"task": "{TASK}", "outcome": true}}\npass@1 100.0% (1 of 1 graded')
