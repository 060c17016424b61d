"""common.py: model calls over real HTTP, the log, exit codes, money. The sandbox has its own tests."""

import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import permutations
from pathlib import Path

import pytest

import common
from fake_server import FakeServer
from run_tools import content, edit_line, lines_of, number_of

ROOT = Path(__file__).resolve().parents[1]
CASES = {c["id"]: c for c in map(json.loads, (ROOT / "tests/cases.jsonl").read_text("utf-8").split("\n")[:-1])}
PRICES = {"price_in": 2.0, "price_out": 8.0}
ODD_TEXT = "step 1\u0085step 2\u2028step 3\x1c, \ud800 alone, \U0001f3af, NUL \x00, \r\n"
NOW = {"status": 503, "headers": {"retry-after": "0"}, "body": {"error": "busy"}}  # a failure that asks for no wait


def open_chat(*servers, **options):
    settings: dict = {"model": None, "temperature": 1.0, "max_tokens": 100, "price_in": None, "price_out": None}
    settings |= {"url": [server.url for server in servers]} | options
    return common.open_chat(**settings)


def ask(chat, n: int = 1) -> list[common.Reply]:
    """The replies to n requests, by index."""
    replies = dict(chat([[{"role": "user", "content": f"request {i}"}] for i in range(n)], [100 + i for i in range(n)]))
    return [replies[i] for i in range(n)]


def answer(message: dict, **more) -> dict:
    """A full response with that message; usage as in the cases."""
    usage = {"prompt_tokens": 120, "completion_tokens": 40}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage, **more}
    return {"status": 200, "headers": {}, "body": body}


def error(status: int, message: object) -> dict:
    return {"status": status, "headers": {"Retry-After": "0"}, "body": {"error": {"message": message}}}


# Model calls


def test_case_52_reasoning_is_logged_and_never_taken_for_the_answer(tmp_path):
    case = CASES[52]
    with FakeServer(responses=case["input"]["responses"]) as server:
        (reply,), log, _ = method(tmp_path, open_chat(server), n=1)
    assert common.extract_code(reply.text, "f", reply.finish_reason)[0] == case["expected"]["code"]
    assert "return 0" in log.lines["call", ("edit", "t", 0, 0)]["reasoning"]


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": "a", "reasoning_content": "b"}, "a", "b"),
        ({"content": "<think>b</think>\n\na"}, "a", "b"),
        ({"content": "b\n</think>a"}, "a", "b"),
        ({"content": None, "reasoning": "b"}, "", "b"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "image"}]}, "a", ""),
    ],
)
def test_parse_reply_understands_every_shape_of_content(message, text, reasoning):
    with FakeServer(responses=[answer(message)]) as server:
        (reply,) = ask(open_chat(server))
    assert (reply.text, reply.reasoning, reply.finish_reason) == (text, reasoning, "stop")


@pytest.mark.parametrize("status", [400, 422])
def test_case_54_a_refused_seed_is_said_once_and_logged(status, tmp_path, capsys):
    responses = [{**CASES[54]["input"]["responses"][0], "status": status}, *CASES[54]["input"]["responses"][1:]]
    with FakeServer(responses=responses) as server:
        replies, log, _ = method(tmp_path, open_chat(server), n=1)
    assert [r.text for r in replies] == ["hi"]
    assert ["seed" in request for request in server.requests] == [True, False]
    assert capsys.readouterr().err.count("unseeded") == 1
    (engine,) = [line for line in log.lines.values() if line["event"] == "engine"]
    assert engine["seeds"] == "refused by the server: unseeded"


def test_log_says_that_seeds_are_refused_also_where_they_were_sent_before():
    refused = {"status": 400, "headers": {}, "body": {"error": "Unknown name seed"}}
    with FakeServer(responses=[answer({"content": "a"}), refused, answer({"content": "b"})]) as server:
        log, chat = common.Log(None, __file__, {}), open_chat(server)
        for t in (0, 1):
            list(log.calls(chat, [("edit", "t", t, 0)], [[{"role": "user", "content": "x"}]], [t]))
    engines = [line["seeds"] for line in log.lines.values() if line["event"] == "engine"]
    assert engines == ["one per request, sent", "refused by the server: unseeded"]


