"""Terminal-Bench adapter: published samples, the cases, a stand-in for Harbor (the real one: tests/harness_e2e.py)."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluators import harnesses, terminal_bench
from harness_e2e import TESTS

CASES = {c["id"]: c for c in map(json.loads, (TESTS / "cases.jsonl").read_text("utf-8").split("\n")[:-1])}


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


def test_read_trajectory_case_84_lists_nulls_and_copied_steps():
    case = CASES[84]
    r, expected = terminal_bench.read_trajectory([case["input"]["json"]]), case["expected"]
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
    outcomes = terminal_bench.scores(tmp_path)
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


def test_read_trajectory_renders_old_and_odd_forms():
    call = {"function_name": "bash_command", "arguments": {"keystrokes": "ls\n"}}
    parts = [{"type": "text", "text": "see"}, {"type": "image", "source": {"path": "a.png"}}]
    odd = [
        said("system", "rules"),
        said("user", "task"),
        said("agent", parts, tool_calls=[call, {"function_name": "stop"}]),
    ]
    odd += [said("agent", None, tool_calls=None, observation={"results": None}), said("user", "go on")]
    r = terminal_bench.read_trajectory([{"schema_version": "ATIF-v1.0", "steps": odd}])
    assert (
        r["transcript"]
        == "[0] system\nrules\n\n[1] agent\nsee\n[image]\n$ ls\n> stop {}\n\n[2] agent\n\n[2] user\ngo on"
    )
    assert (r["tokens"], r["cost_usd"], r["steps"]) == (None, None, 2)
    assert terminal_bench.read_trajectory([])["transcript"] == ""


def test_load_tells_a_turn_limit_from_a_finished_trial(tmp_path):
    limited = {"config": {"agent": {"kwargs": {"max_turns": 2}}}, "agent_result": {"metadata": {"n_episodes": 2}}}
    leave(tmp_path / "r00", "t__a", reward=0.0, **limited)
    done = [said("user", "p"), said("agent", "end", tool_calls=[{"function_name": "mark_task_complete"}])]
    leave(tmp_path / "r01", "t__b", steps=done, **limited)
    leave(tmp_path / "r02", "t__c", error="AgentTimeoutError", reward=0.0)
    (leave(tmp_path / "r03", "t__d") / "result.json").write_text("{")
    ends = [(r["status"], r["outcome"]) for r in terminal_bench.load(tmp_path)]
    assert ends == [("turn_limit", False), ("completed", True), ("AgentTimeoutError", False), ("unreadable", None)]


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
    assert argv[-2:] == ["--ak", "max_turns=9"]


HARBOR = f"""#!{sys.executable}
import json, pathlib, sys
job = pathlib.Path(sys.argv[sys.argv.index("-o") + 1]) / sys.argv[sys.argv.index("--job-name") + 1]
count = pathlib.Path(__file__ + ".count")
tries = count.read_text() + "x" if count.exists() else "x"
count.write_text(tries)
trial = job / "toy_task__abc"
trial.mkdir(parents=True)  # dies where the failed trial was not cleared away
failed, graded = {{"exception_info": {{"exception_type": "E"}}}}, {{"verifier_result": {{"rewards": {{"reward": 1}}}}}}
result = {{"task_name": "toy_task", "trial_name": trial.name}} | (graded if len(tries) > 1 else failed)
(trial / "result.json").write_text(json.dumps(result))
"""


def test_harness_redoes_only_what_has_no_grade_and_then_rests(tmp_path):
    program = tmp_path / "harbor"
    program.write_text(HARBOR)
    program.chmod(0o755)
    asks: dict[str, Any] = {"url": ["http://a"], "model": "m", "N": 1, "seed": 0, "temperature": 0.7, "workers": 2}
    rollout = terminal_bench.harness(
        run_dir=tmp_path / "run", source=TESTS, agent=str(program), backend="docker", **asks
    )
    (r,) = rollout(0, {"toy_task": [""]})
    assert (r["status"], r["outcome"], r["rollout"]) == ("completed", True, 0)
    assert r["problem"].startswith("slug(")
    assert rollout(0, {"toy_task": [""]}) == [r]
    assert Path(f"{program}.count").read_text() == "xx"
    assert json.loads(terminal_bench.write_predictions([r], tmp_path / "chosen.json").read_text()) == {"toy_task": 0}
