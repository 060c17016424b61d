"""Tokens a second of a round through `chat`, against the engine's own offline call (LLM.chat) on the same prompts.

Run     python tests/bench_throughput.py --model MODEL          prints the ratio; exit code 1 below the wanted 0.95
Both use one engine and the same sampling, in turns, after an unmeasured warm-up; the prefix cache is emptied each time.
The ratio is that of the sums of seconds, so that a machine that is busy for a while hits both sides alike.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common
import probe

WANTED = 0.95


def through_chat(chat, requests: list, seeds: list[int]) -> list[int]:
    """Tokens of each reply, in the order of the requests."""
    return [reply.completion_tokens for _, reply in sorted(chat(requests, seeds), key=lambda pair: pair[0])]


def offline(chat, requests: list, seeds: list[int]) -> list[int]:
    """The same through LLM.chat, which returns when all are done."""
    from vllm import SamplingParams

    sampling = [SamplingParams(temperature=chat.temperature, max_tokens=chat.max_tokens, seed=seed) for seed in seeds]
    return [len(out.outputs[0].token_ids) for out in chat.llm.chat(requests, sampling, use_tqdm=False)]


def seconds(call, chat, requests: list, seeds: list[int]) -> tuple[float, list[int]]:
    chat.llm.reset_prefix_cache()
    start = time.perf_counter()
    tokens = call(chat, requests, seeds)
    return time.perf_counter() - start, tokens


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--model", required=True, help="folder or hub name")
    parser.add_argument("--n", type=int, default=64, help="requests a round")
    parser.add_argument("--tokens", type=int, default=64, help="tokens a reply at most")
    parser.add_argument("--repeats", type=int, default=4, help="rounds each way")
    a = parser.parse_args(argv)
    chat = common.VllmChat(a.model, temperature=1.0, max_tokens=a.tokens, price=None)
    chat.load()
    requests, seeds = probe.prompts(a.n), [1_000_000 + i for i in range(a.n)]
    spent, counts = {through_chat: 0.0, offline: 0.0}, set()
    for repeat in range(a.repeats + 1):
        for call in (through_chat, offline) if repeat % 2 else (offline, through_chat):
            took, tokens = seconds(call, chat, requests, seeds)
            counts.add(tuple(tokens))
            spent[call] += took if repeat else 0.0
            print(f"  {call.__name__}: {sum(tokens)} tokens in {took:.1f} s", file=sys.stderr, flush=True)
    assert len(counts) == 1, "the two calls gave replies of different lengths"
    total = sum(counts.pop()) * a.repeats
    ratio = spent[offline] / spent[through_chat]
    print(f"chat {total / spent[through_chat]:.1f} tokens/s, LLM.chat {total / spent[offline]:.1f} tokens/s, ", end="")
    print(f"ratio {ratio:.3f} (wanted: {WANTED})")
    return int(ratio < WANTED)


if __name__ == "__main__":
    common.entry(main)