def test_chat_says_once_that_seeds_are_refused_when_many_requests_meet_it(capsys):
    def reply(_, seed):
        return "ok" if seed is None else error(400, "Unknown name seed")

    with FakeServer(reply, latency_s=lambda _: 0.05) as server:
        assert [r.text for r in ask(open_chat(server), 16)] == ["ok"] * 16
    assert capsys.readouterr().err.count("unseeded") == 1


def test_chat_takes_the_newer_name_of_max_tokens():
    refusal = error(400, "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.")
    with FakeServer(responses=[refusal, answer({"content": "hi"})]) as server:
        assert ask(open_chat(server))[0].text == "hi"
    assert ["max_tokens" in r for r in server.requests] == [True, False]
    assert server.requests[1]["max_completion_tokens"] == 100


def test_case_56_only_what_the_user_set_is_sent():
    with FakeServer(responses=CASES[56]["input"]["responses"]) as server:
        assert ask(open_chat(server, temperature=0.7))[0].text == CASES[56]["expected"]["text"]
    assert server.requests[0].keys() == {"model", "messages", "temperature", "max_tokens", "seed"}
    assert (server.requests[0]["temperature"], server.requests[0]["model"]) == (0.7, "fake")


def test_case_58_a_wrong_key_is_an_error_at_once():
    with FakeServer(responses=CASES[58]["input"]["responses"]) as server, pytest.raises(common.UserError, match="401"):
        ask(open_chat(server))
    assert len(server.requests) == CASES[58]["expected"]["calls"]


def test_case_60_errors_inside_200_are_retried_and_unknown_usage_stays_unknown():
    with FakeServer(responses=CASES[60]["input"]["responses"]) as server:
        chat = open_chat(server, **PRICES)
        (reply,) = ask(chat)
    assert reply.text == CASES[60]["expected"]["text"]
    assert len(server.requests) == CASES[60]["expected"]["calls"]
    assert (reply.prompt_tokens, reply.completion_tokens, common.cost_usd(reply, chat.price)) == (None, None, None)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_chat_retries_what_may_pass(status):
    with FakeServer(responses=[error(status, "later")] * 2 + [answer({"content": "hi"})]) as server:
        assert ask(open_chat(server))[0].text == "hi"
    assert len(server.requests) == 3


def test_chat_retries_a_bounded_number_of_times_and_says_what_was_last():
    start = time.monotonic()
    with FakeServer(responses=[NOW]) as server, pytest.raises(common.UserError, match=r"failed 5 times, last: .*busy"):
        ask(open_chat(server))
    assert len(server.requests) == common.TRIES
    assert time.monotonic() - start < 7  # 7.5 s would be the waits of a server that does not say how long


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"Retry-After": "7"}, 7), ({"Retry-After": "9999"}, 60), ({"Retry-After": "Fri"}, 2), ({}, 2)],
)
def test_retry_after_is_honoured_up_to_a_minute(headers, seconds):
    assert common.retry_after(headers, 2) == seconds


def test_chat_context_overflow_is_the_failure_of_that_request_alone():
    def reply(messages, _):
        said = (
            "This model's maximum context length is 8 tokens. However, you requested max_completion_tokens=100, seed 1"
        )
        return error(400, said) if messages[0]["content"] == "request 1" else "fine"

    with FakeServer(reply) as server:
        chat = open_chat(server, **PRICES)
        replies = ask(chat, 3)
    assert [r.finish_reason for r in replies] == ["stop", "error", "stop"]
    assert (replies[1].text, common.cost_usd(replies[1], chat.price)) == ("", 0.0)
    assert "maximum context length" in replies[1].error
    assert len(server.requests) == 3


def test_chat_a_page_of_html_is_an_error_in_one_line():
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(b"<html>\n<title>Sign in</title>\n</html>")

        do_POST = do_GET

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    for model, reason in (("m", "Sign in"), (None, "no list of its models")):
        with pytest.raises(common.UserError, match=reason) as raised:
            ask(
                common.open_chat(
                    model=model,
                    url=[f"http://127.0.0.1:{server.server_port}"],
                    temperature=0,
                    max_tokens=1,
                    price_in=None,
                    price_out=None,
                )
            )
        assert "\n" not in str(raised.value)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"url": ["http://127.0.0.1:9"]}, "no server answers at http://127.0.0.1:9/v1"),
        ({"url": ["localhost:8000"]}, "localhost:8000: not an http"),
        ({"url": ["http://["]}, "no server answers"),
        ({"url": ["http://127.0.0.1:99999"]}, "no server answers"),
        ({"url": [], "model": None}, "no model: give --model"),
        ({"price_in": 1.0}, "--price-in and --price-out go together"),
        ({"max_tokens": 0}, "--max-tokens 0"),
        ({"temperature": float("nan")}, "--temperature nan"),
    ],
)
def test_open_chat_names_the_users_mistake(options, reason):
    settings = {"model": "m", "url": ["http://127.0.0.1:9"], "temperature": 1.0, "max_tokens": 10}
    with pytest.raises(common.UserError, match=reason.replace("[", r"\[")):
        ask(common.open_chat(**{"price_in": None, "price_out": None} | settings | options))


