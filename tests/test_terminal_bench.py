"""Terminal-Bench adapter: published samples, the cases, a stand-in for Harbor (the real one: tests/harness_e2e.py)."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from evaluators import harnesses, terminal_bench, trajectories
from harness_e2e import CASES, TESTS, run_adapter, stand_in, unreadable


def leave(
    run: Path,
    name: str,
    *,
    task: str = "t",
    reward: float | None = 1.0,
    error: str = "",
    steps: list | None = None,
    **kw,
) -> Path:
    """A trial folder as Harbor leaves it."""
    trial = run / name
    (trial / "agent").mkdir(parents=True)
    result = {"task_name": task, "trial_name": name, "started_at": f"2026-01-01T00:00:{len(list(run.iterdir())):02d}"}
    result |= {"verifier_result": None if reward is None else {"rewards": {"reward": reward}}}
    result |= {"exception_info": {"exception_type": error} if error else None, **kw}
    (trial / "result.json").write_text(json.dumps(result))
    atif = {
        "schema_version": "ATIF-v1.8",
        "steps": steps if steps is not None else [said("user", "do it"), said("agent", name)],
    }
    (trial / "agent/trajectory.json").write_text(json.dumps(atif | {"final_metrics": None}))
    return trial


def said(source: str, message: object, **kw) -> dict:
    return {"source": source, "message": message, **kw}


def test_load_reads_all_of_the_published_format(shared):
    rollouts = terminal_bench.load(shared / "data/harness/harbor")
    keys = ("task", "rollout", "status", "outcome", "steps", "tokens", "cost_usd")
    assert [tuple(r[k] for k in keys) for r in rollouts] == [
        ("bad-image", 0, "RuntimeError", None, 0, None, None),
        ("fix-mean", 0, "completed", True, 6, 1470, pytest.approx(0.00159)),
        ("fix-mean", 1, "completed", False, 6, 1470, pytest.approx(0.00159)),
        ("fix-mean", 2, "completed", True, 4, 780, pytest.approx(0.00086)),
        ("fix-mean", 3, "completed", True, 4, 780, None),
        ("fix-mean", 4, "completed", True, 4, 780, None),
        ("fix-mean", 5, "AgentTimeoutError", False, 0, 0, None),
        ("fix-mean", 6, "InternalServerError", None, 0, 0, None),
    ]
    assert [r["transcript"].count("] agent\n") for r in rollouts] == [r["steps"] for r in rollouts]
    assert [r["transcript"].count("] output\n") for r in rollouts] == [r["steps"] for r in rollouts]
    assert rollouts[1]["problem"] == "calc.mean([1, 2, 3]) in /app/calc.py returns 3.0; make it return 2.0."
    assert all(list(r) == list(harnesses.ROLLOUT) and "\r" not in r["transcript"] for r in rollouts)


def test_transcript_is_the_same_bytes_when_every_grade_is_flipped(shared, tmp_path):
    shutil.copytree(shared / "data/harness/harbor", tmp_path / "h", copy_function=shutil.copyfile)
    before = terminal_bench.load(tmp_path / "h")
    for path in [*tmp_path.rglob("result.json"), *tmp_path.rglob("reward.txt"), *tmp_path.rglob("test-stdout.txt")]:
        flipped = re.sub(r'("reward": |^)(1|0)(?:\.0)?', lambda m: f"{m[1]}{1 - int(m[2])}", path.read_text())
        path.write_text(flipped)
    after = terminal_bench.load(tmp_path / "h")
    assert [r["outcome"] for r in after] == [None if r["outcome"] is None else not r["outcome"] for r in before]
    assert [{**r, "outcome": 0} for r in after] == [{**r, "outcome": 0} for r in before]


def test_atif_case_84_lists_nulls_and_copied_steps():
    case = CASES[84]
    r, expected = trajectories.atif([case["input"]["json"]]), case["expected"]
    assert (r["steps"], r["cost_usd"], r["prompt_tokens"]) == (
        expected["agent_steps"],
        expected["cost_usd"],
        expected["prompt_tokens"],
    )
    assert all(text in r["transcript"] for text in expected["rendered_contains"])
    assert r["problem"] == "Create /app/out.txt"


def test_tally_case_86_unscored_is_neither_failed_nor_dropped(tmp_path):
    results, expected = CASES[86]["input"]["results"], CASES[86]["expected"]
    for k, r in enumerate(results):
        (tmp_path / r["trial_name"]).mkdir()
        (tmp_path / r["trial_name"] / "result.json").write_text(json.dumps({"started_at": str(k), **r}))
    outcomes = {p.name: terminal_bench.graded(p)["outcome"] for p in terminal_bench.trials(tmp_path)}
    t = harnesses.tally(outcomes.values())
    assert (t["graded"], t["ungraded"], t["rate"]) == (
        expected["scored"],
        expected["unscored"],
        expected["mean_reward_of_scored"],
    )
    assert outcomes["t__b"] is None
    assert t["rate_all"] == pytest.approx(1 / 3)
    assert terminal_bench.forget_failed(tmp_path) == expected["rerun"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t__a", "t__c"]


def test_load_goes_on_through_continuation_files_in_number_order(tmp_path):
    trial = leave(tmp_path / "r04", "t__x", steps=[said("user", "task"), said("agent", "one")])
    for n in (10, 2):
        copied = [said("user", "task", is_copied_context=True), said("agent", "one", is_copied_context=True)]
        more = {"steps": [*copied, said("agent", f"part {n}", metrics={"cost_usd": n})]}
        (trial / f"agent/trajectory.cont-{n}.json").write_text(json.dumps(more))
    (r,) = terminal_bench.load(tmp_path)
    assert r["transcript"] == "[1] agent\none\n\n[2] agent\npart 2\n\n[3] agent\npart 10"
    assert (r["rollout"], r["steps"], r["cost_usd"], r["answer"]) == (4, 3, 12, None)


def test_atif_renders_old_and_odd_forms():
    call = {"function_name": "bash_command", "arguments": {"keystrokes": "ls\n"}}
    parts = [{"type": "text", "text": "see"}, {"type": "image", "source": {"path": "a.png"}}]
    odd = [
        said("system", "rules"),
        said("user", "task"),
        said("agent", parts, tool_calls=[call, {"function_name": "stop"}]),
    ]
    odd += [said("agent", None, tool_calls=None, observation={"results": None}), said("user", "go on")]
    r = trajectories.atif([{"schema_version": "ATIF-v1.0", "steps": odd}])
    assert (
        r["transcript"]
        == "[0] system\nrules\n\n[1] agent\nsee\n[image]\n$ ls\n> stop {}\n\n[2] agent\n\n[2] user\ngo on"
    )
    assert (r["tokens"], r["cost_usd"], r["steps"]) == (None, None, 2)
    assert trajectories.atif([])["transcript"] == ""


def test_load_tells_a_turn_limit_from_a_finished_trial(tmp_path):
    limited = {"config": {"agent": {"kwargs": {"max_turns": 2}}}, "agent_result": {"metadata": {"n_episodes": 2}}}
    leave(tmp_path / "r00", "t__a", reward=0.0, **limited)
    done = [said("user", "p"), said("agent", "end", tool_calls=[{"function_name": "mark_task_complete"}])]
    leave(tmp_path / "r01", "t__b", steps=done, **limited)
    leave(tmp_path / "r02", "t__c", error="AgentTimeoutError", reward=0.0)
    (leave(tmp_path / "r03", "t__d") / "result.json").write_text("{")
    ends = [(r["status"], r["outcome"]) for r in terminal_bench.load(tmp_path)]
    assert ends == [("turn_limit", False), ("completed", True), ("AgentTimeoutError", False), ("unreadable", None)]


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("result.json", "[]", "result.json is []"),
        ("result.json", "{}", "result.json is empty"),
        ("result.json", '{"task_name": ', "result.json: Expecting value: line 1 column 15 (char 14)"),
        ("result.json", '{"verifier_result": {"rewards": {"reward": "1.0"}}}', "reward is '1.0'"),
        ("result.json", '{"verifier_result": {"rewards": {"reward": NaN}}}', "reward is nan"),
        ("result.json", '{"verifier_result": {"rewards": [1]}}', "rewards is [1]"),
        ("agent/trajectory.json", "[1, 2]", "trajectory.json is [1, 2]"),
        ("agent/trajectory.json", '{"steps": [3]}', "steps[0] is 3"),
        ("agent/trajectory.json", '{"steps": [{"source": "agent", "message": {"x": 1}}]}', "message is {'x': 1}"),
        ("agent/trajectory.json", '{"steps": [{"metrics": {"cost_usd": "1"}}]}', "cost_usd is '1'"),
        ("agent/trajectory.json", '{"steps"', "trajectory.json: Expecting ':' delimiter: line 1 column 9 (char 8)"),
    ],
)
def test_load_calls_a_trial_unreadable_and_check_says_why(file, text, why, tmp_path):
    (leave(tmp_path / "r00", "t__a") / file).write_text(text)
    leave(tmp_path / "r01", "t__b")
    first, second = terminal_bench.load(tmp_path)
    assert (first["task"], first["status"], first["outcome"]) == ("t", "unreadable", None)
    assert (second["status"], second["outcome"]) == ("completed", True)
    assert terminal_bench.check(tmp_path) == [f"t rollout 0: unreadable: {why}"]
    kept = file != "result.json"  # what has a grade is not paid for again
    assert terminal_bench.forget_failed(tmp_path) == ([] if kept else ["r00/t__a"])
    assert [p.name for p in terminal_bench.trials(tmp_path)] == ["t__a"] * kept + ["t__b"]


def test_load_counts_a_null_reward_as_not_graded_and_not_as_unreadable(tmp_path):
    leave(tmp_path / "r00", "t__a", verifier_result={"rewards": {"reward": None}})
    (r,) = terminal_bench.load(tmp_path)
    assert (r["status"], r["outcome"]) == ("completed", None)


FAILED = "the environment, the server or the grading failed"


@pytest.mark.parametrize(
    ("error", "reward", "said"),
    [
        ("", None, f"{FAILED} (completed): {harnesses.AGAIN}"),
        ("AgentTimeoutError", None, f"{FAILED} (AgentTimeoutError): {harnesses.AGAIN}"),
        ("InternalServerError", None, f"{FAILED} (InternalServerError): {harnesses.AGAIN}"),
        ("InternalServerError", 0.0, "InternalServerError, and graded all the same: it stays as it is"),
        ("AgentTimeoutError", 0.0, ""),
        ("ContextLengthExceededError", None, ""),
        ("", 0.0, ""),
    ],
)
def test_check_promises_another_try_for_exactly_what_forget_failed_deletes(error, reward, said, tmp_path):
    leave(tmp_path / "r00", "t__a", error=error, reward=reward)
    assert terminal_bench.check(tmp_path) == ([f"t rollout 0: {said}"] if said else [])
    forgotten = run_adapter("terminal_bench", "forget", str(tmp_path)).stdout
    assert forgotten == ("1 forgotten\nr00/t__a\n" if FAILED in said else "0 forgotten\n")
    assert (tmp_path / "r00/t__a").exists() is (FAILED not in said)


@pytest.mark.parametrize("text", [None, "{}", "{", "[]"])
def test_a_job_is_no_trial_whatever_its_name_and_is_never_deleted(shared, tmp_path, text):
    job = tmp_path / "jobs/2026-11-30__20-33-34"  # Harbor's own name for one
    shutil.copytree(shared / "data/harness/harbor/it0", job, copy_function=shutil.copyfile)
    if text is not None:
        (job / "result.json").write_text(text)
    assert {r["task"] for r in terminal_bench.load(tmp_path / "jobs")} == {"fix-mean"}
    assert len(terminal_bench.load(tmp_path / "jobs")) == 2
    (trial,) = job.glob("fix-mean__u*")
    (trial / "result.json").write_text("{")
    assert terminal_bench.forget_failed(tmp_path / "jobs") == [f"{job.name}/{trial.name}"]
    assert len(terminal_bench.load(tmp_path / "jobs")) == 1


def test_load_survives_any_part_of_another_kind(tmp_path):
    agent = {"n_input_tokens": 9, "n_output_tokens": 1, "cost_usd": 0.5, "metadata": {"n_episodes": 1}}
    config = {"task": {"path": "ds/t"}, "agent": {"kwargs": {"max_turns": 2}}}
    call = {"function_name": "bash_command", "arguments": {"keystrokes": "ls\n"}}
    seen = {"results": [{"content": [{"type": "text", "text": "a"}]}]}
    step = said("agent", "x", tool_calls=[call], observation=seen, metrics={"prompt_tokens": 9})
    leave(tmp_path / "r00", "t__x", agent_result=agent, config=config, steps=[said("user", "p"), step])
    assert unreadable(terminal_bench, tmp_path, lambda: None) > 100


def test_load_survives_any_part_of_another_kind_in_the_published_samples(shared, tmp_path):
    for k, name in enumerate(["err-image", "err-timeout", "it1-r0"]):
        out = tmp_path / f"r{k:02d}"
        shutil.copytree(shared / "data/harness/harbor" / name, out, copy_function=shutil.copyfile)
        for path in {*out.rglob("*.json")} - {*out.glob("*__*/result.json"), *out.rglob("trajectory*.json")}:
            path.unlink()
    assert unreadable(terminal_bench, tmp_path, lambda: None, step=29) > 5


def test_forget_failed_leaves_what_the_agents_own_limit_ended(tmp_path):
    for k, error in enumerate(["ContextLengthExceededError", "AgentTimeoutError", "InternalServerError"]):
        leave(tmp_path / f"r{k:02d}", f"t__{k}", error=error, reward=None)
    assert terminal_bench.forget_failed(tmp_path) == ["r01/t__1", "r02/t__2"]
    assert [(r["status"], r["outcome"]) for r in terminal_bench.load(tmp_path)] == [
        ("ContextLengthExceededError", None)
    ]


def test_load_finds_the_task_of_a_torn_result_by_the_names_it_knows(tmp_path):
    long = "a-task-whose-name-is-longer-than-32-characters"
    (leave(tmp_path / "r00", f"{long[:32]}__x") / "result.json").write_text("{")
    (r,) = terminal_bench.load(tmp_path, {"other": "q", long: "p"})
    assert (r["task"], r["problem"], r["status"]) == (long, "p", "unreadable")
    dash = "a-name-with-a-dash-as-its-32-th-" + "one"  # Harbor takes the dash off
    (leave(tmp_path / "r01", f"{dash[:31]}__x") / "result.json").write_text("{")
    assert terminal_bench.load(tmp_path / "r01", {dash: "p"})[0]["task"] == dash


def test_load_takes_the_task_from_its_folder_and_refuses_a_second_claim(tmp_path):
    long = "a-task-whose-name-is-longer-than-32-characters"
    leave(tmp_path / "it0/r00", f"{long[:32]}__x", task="org/other", config={"task": {"path": f"ds/{long}"}})
    assert terminal_bench.load(tmp_path / "it0")[0]["task"] == long
    leave(tmp_path / "it1/r00", f"{long[:32]}__y", task="org/other", config={"task": {"path": f"ds/{long}"}})
    with pytest.raises(ValueError, match="load one iteration at a time"):
        terminal_bench.load(tmp_path)


def test_write_dataset_copies_tasks_and_appends_each_context(tmp_path):
    odd = "{braces} {{ x }} {% y %}"
    shared_folder = terminal_bench.write_dataset(TESTS, {"toy_task": ["", ""]}, tmp_path / "a")
    assert shared_folder == [tmp_path / "a/ds"] * 2
    folders = terminal_bench.write_dataset(TESTS, {"toy_task": [odd, "two"]}, tmp_path / "b")
    assert odd in (folders[0] / "toy_task/instruction.md").read_text()
    assert "two" in (folders[1] / "toy_task/instruction.md").read_text()
    assert (folders[0] / "toy_task/tests/test.sh").stat().st_mode & 0o100
    assert terminal_bench.tasks(folders[0]) == terminal_bench.tasks(TESTS)
    with pytest.raises(ValueError, match="no task folder"):
        terminal_bench.tasks(tmp_path)


def test_command_keeps_the_server_out_of_the_configuration():
    kw = {"data": Path("ds"), "url": ["http://a:1", "http://b:2"], "model": "m", "temperature": 0.7, "workers": 4}
    argv = terminal_bench.command(
        1, out=Path("it0/r01"), seed=5, backend="daytona", extra=("--ak", "max_turns=9"), **kw
    )
    assert argv[:4] == ["env", "OPENAI_BASE_URL=http://b:2/v1", "harbor", "run"]
    assert [argv[argv.index(a) + 1] for a in ("--job-name", "-o", "-k", "-e")] == ["r01", "it0", "1", "daytona"]
    assert 'llm_call_kwargs={"seed": 5}' in argv
    kw["model"] = "openai/gpt-oss-20b"
    argv = terminal_bench.command(0, out=Path("r00"), seed=5, backend="docker", extra=("--ak", "max_turns=9"), **kw)
    assert argv[argv.index("-m") + 1] == "openai/openai/gpt-oss-20b"
    assert argv[-2:] == ["--ak", "max_turns=9"]
    asks = ["command", "--data", str(TESTS), "--url", "http://a:1", "--model", "m", "--index", "2", "--t", "1"]
    printed = run_adapter("terminal_bench", *asks, "--seed", "3").stdout
    assert """'llm_call_kwargs={"seed": 3000018}'""" in printed
    assert "--job-name r02" in printed


HARBOR = """
import json, pathlib, sys
job = pathlib.Path(sys.argv[sys.argv.index("-o") + 1]) / sys.argv[sys.argv.index("--job-name") + 1]
count = pathlib.Path(__file__ + ".count")
tries = count.read_text() + "x" if count.exists() else "x"
count.write_text(tries)
trial = job / "toy_task__abc"
trial.mkdir(parents=True)  # dies where the failed trial was not cleared away
failed, graded = {"exception_info": {"exception_type": "E"}}, {"verifier_result": {"rewards": {"reward": 1}}}
result = {"task_name": "toy_task", "trial_name": trial.name} | (graded if len(tries) > 1 else failed)
(trial / "result.json").write_text(json.dumps(result))
"""


def test_harness_redoes_only_what_has_no_grade_and_then_rests(tmp_path):
    program = stand_in(tmp_path, HARBOR)
    asks: dict[str, Any] = {"url": ["http://a"], "model": "m", "N": 1, "seed": 0, "temperature": 0.7, "workers": 2}
    rollout = terminal_bench.harness(
        run_dir=tmp_path / "run", source=TESTS, agent=str(program), backend="docker", **asks
    )
    (r,) = rollout(0, {"toy_task": [""]})
    assert (r["status"], r["outcome"], r["rollout"]) == ("completed", True, 0)
    assert r["problem"].startswith("slug(")
    assert rollout(0, {"toy_task": [""]}) == [r]
    assert Path(f"{program}.count").read_text() == "xx"
