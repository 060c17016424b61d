"""VllmChat on the real engine with a small model, started once: what tests/probe.py measures at length, asserted."""

import json
import subprocess
import sys

import pytest

import common
import local_model
import probe
from conftest import ROOT

pytestmark = pytest.mark.vllm
N, TOKENS = 64, 8


@pytest.fixture(scope="module")
def chat():
    chat = common.VllmChat(str(local_model.prepare("smollm2")), temperature=1.0, max_tokens=TOKENS, price=(1.0, 2.0))
    chat.options = {"kv_cache_memory_bytes": 512 << 20}  # enough here, and started sooner
    chat.load()
    return chat


def bits(chat, temperature: float, order: list[int], size: int) -> probe.Bits:
    """The probe's requests in this order, `size` at once."""
    asked = probe.prompts(N)

    def ask(indices: list[int]) -> probe.Bits:
        chat.temperature, chat.bits = temperature, {}
        try:
            assert len(dict(chat([asked[i] for i in indices], [1_000_000 + i for i in indices]))) == len(indices)
            return {indices[k]: b for k, b in chat.bits.items()}
        finally:
            chat.temperature, chat.bits = 1.0, None

    return probe.in_batches(ask, order, size)


@pytest.fixture(scope="module")
def full_batch(chat):
    return {t: bits(chat, t, list(range(N)), N) for t in (0.0, 1.0)}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("comparison", ["reversed", "batches of 8", "alone"])
def test_vllm_tokens_and_bits_do_not_depend_on_what_is_in_flight(chat, full_batch, comparison, temperature):
    found = bits(chat, temperature, *probe.orders(N)[comparison])
    assert [i for i in range(N) if found[i] != full_batch[temperature][i]] == []


def test_vllm_companion_keeps_every_step_at_two_rows(chat, monkeypatch):
    """Whether one row alone is summed like one among others depends on the CPU; the number of rows does not."""
    if not chat.cpu:
        pytest.skip("the companion is the CPU engine's")
    scheduler, rows = chat.llm.llm_engine.engine_core.engine_core.scheduler, []
    schedule = scheduler.schedule

    def counted(*args, **kw):
        step = schedule(*args, **kw)
        rows.append(step.total_num_scheduled_tokens)
        return step

    monkeypatch.setattr(scheduler, "schedule", counted)
    bits(chat, 1.0, [0, 1], 1)
    assert len(rows) >= 2 * TOKENS
    assert min(n for n in rows if n) == 2
    rows.clear()
    monkeypatch.setattr(chat, "cpu", False)
    bits(chat, 1.0, [0, 1], 1)
    assert min(n for n in rows if n) == 1  # else the lines above would have shown nothing


def ask(*texts: str) -> list[list[common.Message]]:
    return [[{"role": "user", "content": text}] for text in texts]


def test_vllm_seeds_decide_the_reply(chat):
    texts = {i: r.text for i, r in chat(ask(*["Tell me a story."] * 8), [1, 2, 3, 4, 5, 6, 1, 2])}
    assert (texts[0], texts[1]) == (texts[6], texts[7])
    assert len(set(texts.values())) == 6


def test_vllm_context_overflow_is_that_requests_failure(chat):
    replies = dict(chat(ask("one", "word " * 20_000, "two"), [1, 2, 3]))
    assert [replies[i].finish_reason for i in range(3)] == ["length", "error", "length"]
    assert "context overflow: prompt 200" in replies[1].error
    assert (replies[1].text, replies[1].completion_tokens) == ("", 0)


def test_vllm_replies_come_as_they_finish_and_are_counted(chat):
    texts = ["Say yes."] * 24 + ["Tell me a long story."] * 8
    replies = list(chat(ask(*texts), list(range(32))))
    counts = [r.completion_tokens for _, r in replies]
    assert sorted(i for i, _ in replies) == list(range(32))
    assert counts == sorted(counts)
    assert counts[0] < TOKENS == counts[-1]
    assert {r.finish_reason for _, r in replies} == {"stop", "length"}
    first = replies[0][1]
    assert common.cost_usd(first, chat.price) == pytest.approx(
        (first.prompt_tokens + 2 * first.completion_tokens) / 1e6
    )


def test_vllm_closing_early_leaves_nothing_in_flight(chat):
    replies = chat(ask(*["Say yes."] * 24), list(range(24)))
    next(replies)
    assert chat.llm.llm_engine.get_num_unfinished_requests() > 0
    replies.close()
    assert chat.llm.llm_engine.get_num_unfinished_requests() == 0
    assert chat.done == {}


def test_vllm_two_rounds_at_once_get_their_own_replies(chat):
    expected = dict(chat(ask("Count.", "Sing."), [5, 6]))
    a, b = chat(ask("Count."), [5]), chat(ask("Sing."), [6])
    both = {**dict(a), 1: dict(b)[0]}
    assert both == expected
    outer = chat(ask("Count.", "Sing."), [5, 6])
    first = next(outer)
    assert dict(chat(ask("Sing."), [6])) == {0: expected[1]}
    assert dict([first, *outer]) == expected


def test_vllm_says_what_the_bits_depend_on(chat):
    assert {"vllm", "device", "dtype", "attention", "batch_invariant", "prefix_caching", "seeds"} <= set(chat.about)
    assert str(ROOT) not in json.dumps(chat.about)


@pytest.mark.parametrize(("config", "says"), [("", "cannot be loaded"), ('{"model_type": "gpt_oss"}', "--url")])
def test_vllm_what_cannot_be_served_is_one_clear_line(tmp_path, config, says):
    if config:
        (tmp_path / "config.json").write_text(config, "utf-8")
    chat = common.VllmChat(str(tmp_path), temperature=1.0, max_tokens=8, price=None)
    with pytest.raises(common.UserError, match=says) as e:
        list(chat(ask("hello"), [1]))
    assert "\n" not in str(e.value)


def test_vllm_runs_hill_sampling_end_to_end(tmp_path):
    model = local_model.prepare("smollm2")
    command = [sys.executable, "hill_sampling.py", "circles", "--model", str(model), "--N", "2", "--M", "1"]
    command += ["--max-tokens", "32", "--timeout-s", "5", "10", "--run", str(tmp_path / "run")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode in (0, 1), ran.stderr  # 1: so small a model may well make no valid edit
    lines = [json.loads(x) for x in (tmp_path / "run" / "log.jsonl").read_text("utf-8").split("\n") if x]
    assert lines[-1]["event"] == "result"
    assert lines[-1]["completions"] == 2