def test_case_48_results_are_joined_by_index_whatever_finished_first():
    seeds = [request["seed"] for request in CASES[48]["input"]["requests"]]
    order = CASES[48]["input"]["completion_order"]
    with FakeServer(lambda _, seed: f"{seed}", latency_s=lambda seed: 0.15 * order.index(seeds.index(seed))) as server:
        finished = list(open_chat(server)([[{"role": "user", "content": "x"}]] * 3, seeds))
    assert [i for i, _ in finished] == order
    assert {i: reply.text for i, reply in finished} == dict(enumerate(map(str, seeds)))


def test_chat_hands_a_reply_over_while_others_are_being_written():
    with FakeServer(lambda *_: "x", latency_s=lambda seed: 1.0 if seed == 100 else 0.0) as server:
        start = time.monotonic()
        first = next(open_chat(server)([[{"role": "user", "content": "x"}]] * 2, [100, 101]))
    assert first[0] == 1
    assert time.monotonic() - start < 0.9


def test_chat_sends_request_i_to_server_i_mod_n():
    with FakeServer(lambda *_: "a") as a, FakeServer(lambda *_: "b") as b:
        assert [r.text for r in ask(open_chat(a, b), 5)] == ["a", "b", "a", "b", "a"]
    assert (len(a.requests), len(b.requests)) == (3, 2)


def test_chat_has_a_bounded_number_of_requests_in_flight_and_none_after_it_was_left():
    lock, now, most = threading.Lock(), [0], [0]

    def latency_s(_):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.1)
        with lock:
            now[0] -= 1
        return 0.0

    with FakeServer(lambda *_: "x", latency_s=latency_s) as server:
        replies = open_chat(server)([[{"role": "user", "content": "x"}]] * 300, list(range(300)))
        next(replies)
        replies.close()  # type: ignore[attr-defined]  # it is a generator
        time.sleep(0.5)
    assert 1 < most[0] <= common.PER_SERVER
    assert len(server.requests) <= 3 * common.PER_SERVER


def test_case_78_tokens_are_known_where_the_price_is_not(tmp_path):
    usage = CASES[78]["input"]["usage"]
    with FakeServer(responses=[answer({"content": "hi"}, usage=usage)]) as server:
        _, free, _ = method(tmp_path / "free", open_chat(server), n=1)
        _, paid, _ = method(tmp_path / "paid", open_chat(server, **PRICES), n=1)
    assert free.lines["result", 0]["tokens"] == {"prompt": 1000, "completion": 500}
    assert (free.lines["result", 0]["cost_usd"], paid.lines["result", 0]["cost_usd"]) == (None, 0.006)
    assert free.usage()["edit"] == {"calls": 1, "prompt_tokens": 1000, "completion_tokens": 500, "cost_usd": None}


def test_seed_of_gives_every_unit_a_seed_that_json_keeps():
    seeds = {
        common.seed_of(s, role, task, t, i)
        for s in (0, 1) for role in ("vote", "edit") for task in ("a", "b") for t in range(5) for i in range(50)
    }  # fmt: skip
    assert len(seeds) == 2000
    assert max(seeds) < 2**53
    assert common.seed_of(0, "vote", "a", 1, 2) == 5730525827445464  # the same in every process, on every machine


# The log. `method` is the smallest of methods: n calls, a program's run and a round from each, a result.


class Model:
    """A model that is a plain function (requests, seeds) -> [(index, reply)]; `asked` are the seeds that it saw."""

    stop, about = False, {"served_by": "a function"}

    def __init__(self, reply, price=(1.0, 1.0)):
        self.reply, self.price, self.asked = reply, price, []

    def __call__(self, requests, seeds):
        self.asked += seeds
        return iter(self.reply(requests, seeds))


