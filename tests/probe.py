"""What holds on this machine: does a seeded request give the same tokens and the same log-probability bits, whatever is
in flight beside it? Prints k of n that differ from the first full batch, with version, device and attention backend.

Run     python tests/probe.py --model MODEL             vLLM in this process, as the scripts use it; restarts it twice
        python tests/probe.py --model MODEL --plain     the same engine without our part (no companion, vLLM's defaults)
        python tests/probe.py --url URL                 a served engine; --save FILE, restart it, then --against FILE
Half of the requests share one prompt (n samples of one task), half have prompts of different lengths. Two cores: 6 min.
"""

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common

Bits = dict[int, tuple[list, list[float]]]  # request -> (tokens, their log-probabilities); equal floats are equal bits
WORDS = ("graph", "prime", "sort", "matrix", "stack", "parse", "bound", "cycle", "merge", "route", "queue", "shard")


def prompts(n: int) -> list[list[common.Message]]:
    """n requests: every second one is the same, the others differ from the first word on and in length."""
    texts = ["Write a Python function that returns the n-th prime number, and explain it."] * n
    for i in range(1, n, 2):
        texts[i] = (
            f"Task {i}: " + " ".join(WORDS[(i + j * j) % 12] for j in range(8 + 3 * i % 100)) + ". Write it in Python."
        )
    return [[{"role": "user", "content": text}] for text in texts]


def orders(n: int) -> dict[str, tuple[list[int], int]]:
    """Comparison -> (the order of the requests, how many at once)."""
    forward = list(range(n))
    return {
        "again": (forward, n),
        "reversed": (forward[::-1], n),
        "batches of 8": (forward, 8),
        "alone": (forward, 1),
    }


def in_batches(ask, order: list[int], size: int) -> Bits:
    """ask(indices) -> Bits of these requests, in flight together; the merged answer."""
    found: Bits = {}
    for k in range(0, len(order), size):
        found |= ask(order[k : k + size])
    return found


def engine(
    model: str, n: int, tokens: int, temperatures: list[float], names: list[str], plain: bool, **options
) -> tuple:
    """(about, {(temperature, name): Bits}) of one engine that lives as long as this call's process."""
    if plain:
        os.environ |= {"VLLM_CPU_ATTN_SPLIT_KV": "1", "VLLM_BATCH_INVARIANT": "0"}
    chat = common.VllmChat(model, temperature=1.0, max_tokens=tokens, price=None)
    chat.options = options
    chat.load()
    chat.cpu &= not plain
    requests, found = prompts(n), {}

    def ask(indices: list[int]) -> Bits:
        chat.bits = {}
        replies = dict(chat([requests[i] for i in indices], [1_000_000 + i for i in indices]))
        assert all(r.finish_reason != "error" for r in replies.values()), replies
        return {indices[k]: bits for k, bits in chat.bits.items()}

    for chat.temperature in temperatures:
        for name in names:
            order, size = orders(n).get(name, (list(range(n)), n))
            print(f"  temperature {chat.temperature:g}: {name}", file=sys.stderr, flush=True)
            found[chat.temperature, name] = in_batches(ask, order, size)
    return chat.about, found


def probe_engine(a: argparse.Namespace) -> tuple[dict, dict]:
    """Three engines, each in its own process: all orders, after a restart, and without prefix caching."""
    found, about = {}, {}
    runs = [(["first", *orders(a.n)], {}), (["after a restart"], {})]
    runs += [(["prefix caching off"], {"enable_prefix_caching": False})]
    spawn = multiprocessing.get_context("spawn")
    for names, options in runs:
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            job = process.submit(engine, a.model, a.n, a.tokens, a.temperature, names, a.plain, **options)
            said, bits = job.result()
        about, found = about or said, found | bits
    return about, found


def probe_server(a: argparse.Namespace) -> tuple[dict, dict]:
    """A server over HTTP, as many requests at once as the comparison says."""
    import requests as http

    server = a.url.rstrip("/").removesuffix("/v1")
    served = http.get(f"{server}/v1/models", timeout=30).json()["data"][0]["id"]
    asked, found = prompts(a.n), {}

    def one(i: int, temperature: float) -> tuple[list, list[float]]:
        body = {"model": a.model or served, "messages": asked[i], "seed": 1_000_000 + i, "temperature": temperature}
        body |= {"max_tokens": a.tokens, "logprobs": True, "top_logprobs": 0}
        answer = http.post(f"{server}/v1/chat/completions", json=body, timeout=3600)
        if not answer.ok:  # a vLLM CPU server refuses a seed unless it runs with --no-enable-chunked-prefill
            raise common.UserError(f"{server} answered {answer.status_code}: {' '.join(answer.text.split())[:300]}")
        parts = answer.json()["choices"][0]["logprobs"]["content"]
        return [p["token"] for p in parts], [p["logprob"] for p in parts]

    with ThreadPoolExecutor(a.n) as pool:
        for temperature in a.temperature:
            for name in ["first", *orders(a.n)]:
                order, size = orders(a.n).get(name, (list(range(a.n)), a.n))
                print(f"  temperature {temperature:g}: {name}", file=sys.stderr, flush=True)
                found[temperature, name] = in_batches(
                    lambda part, t=temperature: dict(zip(part, pool.map(lambda i: one(i, t), part), strict=True)),
                    order,
                    size,
                )
    version = http.get(f"{server}/version", timeout=30)
    return {"server": version.json() if version.ok else "unknown", "model": served}, found


def rows(found: dict, n: int) -> list[tuple[float, str, int, int]]:
    """(temperature, comparison, how many requests' tokens differ from the first batch's, how many's bits do)."""
    out = []
    for (temperature, name), bits in found.items():
        first = found[temperature, "first"]
        assert len(bits) == n
        tokens = sum(bits[i][0] != first[i][0] for i in range(n))
        out.append((temperature, name, tokens, sum(bits[i] != first[i] for i in range(n))))
    return [row for row in out if row[1] != "first"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--model", help="folder or hub name; with --url the model's name on the server")
    parser.add_argument("--url", help="an OpenAI-compatible server that returns log-probabilities")
    parser.add_argument(
        "--plain", action="store_true", help="vLLM's own settings: no companion request, split attention"
    )
    parser.add_argument("--n", type=int, default=64, help="requests in a full batch")
    parser.add_argument("--tokens", type=int, default=48, help="tokens a reply")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument(
        "--save", type=Path, help="keep the first batches' bits, to compare after a restart of the server"
    )
    parser.add_argument("--against", type=Path, help="compare with such a file too")
    a = parser.parse_args(argv)
    if not (a.model or a.url):
        raise common.UserError("give --model or --url")
    about, found = probe_server(a) if a.url else probe_engine(a)
    if a.against:
        for key, bits in json.loads(a.against.read_text("utf-8")).items():
            found[float(key), f"against {a.against.name}"] = {int(i): (t, p) for i, (t, p) in bits.items()}
    if a.save:
        a.save.write_text(json.dumps({t: bits for (t, name), bits in found.items() if name == "first"}), "utf-8")
    print(json.dumps(about))
    print(f"of {a.n} requests, {a.tokens} tokens each, how many differ from the first batch of {a.n}:")
    print(f"{'temperature':>11}  {'comparison':<22} {'tokens':>6} {'bits':>6}")
    for temperature, name, tokens, bits in rows(found, a.n):
        print(f"{temperature:>11g}  {name:<22} {tokens:>6} {bits:>6}")
    return 0


if __name__ == "__main__":
    common.entry(main)
