"""The routers of coderescue.py: from the text of a failure to scores of the actions. A part to exchange.

tfidf      hashed words and pairs of words, softmax regression by hand in numpy: seconds on 5,000 rows, no GPU
lm         a fine-tuned causal LM behind a vLLM server: mean log-probability per label token, softmax (paper)
zero-shot  a chat model's reply: the action that it names
constant   the label shares of the training rows: knows nothing about a failure, so it shows what costs give away
"""

import argparse
import bisect
import hashlib
import re
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy import ndarray

import common

PROMPT = (
    "A cheap model's program failed its tests. Choose what to do next. reflect: the cheap model repairs it. "
    "replan: the cheap model starts again. escalate: a strong, dear model solves it. "
    "Answer with one word: reflect, replan or escalate."
)
ACTIONS = ("reflect", "replan", "escalate")  # the order of ties and of the last axis of every [row, action] array
TOKEN = re.compile(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]")
BUCKETS, STEPS = 2**15, 100  # hashed features, gradient steps


def text_of(row: dict, metadata: bool) -> str:
    """What a router reads, never the program (paper: 6,000 characters of problem; 800 of stderr on fail, else 400)."""
    fields = {key: row.get(key) for key in ("source", "difficulty", "len", "algo")}
    fields["len"] = round(len(row["problem"]) / 200) * 200
    prefix = " | ".join(f"{k}={v}" for k, v in fields.items() if v not in (None, ""))
    stderr = row["stderr"][-(800 if row["verdict"] == "fail" else 400) :]
    text = f"Problem:\n{row['problem'][:6000]}\n\nVerdict: {row['verdict']}\nStderr:\n{stderr}"
    return f"[{prefix}]\n{text}" if metadata else text