def backwards(requests, seeds):
    """Replies in another order than asked."""
    for i in reversed(range(len(requests))):
        yield i, common.Reply(f"{requests[i][0]['content']} {seeds[i]} {ODD_TEXT}", "stop", 100, 10)


def refuse(requests, seeds):
    raise AssertionError(f"the model was asked again: {requests} {seeds}")


canned, unpaid = Model(backwards), Model(refuse)


def method(folder, chat, *, n=3, N=3, hint="", check=None, **options) -> tuple[list[common.Reply], common.Log, int]:
    """Replies by index and the log, closed."""
    log = common.Log(str(folder) if folder else None, __file__, {"N": N, "hint": hint, "url": f"{chat}"}, **options)
    try:
        units = [("edit", "t", 0, i) for i in range(n)]
        requests = [[{"role": "user", "content": f"request {i}"}] for i in range(n)]
        replies = dict(log.calls(chat, units, requests, list(range(n))))
        for i in range(n):
            ran = log.once("run", ("run", "t", 0, i), replies[i].text, lambda i=i: {"score": i / 10, "cpu_s": i}, check)
            log.write("round", ("round", "t", i, 0), best=ran["score"])
        code = log.finish(score=n)
        return [replies[i] for i in range(n)], log, code
    finally:
        if log.fd >= 0:
            os.close(log.fd)


@pytest.fixture
def done(tmp_path):
    """A finished run."""
    method(tmp_path / "run", canned)
    return tmp_path / "run"


def test_log_a_finished_run_is_not_done_again(done):
    before = (done / "log.jsonl").read_bytes()
    replies, _, code = method(done, unpaid)
    assert replies[2].text == f"request 2 2 {ODD_TEXT}"
    assert (done / "log.jsonl").read_bytes() == before
    assert code == 0


def test_log_keeps_no_file_without_a_folder():
    replies, log, _ = method(None, canned)
    assert (len(replies), log.lines["result", 0]["score"], log.path("figure.png")) == (3, 3, None)


def test_log_is_repaired_wherever_its_last_line_was_torn(done, tmp_path):
    whole = (done / "log.jsonl").read_bytes()
    expected, torn = content(done), tmp_path / "torn" / "log.jsonl"
    torn.parent.mkdir()
    ends = [k + 1 for k, c in enumerate(whole) if c == 10]
    for a, b in ((ends[-2], ends[-1]), (ends[4], ends[5])):  # the result; a call
        for cut in range(a, b):
            torn.write_bytes(whole[:cut])
            method(torn.parent, canned)
            assert content(torn.parent) == expected, f"torn at byte {cut - a} of {b - a}"
            assert whole[:a] == torn.read_bytes()[:a]


def test_log_goes_on_after_every_line(done, tmp_path):
    whole, resumed = (done / "log.jsonl").read_bytes().split(b"\n"), tmp_path / "resumed"
    resumed.mkdir()
    for k in range(len(whole)):
        (resumed / "log.jsonl").write_bytes(b"".join(line + b"\n" for line in whole[:k]))
        method(resumed, canned)
        assert content(resumed) == content(done)


def test_case_62_lines_end_at_newlines_alone(done):
    assert len(CASES[62]["input"]["existing_file"].splitlines()) > 2  # what breaks a reader that uses splitlines
    raw = (done / "log.jsonl").read_text("utf-8")
    assert len(raw.splitlines()) > raw.count("\n")
    replies, _, _ = method(done, unpaid)
    assert all("step 1\u0085step 2\u2028step 3\x1c, \ud800 alone" in reply.text for reply in replies)


def test_case_64_what_is_left_to_do_is_the_set_of_missing_units(tmp_path):
    done = {(line["round"], line["i"]) for line in CASES[64]["input"]["log"] if line["status"] == "ok"}
    n, chat, log = CASES[64]["input"]["n_per_round"], Model(backwards), common.Log(str(tmp_path), __file__, {})
    for t, i in done:
        list(log.calls(chat, [("edit", "t", t, i)], [[{"role": "user", "content": "x"}]], [i]))
    chat.asked.clear()
    units = [("edit", "t", 0, i) for i in range(n)]
    list(log.calls(chat, units, [[{"role": "user", "content": "x"}]] * n, list(range(n))))
    os.close(log.fd)
    assert [[0, i] for i in chat.asked] in CASES[64]["expected"].values()


