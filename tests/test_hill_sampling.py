"""hill_sampling.py as a process against a scripted server: results, resume, kill -9, replay, tampering, mistakes."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

import common
import hill_sampling
from evaluators import circles
from fake_server import FakeServer
from kill_test import kill_and_resume
from run_tools import ROOT, climbing, command, content, edit_line, hill, lines_of, number_of

CASES = {c["id"]: c for c in map(json.loads, (ROOT / "tests/cases.jsonl").read_text("utf-8").split("\n")[:-1])}
N, M = 3, 3
SETTINGS = ("circles", "--N", N, "--M", M, "--timeout-s", 20, "--price-in", 0.1, "--price-out", 0.7)
DEAD = "http://127.0.0.1:9"
KILLS = int(os.environ.get("KILLS", "5"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed, with its figure; equal to that of kill_test.py."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with FakeServer(climbing) as server:
        ended = hill(*SETTINGS, "--url", server.url, "--run", folder, "--plot")
    assert (ended.returncode, ended.stderr) == (0, "")
    (folder / "stdout").write_text(ended.stdout)
    (folder / "seeds").write_text(json.dumps([request["seed"] for request in server.requests]))
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_hill_sampling_climbs_and_leaves_the_best_program_construction_and_figure(whole):
    log = lines_of(whole)
    result, rounds = log[-1], [line for line in log if line["event"] == "round"]
    assert (result["event"], result["completions"], result["accepted"]) == (
        "result",
        N * M,
        sum(r["accepted"] for r in rounds),
    )
    assert 1.955 < rounds[1]["score"] <= rounds[2]["score"] <= rounds[3]["score"] == result["score"]
    assert circles.verify(json.loads((whole / "best.json").read_text()))["score"] == result["score"]
    assert "EDIT-START" in (whole / "best.py").read_text("utf-8")
    assert (whole / "figure.png").read_bytes()[1:4] == b"PNG"
    assert sum(r["valid"] for r in rounds) < sum(
        r["programs"] for r in rounds
    )  # the script has replies that are no good
    calls = [line for line in log if line["event"] == "call"]
    assert result["cost_usd"] == pytest.approx(
        sum(0.1 * c["prompt_tokens"] + 0.7 * c["completion_tokens"] for c in calls) / 1e6
    )
    assert result["tokens"] == {k: sum(c[f"{k}_tokens"] for c in calls) for k in ("prompt", "completion")}


def test_hill_sampling_gives_every_request_the_documented_seed(whole):
    assert sorted(json.loads((whole / "seeds").read_text())) == list(range(N * M))
    seeds = {tuple(line["unit"][2:]): line["seed"] for line in lines_of(whole) if line["event"] == "call"}
    assert seeds == {(t, i): t * N + i for t in range(M) for i in range(N)}


def test_hill_sampling_does_not_depend_on_the_order_of_replies_or_the_number_of_servers(whole, tmp_path):
    slow_first = partial(FakeServer, climbing, latency_s=lambda seed: 0.06 * (2 - seed % 3))
    with slow_first() as a, slow_first() as b:
        ended = hill(*SETTINGS, "--url", a.url, b.url, "--run", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert content(tmp_path) == content(whole)
    assert (len(a.requests), len(b.requests)) == (2 * M, M)


def test_hill_sampling_a_finished_run_needs_no_server_and_is_left_as_it_is(copy):
    before = (copy / "log.jsonl").read_bytes()
    ended = hill(*SETTINGS, "--url", DEAD, "--run", copy)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (copy / "log.jsonl").read_bytes() == before


@pytest.mark.parametrize("k", range(KILLS))
def test_hill_sampling_killed_at_a_random_moment_goes_on_to_the_same_result(k, whole, tmp_path):
    kill_and_resume(tmp_path / "run", whole, random.Random(k))


def test_hill_sampling_interrupt_is_one_line_and_resumable(whole, tmp_path):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a child of a background job would ignore it
    with FakeServer(climbing, latency_s=lambda seed: 0.0 if seed < 4 else 30.0) as server:
        run = subprocess.Popen(
            command(*SETTINGS, "--url", server.url, "--run", tmp_path), stderr=subprocess.PIPE, text=True
        )
        while len(server.requests) < 6 and run.poll() is None:
            time.sleep(0.01)
        time.sleep(0.3)
        run.send_signal(signal.SIGINT)
        said = run.communicate(timeout=20)[1]
    assert (run.returncode, said) == (130, "hill_sampling.py: interrupted; the same command goes on where it stopped\n")
    with FakeServer(climbing) as server:
        assert hill(*SETTINGS, "--url", server.url, "--run", tmp_path).returncode == 0
    assert content(tmp_path) == content(whole)
    assert min(request["seed"] for request in server.requests) == 4


def test_hill_sampling_max_cost_usd_stops_and_a_higher_one_goes_on_to_the_same_result(whole, tmp_path):
    half = lines_of(whole)[-1]["cost_usd"] / 2
    with FakeServer(climbing) as server:
        stopped = hill(*SETTINGS, "--url", server.url, "--run", tmp_path, "--max-cost-usd", half)
        assert (stopped.returncode, stopped.stderr.count("\n")) == (3, 1)
        assert "--max-cost-usd" in stopped.stderr
        assert len(server.requests) < N * M
        assert hill(*SETTINGS, "--url", server.url, "--run", tmp_path, "--max-cost-usd", 1).returncode == 0
    assert content(tmp_path) == content(whole)


def test_case_66_a_second_process_on_one_folder_ends_at_once(tmp_path):
    with FakeServer(climbing, latency_s=lambda _: 30.0) as server:
        argv = (*SETTINGS, "--url", server.url, "--run", tmp_path)
        first = subprocess.Popen(command(*argv), stdout=subprocess.DEVNULL)
        while not server.requests and first.poll() is None:
            time.sleep(0.01)
        before = (tmp_path / "log.jsonl").read_bytes()
        second = hill(*argv)
        assert (second.returncode, second.stderr.count("\n")) == (2, 1)
        assert f"(pid {first.pid})" in second.stderr
        assert (tmp_path / "log.jsonl").read_bytes() == before
        first.kill()
        first.wait()


# Replay and tampering


@pytest.mark.parametrize("options", [(), ("--execute",)])
def test_hill_sampling_replay_finds_no_difference(copy, options):
    before = (copy / "log.jsonl").read_bytes()
    ended = hill("--replay", "--run", copy, *options)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "0 differences" in ended.stdout
    rounds = [re.sub(r"\d+ s\b", "", line) for line in ended.stdout.split("\n") if line.startswith("round")]
    assert rounds == [
        re.sub(r"\d+ s\b", "", x) for x in (copy / "stdout").read_text().split("\n") if x.startswith("round")
    ]
    assert (copy / "log.jsonl").read_bytes() == before


@pytest.mark.parametrize("forge", [False, True], ids=["edited", "forged"])
@pytest.mark.parametrize("what", ["score", "construction", "reply", "seed"])
def test_hill_sampling_replay_names_the_unit_that_was_tampered_with(copy, what, forge):
    best = next(line for line in lines_of(copy)[::-1] if line["event"] == "round")["best"]
    t, i = best
    changes = {
        "score": ("run", lambda line: line.update(score=2.7, paper_score=2.7)),
        "construction": ("run", lambda line: line["construction"][3].__setitem__(2, 0.01)),
        "seed": ("call", lambda line: line.update(seed=line["seed"] + 1)),
        "reply": ("call", lambda line: line.update(text=line["text"].replace("small = 5, ", "small = 5, 0.01 + "))),
    }
    event, change = changes[what]
    number = number_of(copy, event, i, t)
    edit_line(copy, number, change, forge=forge)
    ended = hill("--replay", "--run", copy)
    assert ended.returncode == 1
    assert f"'circles', {t}, {i})" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert forge or f"line {number} " in ended.stdout


def test_hill_sampling_does_not_go_on_from_what_was_tampered_with(copy):
    edit_line(copy, number_of(copy, "run", 0, 0), lambda line: line.update(score=2.7), forge=True)
    resumed = hill(*SETTINGS, "--url", DEAD, "--run", copy)
    assert (resumed.returncode, resumed.stderr.count("\n")) == (2, 1)
    assert "run ('run 0', 'circles', 0, 0): score is 2.7 in the log" in resumed.stderr


@pytest.mark.parametrize("status", ["ok", "timeout"])
def test_hill_sampling_replay_finds_a_forged_status(copy, status):
    line = next(
        x for x in lines_of(copy) if x["event"] == "run" and "unit" in x and (x["status"] == "ok") != (status == "ok")
    )
    number = lines_of(copy).index(line) + 1
    edit_line(copy, number, lambda line: line.update(status=status), forge=True)
    ended = hill("--replay", "--run", copy)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "DIFFERENT: " in ended.stdout


def test_hill_sampling_replay_with_execute_finds_a_construction_that_the_program_does_not_make(copy):
    best = [tuple(line["best"]) for line in lines_of(copy) if line["event"] == "round"]
    other = next(
        x
        for x in lines_of(copy)
        if x["event"] == "run" and x.get("status") == "ok" and tuple(x["unit"][2:]) not in best
    )
    number = lines_of(copy).index(other) + 1

    def consistent(line: dict) -> None:
        line["construction"][0][2] /= 2
        line.update(circles.verify(line["construction"]))

    edit_line(copy, number, consistent, forge=True)
    assert hill("--replay", "--run", copy).returncode == 0  # nothing in the log contradicts it
    ended = hill("--replay", "--execute", "--run", copy)
    assert ended.returncode == 1
    assert f"{tuple(other['unit'])}: construction is" in ended.stdout


def test_hill_sampling_replay_of_a_run_that_has_not_ended_says_where_it_stands(copy):
    log = copy / "log.jsonl"
    log.write_bytes(b"\n".join(log.read_bytes().split(b"\n")[: number_of(copy, "round", 0, 1)]) + b"\n")
    ended = hill("--replay", "--run", copy)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "ends before call ('edit', 'circles', 2, 0)" in ended.stderr


RUNS = sorted((ROOT / "runs").rglob("log.jsonl"))


@pytest.mark.parametrize("log", RUNS, ids=lambda log: str(log.parent.relative_to(ROOT / "runs")))
def test_recorded_run_replays(log, request):
    head = json.loads(log.read_bytes().split(b"\n")[0])
    given = head["argv"][0]
    if head["script"] == "rtv.py" and not (ROOT / given).exists():  # dialogues of others are not kept here
        dialogues = request.getfixturevalue("shared") / "data/rollouts/tau_bench_gpt4o_airline_compact.jsonl"
        make = command("tau_bench", dialogues, "--tasks", 3, script="tests/make_rollouts.py")
        (ROOT / given).write_bytes(subprocess.run(make, capture_output=True, check=True).stdout)
    subcommand = [a for a in head["argv"][:1] if not a.startswith("-")]
    argv = command(*subcommand, "--replay", "--run", log.parent, script=head["script"])
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, f"{log}: {ended.stdout[-2000:]} {ended.stderr[-2000:]}"


# Users' mistakes


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["spheres", "--model", "m"], "invalid choice: 'spheres'"),
        ([], "name a task"),
        (["circles", "--model", "m", "--N", "0"], "--N 0: must be at least 1"),
        (["circles", "--model", "m", "--N", "many"], "invalid int value: 'many'"),
        (["circles", "--model", "m", "--M", "-1"], "--M -1: must be at least 1"),
        (["circles", "--model", "m", "--timeout-s", "nan"], "--timeout-s nan"),
        (["circles", "--model", "m", "--max-tok", "9"], "unrecognized arguments: --max-tok 9"),
        (["circles", "--run", "RUN"], "no model: give --model"),
        (["circles", "--url", "RUN", "--run", "RUN"], "not an http(s) address"),
        (["circles", "--url", DEAD, "--run", "RUN"], f"no server answers at {DEAD}/v1"),
        (["circles", "--model", "./no/such/model", "--run", "RUN"], "./no/such/model cannot be loaded"),
        (["circles", "--model", str(ROOT / "tests"), "--run", "RUN"], "tests cannot be loaded"),
        (["circles", "--model", "m", "--price-in", "1", "--run", "RUN"], "--price-in and --price-out"),
        (["circles", "--url", DEAD, "--run", __file__], "File exists"),
        (["--replay", "--run", "RUN"], "nothing to replay"),
        (["--replay"], "--replay needs --run"),
        (["compare"], "compare: name the run folders"),
        (["compare", "RUN"], "nothing to replay"),
        (["compare", "RUN", "--run", "RUN"], "compare takes run folders and --plot"),
    ],
)
def test_hill_sampling_says_a_mistake_in_one_line(argv, reason, tmp_path):
    ended = hill(*[str(tmp_path / "run") if a == "RUN" else a for a in argv])
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert reason in ended.stderr
    if (tmp_path / "run").exists():  # what was begun binds to nothing: the mended command starts there
        assert reason == f"no server answers at {DEAD}/v1"
        with FakeServer(climbing) as server:
            assert hill("circles", "--N", 1, "--M", 1, "--url", server.url, "--run", tmp_path / "run").returncode == 0


def test_hill_sampling_a_folder_with_other_arguments_is_refused_and_unharmed(copy):
    before = (copy / "log.jsonl").read_bytes()
    for changed, named in (
        (("--seed", 1), "--seed is 1 here and 0 in"),
        (("--hint", "x"), "--hint is 'x' here and '' in"),
    ):
        ended = hill(*SETTINGS, *changed, "--url", DEAD, "--run", copy)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert named in ended.stderr
    assert (copy / "log.jsonl").read_bytes() == before


def test_case_58_a_refused_key_ends_the_run_and_stands_nowhere(tmp_path):
    key = "sk-a-secret-that-must-not-leak"
    refused = {"status": 401, "headers": {}, "body": {"error": {"message": f"Incorrect API key provided: {key}"}}}
    with FakeServer(responses=[refused]) as server:
        ended = hill(*SETTINGS, "--url", server.url, "--run", tmp_path, env={"OPENAI_API_KEY": key})
        bearers = {headers["Authorization"] for headers in server.headers_seen}
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "answered 401" in ended.stderr
    assert bearers == {f"Bearer {key}"}
    assert len(server.requests) <= N  # those in flight, none again
    assert key not in ended.stdout + ended.stderr + (tmp_path / "log.jsonl").read_text("utf-8")


# Reports


def test_case_92_a_round_without_one_valid_program_is_loud_and_a_run_of_them_fails(tmp_path):
    with FakeServer(lambda _, seed: f"As a model I cannot write code {seed}.") as server:
        ended = hill("circles", "--N", 4, "--M", 2, "--url", server.url, "--run", tmp_path)
    assert ended.returncode == 1
    assert ended.stdout.count("no valid program in this round; most are no_code, e.g. 'As a model I cannot") == 2
    assert "no edit was ever valid" in ended.stderr
    rounds = [line for line in lines_of(tmp_path) if line["event"] == "round"]
    assert [line["failures"].get("no_code", {}).get("count") for line in rounds] == [None, 4, 4]


def test_hill_sampling_context_overflow_is_a_failed_call_and_no_score(tmp_path):
    def reply(messages, seed):
        said = "This model's maximum context length is 4096 tokens."
        return {"status": 400, "headers": {}, "body": {"message": said}} if seed % 2 else climbing(messages, seed)

    with FakeServer(reply) as server:
        ended = hill("circles", "--N", 4, "--M", 1, "--url", server.url, "--run", tmp_path, "--timeout-s", 20)
    assert ended.returncode == 0, ended.stderr
    failed = lines_of(tmp_path)[-2]["failures"]["call failed"]
    assert (failed["count"], failed["example"]) == (2, 1)
    assert "maximum context length" in failed["reason"]


def test_case_90_any_gain_is_taken_and_nothing_that_is_no_number():
    case = CASES[90]["input"]
    rewards = [float(r) if isinstance(r, str) else r for r in [case["start"], *case["round_best"]]]

    def evaluate(t, programs):
        return [(program, rewards[t + 1], "") for _, program in programs]

    def sample(t, *_):
        return iter([(0, f"program {t}")])

    settings = {"N": 1, "M": len(rewards) - 1, "K": 1, "seed": 0, "parents": hill_sampling.hill}
    rounds = list(
        hill_sampling.hill_sampling("x", sample, evaluate, **settings, context=lambda shown: shown[0].program)
    )
    assert [r["accepted"] for r in rounds[1:]] == CASES[90]["expected"]["accepted"]
    assert rounds[-1]["best"].reward == CASES[90]["expected"]["best"]


def test_case_90_improvements_are_printed_with_enough_digits(whole):
    score = next(line for line in lines_of(whole)[::-1] if line["event"] == "round")["score"]
    assert repr(score) in (whole / "stdout").read_text()


def test_hill_sampling_without_a_folder_leaves_no_trace(tmp_path):
    with FakeServer(climbing) as server:
        ended = subprocess.run(
            command("circles", "--N", 1, "--M", 1, "--url", server.url),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
        )
    assert (ended.returncode, list(tmp_path.iterdir())) == (0, [])
    assert json.loads(ended.stdout[ended.stdout.index("{") :])["completions"] == 1


def test_hill_sampling_replay_of_another_task_is_refused(copy):
    ended = hill("sets", "--run", copy, "--replay")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "is a run of circles, not of sets" in ended.stderr


def test_compare_says_where_no_program_was_valid(tmp_path):
    with FakeServer(lambda *_: "no program") as server:
        ended = hill(*SETTINGS, "--information", "none", "--url", server.url, "--run", tmp_path)
        assert ended.returncode == 1
    ended = hill("compare", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "no valid program" in ended.stdout


def test_hill_sampling_max_size_limits_what_is_verified(tmp_path):
    ended = hill("circles", "--model", "m/m", "--max-size", 5, "--run", tmp_path)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    program = "# EDIT-START\ndef run():\n    return list(range(40)), 0.0\n# EDIT-END"
    with FakeServer(lambda *_: f"```python\n{program}\n```") as server:
        settings = ("sets", "--N", 1, "--M", 1, "--timeout-s", 5, "--url", server.url)
        for size, valid in ((39, 0), (40, 1)):
            assert hill(*settings, "--max-size", size, "--run", tmp_path / str(size)).returncode == 1 - valid
            rounds = [line for line in lines_of(tmp_path / str(size)) if line["event"] == "round"]
            assert rounds[-1]["valid"] == valid


def test_compare_takes_runs_that_differ_in_the_seed_alone_together(whole, tmp_path):
    runs = [whole]
    for name, flags in (("seed", ("--seed", 1)), ("M", ("--M", 1))):
        runs.append(tmp_path / name)
        with FakeServer(climbing) as server:
            assert hill(*SETTINGS, *flags, "--url", server.url, "--run", runs[-1]).returncode == 0
    scores = [lines_of(run)[-1]["score"] for run in runs]
    ended = subprocess.run(command("compare", "--plot", *runs), capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    _, together, other, figure = ended.stdout.splitlines()
    mean, error = (scores[0] + scores[1]) / 2, abs(scores[0] - scores[1]) / 2
    assert together.split() == [
        "hill,",
        "M",
        "3",
        "9",
        "2/2",
        f"{mean:.15f}",
        f"{error:.2g}",
        f"{max(scores[:2]):.15f}",
    ]
    assert other.split()[:5] == ["hill,", "M", "1", "3", "1/1"]
    assert figure == "figure: compare.png"
    ended = hill("compare", whole, whole)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "seed 0 of the same settings stands there twice" in ended.stderr


def test_hill_sampling_neighbouring_floats_are_no_tie():
    """Divided by AlphaEvolve's score these two are equal, and the worse one would be accepted as a tie."""
    worse, better = 0.3808976700000555, 0.3808976700000554
    args = hill_sampling.parse(["erdos"])
    wiring = hill_sampling.Wiring(args, common.Log(None, "hill_sampling.py", vars(args)), None, None)
    assert wiring.task.reward(worse) == wiring.task.reward(better)
    rewards = [wiring.reward({"status": "ok", "score": score}) or 0 for score in (worse, better)]
    assert rewards[0] < rewards[1] < 0


@pytest.mark.parametrize(
    ("script", "argv"),
    [
        ("hill_sampling.py", ["--replay", "--run", "runs/first"]),
        ("coderescue.py", ["collect", "--replay", "--run", "runs/rescue-humaneval"]),
        ("evaluators/sets.py", ["tests/constructions/sets.json"]),
        ("evaluators/terminal_bench.py", ["command", "--data", "tests", "--url", "http://x", "--model", "m"]),
    ],
)
def test_a_reader_that_hangs_up_makes_no_traceback(script, argv):
    argv = command(*argv, script=script)
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, "")