def chat_of(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": PROMPT}, {"role": "user", "content": text}]


def split(rows: list[dict], shares: Mapping[str, float], seed: int) -> dict[str, list[dict]]:
    """Parts of about these shares, by a hash of the problem: an id, or a text with several ids, is in one part only."""
    texts = [" ".join(row["problem"].split()) or row["id"] for row in rows]
    name: dict[str, str] = {}  # text: the least id that has it
    for text, row in zip(texts, rows, strict=True):
        name[text] = min(row["id"], name.get(text) or row["id"])
    parts: dict[str, list[dict]] = {part: [] for part in shares}
    ends = np.cumsum(list(shares.values())[:-1])
    for text, row in zip(texts, rows, strict=True):
        digest = hashlib.blake2b(f"{seed}:{name[text]}".encode(), digest_size=8).digest()
        parts[list(shares)[bisect.bisect_right(ends, int.from_bytes(digest, "big") / 2**64)]].append(row)
    return parts


def targets(solved: ndarray, costs: ndarray, labels: str) -> ndarray:
    """[row, action] label shares, 0 where nothing passes (NaN does not). costs: by action.

    hard: the cheapest passing action, ties to the first; soft: all passing ones alike.
    """
    passed = solved == 1
    if labels == "soft":
        return passed / np.maximum(passed.sum(1, keepdims=True), 1)
    cheapest = np.where(passed, np.nan_to_num(costs, nan=np.inf), np.inf).argmin(1)
    return np.eye(solved.shape[1])[cheapest] * passed.any(1, keepdims=True)


def weighted(texts: list[str], idf: ndarray | None) -> tuple[tuple[ndarray, ndarray, ndarray], ndarray]:
    """((row, feature, value) of each cell, idf): (1 + log count) idf, rows of length one; crc32, stable everywhere."""
    known: dict[str, int] = {}
    keys = [np.empty(0, np.int64)]
    for k, text in enumerate(texts):
        words = TOKEN.findall(text)
        for word in set(words) - known.keys():
            known[word] = zlib.crc32(word.encode("utf-8", "surrogatepass"))
        h = np.array([known[word] for word in words], np.uint64)
        pairs = (h[:-1] * np.uint64(0x9E3779B97F4A7C15) + h[1:] * np.uint64(0xC2B2AE3D27D4EB4F)) >> np.uint64(40)
        keys.append(k * BUCKETS + (np.concatenate([h, pairs]) % np.uint64(BUCKETS)).astype(np.int64))
    cells, counts = np.unique(np.concatenate(keys), return_counts=True)
    rows, features = np.divmod(cells, BUCKETS)
    if idf is None:
        idf = np.log((1 + len(texts)) / (1 + np.bincount(features, minlength=BUCKETS))) + 1
    values = (1 + np.log(counts)) * idf[features]
    return (rows, features, values / np.sqrt(np.bincount(rows, values**2, len(texts)))[rows]), idf


def softmax(z: ndarray) -> ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def product(rows: ndarray, features: ndarray, values: ndarray, W: ndarray, n: int) -> ndarray:
    """W X' for the sparse X of n rows that these cells are: [action, row] from W [action, feature]."""
    return np.stack([np.bincount(rows, values * w.take(features), n) for w in W])


def fit(texts: list[str], Y: ndarray) -> dict[str, ndarray]:
    """Softmax regression on tf-idf; Y [row, action] label shares. Full-batch Nesterov steps, ridge 1/n, bias free."""
    (rows, features, values), idf = weighted(texts, None)
    n, K = Y.shape
    W = V = np.zeros((K, BUCKETS))
    b = v = np.log(Y.mean(0) + 1e-3)
    step = 1 / (1 + 1 / n)  # softmax's curvature is at most 1/2, and a row with its bias has length sqrt 2
    for k in range(STEPS):
        G = (softmax(product(rows, features, values, V, n).T + v) - Y) / n
        W_old, W = W, V - step * (product(features, rows, values, G.T.copy(), BUCKETS) + V / n)
        b_old, b = b, v - step * G.sum(0)
        V, v = W + k / (k + 3) * (W - W_old), b + k / (k + 3) * (b - b_old)
    return {"W": W, "b": b, "idf": idf}


def tfidf_scores(texts: list[str], learnt: dict[str, ndarray]) -> ndarray:
    cells, _ = weighted(texts, learnt["idf"])
    return softmax(product(*cells, learnt["W"], len(texts)).T + learnt["b"])


def vllm_server(url: str, model: str | None) -> Callable[..., dict]:
    """post(path, **body) -> the JSON that a vLLM server answers; ValueError with what it says if it refuses."""
    import requests

    root = url.rstrip("/").removesuffix("/v1")

    def post(path: str, **body) -> dict:
        try:
            answer = requests.post(root + path, json=body | ({"model": model} if model else {}), timeout=600)
        except requests.RequestException as e:
            raise ValueError(f"no server answers at {root} ({type(e).__name__})") from None
        if answer.status_code != 200:
            raise ValueError(f"{root}{path} answered {answer.status_code}: {answer.text[:300]}")
        return answer.json()

    return post


def lm_scores(texts: list[str], post: Callable[..., dict]) -> ndarray:
    """Softmax of the mean log-probability per label token after the assistant's header (the model's chat template)."""
    labels = [post("/tokenize", prompt=action, add_special_tokens=False)["tokens"] for action in ACTIONS]

    def score(text: str) -> list[float]:
        head = post("/tokenize", messages=chat_of(text), add_generation_prompt=True)["tokens"]
        means = []
        for label in labels:  # the server's prefix cache keeps the head
            asked = {"prompt": head + label, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
            cells = post("/v1/completions", **asked)["choices"][0]["prompt_logprobs"][len(head) :]
            means.append(np.mean([cell[str(token)]["logprob"] for cell, token in zip(cells, label, strict=True)]))
        return means

    with ThreadPoolExecutor(16) as pool:
        return softmax(np.array(list(pool.map(score, texts))).reshape(-1, len(ACTIONS)))


def named_scores(replies: list[str]) -> ndarray:
    """1 for the action that a reply names last; all alike where it names none."""
    named = [re.findall("|".join(ACTIONS), reply.lower())[-1:] for reply in replies]
    rows = [[float(a in name) if name else 1 / len(ACTIONS) for a in ACTIONS] for name in named]
    return np.array(rows).reshape(-1, len(ACTIONS))


def predict(router: dict, table: list[dict], args: argparse.Namespace) -> ndarray:
    """[row, action] scores of a router {kind, metadata, ...}; UserError where its model cannot be asked."""
    texts, kind = [text_of(row, bool(router["metadata"])) for row in table], str(router["kind"])
    if kind == "constant":
        return np.tile(router["prior"], (len(table), 1))
    if kind == "tfidf":
        return tfidf_scores(texts, router)
    if kind == "zero-shot":
        options = {"temperature": 0.0, "max_tokens": 256, "price_in": None, "price_out": None}
        seeds = [common.seed_of(args.seed, "router", common.sha256(text), 0, 0) for text in texts]
        chat = common.open_chat(model=args.model, url=args.url, **options)
        replies = dict(chat([chat_of(text) for text in texts], seeds)) if texts else {}
        return named_scores([replies[k].text for k in range(len(texts))])
    if not args.url:
        raise common.UserError("an lm router reads log-probabilities from a vLLM server: give its --url")
    try:
        return lm_scores(texts, vllm_server(args.url[0], args.model))
    except ValueError as e:
        raise common.UserError(str(e)) from None