def test_case_66_a_second_process_is_told_which_one_is_writing(tmp_path):
    log = f"common.Log({str(tmp_path)!r}, {__file__!r}, {{}})"
    code = f"import common, time; log = {log}; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with pytest.raises(common.UserError, match=rf"being written by another process \(pid {first.pid}\)"):
            common.Log(str(tmp_path), __file__, {})
        first.kill()


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"N": 4}, "--N is 4 here and 3 in .*log.jsonl"), ({"hint": "x"}, "--hint is 'x' here and ''")],
)
def test_log_a_changed_argument_is_named_by_its_flag(done, changed, named):
    with pytest.raises(common.UserError, match=f"{named}.*; use another --run"):
        method(done, unpaid, **changed)


def test_log_an_address_and_a_budget_may_change(done):
    method(done, unpaid, max_cost_usd=1e9)  # `method` calls its function's name the url


@pytest.mark.parametrize("forge", [False, True])
def test_log_an_edited_reply_stops_the_run_and_is_named(done, forge):
    edit_line(done, number_of(done, "call", 1), lambda line: line.update(text="better"), forge=forge)
    named = (
        r"run \('run', 't', 0, 1\) was asked for something else"
        if forge
        else r"\(call \('edit', 't', 0, 1\)\) was changed"
    )
    with pytest.raises(common.UserError, match=named):
        method(done, unpaid)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda lines: [*lines[:4], lines[3], *lines[4:]], r"line 5 \(.*\) stands there twice"),
        (lambda lines: [*lines[:4], lines[4][:20], *lines[5:]], "line 5 is not a line of a log"),
        (lambda lines: [*lines[:4], b"[1]", *lines[4:]], "line 5 is not a line of a log"),
        (lambda lines: [*lines[:4], b"\xff\xfe", *lines[4:]], "line 5 is not a line of a log"),
        (lambda lines: [b'{"event": "other"}', *lines], "is not the log of a run"),
        (lambda _: [b"my notes, without a newline"], "is not the log of a run"),
    ],
)
def test_log_what_is_no_log_is_named_and_left_alone(done, spoil, reason):
    file = done / "log.jsonl"
    file.write_bytes(spoiled := b"\n".join(spoil(file.read_bytes().split(b"\n"))))
    with pytest.raises(common.UserError, match=reason):
        method(done, unpaid)
    assert file.read_bytes() == spoiled


def test_log_of_another_script_is_refused(done):
    with pytest.raises(common.UserError, match=r"is a log of test_common.py, not of common.py"):
        common.Log(str(done), common.__file__, {})


def test_log_says_that_the_code_changed(done, capsys):
    edit_line(done, 1, lambda line: line["sha256"].update({"common.py": "0"}), forge=True)
    method(done, unpaid)
    assert "note: common.py changed since" in capsys.readouterr().err


def test_log_without_a_finished_call_is_begun_anew_with_any_arguments(tmp_path):
    log = common.Log(str(tmp_path), __file__, {"N": 1})
    log.once("run", ("run", "t", -1, 0), "start", lambda: {"score": 0})
    os.close(log.fd)
    method(tmp_path, canned, N=2)
    assert lines_of(tmp_path)[0]["args"]["N"] == 2
    assert not any(line.get("unit") == ["run", "t", -1, 0] for line in lines_of(tmp_path))


def test_log_secrets_and_absolute_paths_stay_out_but_sentences_stay_whole(tmp_path):
    argv = [
        "--url=http://me:pw@host:1/v1?key=pw",
        "https://me:pw@host/v1",
        "/abs/folder/model",
        "--model=/abs/folder/model",
    ]
    kept = ["see https://a.b/c?d=1 for more", "/ is integer division", "circles"]
    assert list(map(common.portable, argv)) == ["--url=http://host:1/v1", "https://host/v1", "model", "--model=model"]
    assert list(map(common.portable, kept)) == kept
    _, log, _ = method(tmp_path, canned, hint=kept[0])
    assert log.head["args"]["hint"] == kept[0]


def test_log_every_line_is_whole_when_threads_write_at_once(tmp_path):
    log = common.Log(str(tmp_path), __file__, {})
    common.parallel(
        lambda i: log.once("run", ("run", "t", 0, i), "", lambda: {"text": "x" * 5000}), ((i, i) for i in range(300))
    )
    os.close(log.fd)
    assert sorted(line["unit"][3] for line in lines_of(tmp_path) if line["event"] == "run" and "unit" in line) == list(
        range(300)
    )


def test_log_stays_whole_on_a_full_disk(tmp_path):
    code = f"""import sys; sys.path.append("tests")
import resource, test_common, pathlib
resource.setrlimit(resource.RLIMIT_FSIZE, (5500, 5500))
test_common.common.entry(lambda: test_common.method(pathlib.Path({str(tmp_path)!r}), test_common.canned, n=20)[2])"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert (tmp_path / "log.jsonl").read_bytes().endswith(b"\n")
    assert 1 < len(lines_of(tmp_path)) < 20
    assert len(method(tmp_path, canned, n=20)[0]) == 20


def test_max_cost_usd_stops_and_a_higher_one_goes_on_to_the_same_result(tmp_path):
    slow = []
    with FakeServer(lambda _, seed: f"reply {seed}", latency_s=lambda seed: 1.0 if slow and seed else 0.0) as server:
        method(tmp_path / "a", open_chat(server, **PRICES), n=120)
        asked = len(server.requests)
        slow.append(True)
        with pytest.raises(common.Stopped, match=r"--max-cost-usd 0.0001 is spent") as stopped:
            method(tmp_path / "b", open_chat(server, **PRICES), n=120, max_cost_usd=0.0001)
        paid, calls = (
            len(server.requests) - asked,
            [line for line in lines_of(tmp_path / "b") if line["event"] == "call"],
        )
        assert 1 < paid == len(calls) < 120  # also those that were in flight when the money was spent
        slow.clear()
        method(tmp_path / "b", open_chat(server, **PRICES), n=120, max_cost_usd=1)
        assert len(server.requests) == 2 * asked
    assert stopped.value.code == 3
    assert content(tmp_path / "b") == content(tmp_path / "a")


def test_max_cost_usd_is_never_silently_off(tmp_path):
    with FakeServer(
        responses=[{"status": 200, "headers": {}, "body": {"choices": [{"message": {"content": "x"}}]}}]
    ) as server:
        with pytest.raises(common.UserError, match="needs --price-in and --price-out"):
            method(tmp_path, open_chat(server), max_cost_usd=1)
        with pytest.raises(common.UserError, match="cannot be kept: calls without prices or without token counts"):
            method(tmp_path, open_chat(server, **PRICES), max_cost_usd=1)


def test_log_costs_do_not_depend_on_the_order_of_completion():
    costs = set()
    for order in permutations(range(4)):
        replies = [(i, common.Reply("x", "stop", 10 ** (4 * i) + i, 3**i)) for i in order]
        _, log, _ = method(None, Model(lambda *_, replies=replies: replies, price=(0.1, 0.7)), n=4)
        costs.add((log.lines["result", 0]["cost_usd"], log.usage()["edit"]["cost_usd"]))
    assert len(costs) == 1


def test_log_seconds_of_all_sessions_are_added():
    log = common.Log(None, __file__, {})
    times = [("run", 5.0), ("session", 5.0), ("call", 9.0), ("session", 2.0), ("call", 4.0), ("run 0", 3.0)]
    for k, (event, t_s) in enumerate(times):
        log.lines[event, 0 if event == "run" else k] = {"event": event, "t_s": t_s}
    assert log.wall_s() == 13.0


# Replay


def verified(record: dict) -> dict:
    return {"score": record["unit"][3] / 10}


def test_replay_asks_nobody_and_finds_nothing_to_complain_of(done, capsys):
    before = (done / "log.jsonl").read_bytes()
    _, log, code = method(done, None, N=99, replay=True, check=verified)
    assert (code, log.differences) == (0, [])
    assert (done / "log.jsonl").read_bytes() == before
    assert "0 differences" in capsys.readouterr().out


@pytest.mark.parametrize("forge", [False, True])
@pytest.mark.parametrize(
    ("event", "change", "named"),
    [
        ("run", {"score": 0.9}, "run ('run', 't', 0, 1): score is 0.9 in the log, 0.1 recomputed"),
        ("call", {"text": "better"}, "run ('run', 't', 0, 1) was asked for something else"),
        ("call", {"completion_tokens": 1}, "tokens is"),
        ("result", {"score": 9}, "score is 9 in the log, 3 recomputed"),
    ],
)
def test_replay_names_what_was_tampered_with(done, event, change, named, forge, capsys):
    edit_line(
        done, number_of(done, event, 0 if event == "result" else 1), lambda line: line.update(change), forge=forge
    )
    _, log, code = method(done, None, replay=True, check=verified)
    assert code == 1
    assert named in capsys.readouterr().out
    assert forge or any("was changed after it was written" in what for what in log.differences)


def test_replay_with_execute_runs_everything_again(done):
    edit_line(done, number_of(done, "run", 2), lambda line: line.update(score=0.7), forge=True)
    _, log, _ = method(done, None, replay=True, execute=True)
    assert any("('run', 't', 0, 2): score is 0.7 in the log, 0.2 recomputed" in what for what in log.differences)


def test_replay_of_an_unfinished_log_says_where_it_ends_and_what_differs(done):
    edit_line(done, number_of(done, "call", 1), lambda line: line.update(text="better"), forge=False)
    file = done / "log.jsonl"
    file.write_bytes(b"\n".join(file.read_bytes().split(b"\n")[:-3]) + b"\n")
    with pytest.raises(common.Stopped, match=r"ends before round .*(?s:.*)DIFFERENT: .*'edit', 't', 0, 1") as stopped:
        method(done, None, replay=True)
    assert stopped.value.code == 1


def test_replay_needs_a_log(tmp_path):
    with pytest.raises(common.UserError, match="nothing to replay"):
        method(tmp_path / "none", None, replay=True)
    assert not (tmp_path / "none").exists()


# Exit codes


@pytest.mark.parametrize(
    ("main", "code", "said"),
    [
        ("lambda: None", 0, ""),
        ("lambda: 1", 1, ""),
        ("lambda: (_ for _ in ()).throw(common.UserError('--N 0: too few'))", 2, "s.py: --N 0: too few\n"),
        ("lambda: (_ for _ in ()).throw(common.Stopped('spent'))", 3, "s.py: spent\n"),
        ("lambda: (_ for _ in ()).throw(common.Stopped('ends', 1))", 1, "s.py: ends\n"),
        ("lambda: (_ for _ in ()).throw(KeyboardInterrupt)", 130, "s.py: interrupted; "),
        ("lambda: open('/no/such/file')", 2, "s.py: No such file or directory: /no/such/file; "),
    ],
)
def test_entry_exits_with_the_stated_code_and_one_line(main, code, said):
    program = f"import sys, common; sys.argv = ['s.py']; common.entry({main})"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr.count("\n")) == (code, 1 if said else 0)
    assert ran.stderr.startswith(said)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"temperature": math.nan}, "--temperature nan: must be finite"),
        ({"timeout_s": [5.0, math.inf]}, "--timeout-s [5.0, inf]: must be finite"),
        ({"price_in": -1.0}, "--price-in -1.0: must be finite and not negative"),
        ({"max_cost_usd": math.nan}, "--max-cost-usd nan: must be finite"),
        ({"max_cost_usd": 0.0}, "--max-cost-usd 0.0: must be above 0"),
        ({"execute": True, "replay": False}, "--execute goes with --replay"),
        ({"replay": True, "run": None}, "--replay needs --run DIR"),
        ({"plot": True, "run": None}, "--plot needs --run DIR"),
    ],
)
def test_log_refuses_what_no_run_can_mean_before_anything_is_written(args, reason, tmp_path):
    with pytest.raises(common.UserError, match=re.escape(reason)):
        common.Log(str(tmp_path / "run"), __file__, args)
    assert list(tmp_path.iterdir()) == []


def test_log_gives_up_its_lock_after_the_result(tmp_path):
    for _ in range(2):
        log = common.Log(str(tmp_path), __file__, {"N": 1})
        assert log.finish(score=1.0) == 0


def test_sound_stops_a_run_whose_evaluator_is_broken():
    def broken(run_program):
        raise RuntimeError(f"evaluator broken: {run_program.__name__}")

    with pytest.raises(common.Stopped, match="evaluator broken: run_program; nothing was scored") as stopped:
        common.sound(broken)
    assert stopped.value.code == 1
