"""CodeRescue: when the cheap model's program has failed, pick the recovery action that a calibrated budget allows.

Paper   CodeRescue, arXiv:2607.19338 (reported withdrawn); its calibration is Conformal Risk Control, arXiv:2208.02814
Input   a rescue table, JSON lines, one failed program each: id, problem, source, verdict, stderr, scores {action: s},
        cost_musd {action: c}, imputed [action], solved {action: true, false, null = not run}; optional: difficulty,
        algo, mean_cost_musd {action: c}, c_max_musd. Costs are in milli-dollars (m$)
Loop    1. collect: the cheap model's program fails; reflect and replan (cheap model), escalate (strong model) are tried
        2. train: a router learns scores s(a|x) from problem, verdict and stderr; it never sees the failed program
        3. calibrate: pi_lambda(x) = argmax_a s(a|x) - lambda c(a,x);
           lambda_hat = min{lambda: (n C_n(lambda) + c_max)/(n+1) <= B}, C_n the mean cost of the n calibration rows
        4. route: one failure in, one action and the reason out; or the whole loop on live failures
Run     python coderescue.py collect --cheap M --strong M --price-cheap .2 1.25 --price-strong 2.5 15 --run T
        python coderescue.py train --table T/rescue.jsonl --router tfidf --out S
        python coderescue.py calibrate --calibration S/calibration.jsonl --test S/test.jsonl --budget-musd 2.56 --run C
        python coderescue.py route --router-file S/router.npz --calibrated C --failure row.json
Expect  GPT-5.4-nano and GPT-5.4, 360 test rows, one split: solve .717 at 2.56 m$ (B = 2.56), .817 at 5.51 (lambda = 0),
        always-escalate .686 at 7.22. With these costs scores that know nothing reach .594 at 2.62: escalate's was
        filled in where a cheap action had worked, so a policy that sees the costs of a row sees its label
Differs - --cost mean plans with one cost an action (from training rows); the paper plans with the row's own (--cost
          realised), which nobody knows before the action has run. Certified is what is really paid: a row is charged
          the largest cost it has at any lambda' >= lambda, which is the paper's C_n where the two costs are the same
        - ties go to the cheaper action, then to the first of reflect, replan, escalate
        - collect runs all three actions on every failure (--short-circuit: the paper's order): no cost is imputed
        - prompts are our own; stderr keeps its last characters; the binary cascade, which the paper does not define, is
          a calibrated choice of two: the cheap action with the larger mean score, or escalate
Routers tfidf: hashed words and pairs of words, softmax regression in numpy; lm: a fine-tuned causal LM behind a vLLM
        server, mean log-probability per label token (paper); zero-shot: a chat model names the action; constant: label
        shares of the training rows, which know nothing about a failure and so show what the costs give away
Billing tokens x price, both calls of a retry (one where a reply has no `def `, as in the paper); sandbox time is free
"""

import argparse
import bisect
import functools
import hashlib
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy import ndarray

import common
from evaluators import functions

ROUTER_PROMPT = (
    "A cheap model's program failed its tests. Choose what to do next. reflect: the cheap model repairs it. "
    "replan: the cheap model starts again. escalate: a strong, dear model solves it. "
    "Answer with one word: reflect, replan or escalate."
)
ACTIONS = ("reflect", "replan", "escalate")  # the order of ties and of the last axis of every [row, action] array
TOKEN = re.compile(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]")
BUCKETS, STEPS = 2**15, 100  # hashed features, gradient steps
FIRST_PROMPT = "Solve this problem in Python. Reply with the complete program in one ```python block.\n\n{problem}"
RETRY_PROMPT = """\
{problem}

This program was meant to solve the problem above, and its tests said "{verdict}":
```python
{code}
```
{error}

{wish} Reply with the complete program in one ```python block."""
REFLECT = "Find the fault and repair the program."
REPLAN = "Do not repair it: start again, with a fundamentally different approach."
CUT_CODE, CUT_ERROR = 4000, 1500  # characters of a failed attempt that a prompt shows (paper)
TEMPLATE_TOKENS = 512  # what our words and a chat template add to a prompt, at most
GUARANTEE = {
    "crc": "the mean cost of each ok line is at most its B, in expectation over calibration and test rows of one "
    "population (where nothing can be certified, no action is taken and nothing paid); not within a source, not a row",
    "hoeffding": "the mean cost of each ok line is at most its B, with probability 1 - delta over the calibration rows",
    "none": "nothing; the calibration mean alone was compared with B, which the mean cost exceeds every other time",
}


def read_table(path: str) -> list[dict]:
    """The rows of a rescue table. UserError names the first line that is not one."""
    rows = []
    for k, line in enumerate(Path(path).read_text("utf-8").split("\n"), 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
            numbers = [*rows[-1]["cost_musd"].values(), *rows[-1]["scores"].values()] if line.strip() else []
            if any(v is not None and not math.isfinite(v) for v in numbers):
                raise ValueError("a score or a cost is not finite")
            if line.strip() and not set(rows[-1]["solved"]) <= set(ACTIONS):
                raise ValueError(f"solved has other actions than {ACTIONS}")
        except (ValueError, LookupError, TypeError, AttributeError) as e:
            raise common.UserError(f"{path}, line {k}: not a row of a rescue table ({e!r})") from None
    return rows


def write_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def column(rows: list[dict], field: str) -> ndarray:
    """[row, action] floats, NaN where the row has null or nothing."""
    cells = [row[field].get(a) for row in rows for a in ACTIONS]
    return np.array([math.nan if v is None else v for v in cells], float).reshape(-1, len(ACTIONS))


def arrays(table: list[dict]) -> dict[str, ndarray]:
    """[row, action] arrays: s scores, solved 1 or 0, r costs paid, NaN unknown; calibrate adds c, planning costs."""
    return {"s": column(table, "scores"), "solved": column(table, "solved"), "r": column(table, "cost_musd")}


def envelope(s: ndarray, c: ndarray) -> tuple[ndarray, ndarray]:
    """(t, a), each [row, step]: from lambda = t on (t rises, inf pads) action a maximises s - lambda c.

    Ties go to the cheaper action, then to the first. Deciding by t, never by s - lambda c, keeps a tie a tie in floats.
    """
    n, K = s.shape
    t, a, i = np.zeros((n, K)), np.empty((n, K), int), np.arange(n)
    a[:, 0] = np.where(s == s.max(1, keepdims=True), c, np.inf).argmin(1)
    for k in range(1, K):
        now = a[:, k - 1]
        ds, dc = s[i, now][:, None] - s, c[i, now][:, None] - c
        cross = np.divide(ds, dc, out=np.full((n, K), np.inf), where=dc > 0)
        t[:, k] = np.maximum(cross.min(1), t[:, k - 1])
        then = np.where(cross == cross.min(1, keepdims=True), c, np.inf).argmin(1)
        a[:, k] = np.where(np.isfinite(t[:, k]), then, now)
    for k in reversed(range(K - 1)):  # a step of no length is no step
        a[:, k] = np.where(t[:, k] == t[:, k + 1], a[:, k + 1], a[:, k])
    return t, a


def choose(s: ndarray, c: ndarray, lam: float) -> ndarray:
    """The action of each row at this lambda; lam = inf is the cheapest one."""
    t, a = envelope(s, c)
    return a[np.arange(len(s)), (t <= lam).sum(1) - 1]


def coderescue(
    s: ndarray, c: ndarray, r: ndarray, budgets: list[float], *, bound: str, c_min: float, c_max: float, delta: float
) -> Iterator[dict]:
    """Yield one record a budget B: the smallest lambda whose bound on the mean cost is <= B, or status "infeasible".

    s, c, r: [calibration row, action] scores, costs that the policy plans with, costs really paid, each r <= c_max.
    bound crc: E[cost] <= B; hoeffding: mean cost <= B with probability 1 - delta over calibration rows; none: nothing.
    """
    n = len(s)
    if n == 0 or not (np.isfinite(c).all() and np.isfinite(r).all()):
        raise ValueError(f"{n} calibration rows; at least one is needed, and finite costs in all")
    if r.max() > c_max or (bound == "hoeffding" and r.min() < c_min):
        raise ValueError(f"costs from {r.min()} to {r.max()} m$ do not keep to c_min = {c_min} and c_max = {c_max}")
    t, a = envelope(s, c)
    # L[row, step]: the largest cost from this step on. It never rises with lambda, whatever r is; if r = c it is r
    L = np.maximum.accumulate(np.take_along_axis(r, a, 1)[:, ::-1], 1)[:, ::-1]
    lambdas = np.unique(t[np.isfinite(t)])  # C_n changes nowhere else

    def C(k: int) -> float:
        return float(L[np.arange(n), (t <= lambdas[k]).sum(1) - 1].mean())

    def certified(k: int) -> float:
        eps = (c_max - c_min) * math.sqrt(math.log(1 / delta) / (2 * n)) if bound == "hoeffding" else 0.0
        return (n * C(k) + c_max) / (n + 1) if bound == "crc" else C(k) + eps

    about = {"bound": bound, "n": n, "c_max_musd": c_max, "min_budget_musd": certified(len(lambdas) - 1)}
    for B in budgets:
        # numpy's sum adds in a fixed order, so C_n is monotone in floats too, and bisection finds what a scan would
        k = bisect.bisect_left(range(len(lambdas)), True, key=lambda k: certified(k) <= B)
        if k == len(lambdas):
            yield {"budget_musd": B, "status": "infeasible", "lambda_hat": None, **about}
        else:
            found = {"calibration_musd": C(k), "certified_musd": certified(k)}
            yield {"budget_musd": B, "status": "ok", "lambda_hat": float(lambdas[k]), **found, **about}


def mean_se(x: ndarray) -> tuple[float | None, float | None]:
    """Mean and its standard error; NaN is left out, None where nothing is left."""
    x = x[~np.isnan(x)]
    return (float(x.mean()), float(x.std() / len(x) ** 0.5)) if len(x) else (None, None)


def measure(rows: dict[str, ndarray], chosen: ndarray) -> dict:
    """What these actions solve and cost. Ungraded and unpriced cells are left out and counted. rows: see arrays()."""
    won, paid = (rows[key][np.arange(len(chosen)), chosen] for key in ("solved", "r"))
    (rate, rate_se), (cost, cost_se) = mean_se(won), mean_se(paid)
    found = {"solve_rate": rate, "solve_se": rate_se, "mean_cost_musd": cost, "cost_se": cost_se, "rows": len(chosen)}
    found |= {"ungraded": int(np.isnan(won).sum()), "unpriced": int(np.isnan(paid).sum())}
    found["solve_rate_ungraded_failed"] = mean_se(np.nan_to_num(won))[0]
    return found | {"shares": [mean_se(chosen == k)[0] for k in range(len(ACTIONS))]}


def fixed_policies(rows: dict[str, ndarray]) -> dict[str, dict]:
    """What needs no router: always one action, a random one (in expectation), the cheapest that passes."""
    solved, r = rows["solved"], rows["r"]
    table = {f"always {a}": measure(rows, np.full(len(r), k)) for k, a in enumerate(ACTIONS)}
    expected = {"solved": solved.mean(1, keepdims=True), "r": r.mean(1, keepdims=True)}
    table["random"] = measure(expected, np.zeros(len(r), int)) | {"shares": [1 / len(ACTIONS)] * len(ACTIONS)}
    # where nothing passes the oracle takes the cheapest action: it is not told to give up
    price = np.nan_to_num(r, nan=1e9) + np.where(solved == 1, 0.0, 1e12)
    return table | {"oracle": measure(rows, price.argmin(1))}


def contenders(s: ndarray) -> dict[str, Callable[[ndarray], ndarray]]:
    """Who is calibrated: the router and two controls, each a function from scores to those it uses (-inf: never)."""
    constant = s.mean(0)  # nothing about x: what it gains over always-X, it was told by the costs
    cheap = int(constant[1] > constant[0])
    allowed = np.isin(np.arange(len(ACTIONS)), (cheap, 2))
    return {
        "router": lambda s: s,
        "constant scores": lambda s: np.broadcast_to(constant, s.shape),
        f"cascade {ACTIONS[cheap]} | escalate": lambda s: np.where(allowed, s, -np.inf),
    }


def on_test(record: dict, rows: dict[str, ndarray], on_infeasible: str) -> dict:
    """The record with what its policy does on these rows; where no budget is certified nothing, unless asked for."""
    certified = record["status"] == "ok"
    found = measure(rows, choose(rows["s"], rows["c"], record["lambda_hat"] if certified else math.inf))
    if certified or on_infeasible == "cheapest":
        return record | found | ({} if certified else {"status": "no guarantee"})
    nothing = dict.fromkeys(found) | {"rows": len(rows["s"])}
    if on_infeasible == "abstain":  # no action is run: nothing is solved, nothing is paid
        nothing |= {"status": "abstain", "solve_rate": 0.0, "mean_cost_musd": 0.0}
    return record | nothing


def success_sets(solved: ndarray) -> str:
    """S(x): shares of rows by what solves them, among the rows that are graded in all three actions."""
    graded = solved[~np.isnan(solved).any(1)] == 1
    cheap, strong = graded[:, :2].any(1), graded[:, 2]
    cells = {"cheap only": cheap & ~strong, "both": cheap & strong, "escalate only": ~cheap & strong}
    cells["none"] = ~cheap & ~strong
    shares = [f"{name} {cell.mean():.3f}" for name, cell in cells.items() if len(cell)]
    return f"S(x) of {len(graded)} rows: {', '.join(shares)}"


def imputed_costs(table: list[dict], solved: ndarray, how: str) -> Iterator[str]:
    """Warnings about costs that were filled in: that one was can say what the other actions did."""
    for k, action in enumerate(ACTIONS):
        filled = np.array([action in row.get("imputed", ()) for row in table])
        other = (np.delete(solved, k, 1) == 1).any(1)
        if filled.any():
            share = [f"{100 * (mean_se(other[cell])[0] or 0):.0f} %" for cell in (filled, ~filled)]
            yield f"the cost of {action} is imputed in {filled.sum()} of {len(table)} rows and certified as if real"
            yield f"where it is imputed another action solves {share[0]} of the rows, elsewhere {share[1]}"
            if how == "realised":
                yield "LEAK: --cost realised shows the policy which; look at the constant scores, use --cost mean"


def text_of(row: dict, metadata: bool) -> str:
    """What a router reads, never the program (paper: 6,000 characters of problem; 800 of stderr on fail, else 400)."""
    fields = {key: row.get(key) for key in ("source", "difficulty", "len", "algo")}
    fields["len"] = round(len(row["problem"]) / 200) * 200
    prefix = " | ".join(f"{k}={v}" for k, v in fields.items() if v not in (None, ""))
    stderr = row["stderr"][-(800 if row["verdict"] == "fail" else 400) :]
    text = f"Problem:\n{row['problem'][:6000]}\n\nVerdict: {row['verdict']}\nStderr:\n{stderr}"
    return f"[{prefix}]\n{text}" if metadata else text


def chat_of(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": ROUTER_PROMPT}, {"role": "user", "content": text}]


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


def add_options(add: Callable) -> None:
    add("--cheap", metavar="MODEL", help="folder or hub name for vLLM in this process, or the name at --cheap-url")
    add("--cheap-url", nargs="+", metavar="URL", help="OpenAI-compatible servers, used in turn")
    add("--strong", metavar="MODEL")
    add("--strong-url", nargs="+", metavar="URL")
    add("--price-cheap", nargs=2, type=float, metavar=("IN", "OUT"), help="USD a million tokens (paper: .20 1.25)")
    add("--price-strong", nargs=2, type=float, metavar=("IN", "OUT"), help="USD a million tokens (paper: 2.50 15.00)")
    add(
        "--escalate",
        choices=["blind", "with-feedback"],
        default="blind",
        help="what the strong model sees (paper: blind)",
    )
    add("--temperature", type=float, default=1.0, help="(paper: the server's own)")
    add("--max-tokens", type=int, default=8192, help="of one reply (paper: 8192)")
    add("--timeout-s", type=float, default=30.0, help="of a test run (paper: 30)")
    add("--max-cost-usd", type=float, help="stop when this is spent")
    add("--execute", action="store_true", help="with --replay: run the programs again too")


def open_models(args: argparse.Namespace) -> dict[str, Callable]:
    """The cheap and the strong model; nothing is loaded before its first call, and a replay has none."""
    options = {"temperature": args.temperature, "max_tokens": args.max_tokens}
    given = (args.cheap, args.cheap_url, args.price_cheap), (args.strong, args.strong_url, args.price_strong)
    chats = (common.open_chat(model=m, url=url, price_in=p[0], price_out=p[1], **options) for m, url, p in given)
    return {} if args.replay else dict(zip(("cheap", "strong"), chats, strict=True))


def judged(log: common.Log, problems: dict, timeout_s: float, item: tuple[common.Unit, common.Reply]) -> dict | None:
    """What became of one reply; None where it is to be asked for once more: the first one without a `def ` (paper)."""
    unit, reply = item
    problem = problems[unit[1]]
    code, why = common.extract_code(reply.text, problem["entry_point"] or "", reply.finish_reason)
    if unit[3] == 0 and ("def " not in reply.text if problem["entry_point"] else code is None):
        return None
    if code is None:
        return {"code": reply.text, "verdict": "parse_error", "stderr": f"no program in the reply: {why}"}

    def test() -> dict:
        found = functions.run_tests(problem, code, common.run_program, timeout_s=timeout_s)
        return dict(zip(("verdict", "stderr"), found, strict=True))

    record = log.once("verdict", unit, code, test)
    return {"code": code, "verdict": record["verdict"], "stderr": record["stderr"]}


def stage(
    problems: dict, log: common.Log, models: dict, args: argparse.Namespace, role: str, asked: dict[str, str]
) -> dict:
    """{problem id: {code, verdict, stderr, tokens [in, out], cost_musd}} of one prompt each, retries included."""
    who = "strong" if role == "escalate" else "cheap"
    done, tokens = {}, {i: [] for i in asked}

    def replies(units: list[common.Unit]) -> Iterator:  # they are tested while others are still being written
        prompts = [[{"role": "user", "content": asked[unit[1]]}] for unit in units]
        seeds = [common.seed_of(args.seed, *unit) for unit in units]
        for k, reply in log.calls(models.get(who), units, prompts, seeds):
            tokens[units[k][1]].append((reply.prompt_tokens, reply.completion_tokens))
            yield k, (units[k], reply)

    for attempt in (0, 1):
        units = [(role, i, 0, attempt) for i in asked if i not in done]
        records = common.parallel(functools.partial(judged, log, problems, args.timeout_s), replies(units))
        done |= {units[k][1]: record for k, record in records.items() if record}
    price = np.array(getattr(args, f"price_{who}"))
    for i in asked:
        counts = [None if None in n else sum(n) for n in zip(*tokens[i], strict=True)]
        done[i] |= {"tokens": counts, "cost_musd": None if None in counts else float(price @ counts) / 1e3}
    return {i: done[i] for i in asked}


def failures(problems: dict, act: Callable, escalate: str) -> tuple[dict, dict[str, dict[str, str]]]:
    """(first attempts that failed, {action: {id: prompt}}); act(role, prompts) -> records. Ungraded is not failed."""
    blind = {i: FIRST_PROMPT.format(problem=p["prompt"]) for i, p in problems.items()}
    first = act("first", blind)
    failed = {i: record for i, record in first.items() if record["verdict"] not in ("pass", "infra_error")}
    passed = sum(record["verdict"] == "pass" for record in first.values())
    ungraded = len(first) - passed - len(failed)
    print(f"{len(first)} first attempts: {passed} pass, {len(failed)} fail, {ungraded} are ungraded")

    def retry(wish: str) -> dict[str, str]:
        seen = {i: {"code": r["code"][:CUT_CODE], "error": r["stderr"][-CUT_ERROR:]} for i, r in failed.items()}
        told = {i: {"problem": problems[i]["prompt"], "verdict": failed[i]["verdict"], "wish": wish} for i in failed}
        return {i: RETRY_PROMPT.format(**seen[i], **told[i]) for i in failed}

    reflect = retry(REFLECT)
    strong = reflect if escalate == "with-feedback" else {i: blind[i] for i in failed}
    return failed, dict(zip(ACTIONS, (reflect, retry(REPLAN), strong), strict=True))


def rescue_row(problem: dict, first: dict, tried: dict[str, dict], c_max: float) -> dict:
    """A line of a rescue table; an action that was not run has cost and outcome null."""
    row = {"id": problem["id"], "problem": problem["prompt"], "source": problem["source"]}
    row |= {"difficulty": problem["difficulty"]} if problem.get("difficulty") else {}
    row |= {"verdict": first["verdict"], "stderr": first["stderr"], "scores": {}, "imputed": [], "c_max_musd": c_max}
    graded = [a for a in tried if tried[a]["verdict"] != "infra_error"]
    row["solved"] = {a: tried[a]["verdict"] == "pass" if a in graded else None for a in ACTIONS}
    row["cost_musd"] = {a: tried[a]["cost_musd"] if a in tried else None for a in ACTIONS}
    return row | {"tokens": {a: tried[a]["tokens"] for a in tried}}


def impute(rows: list[dict]) -> None:
    """The paper's filling: an action that was not run costs the mean of its source (else of all), and is marked."""
    known = [(row["source"], c) for row in rows if (c := row["cost_musd"]["escalate"]) is not None]
    for row in rows:
        costs = [c for source, c in known if source == row["source"]] or [c for _, c in known]
        if costs and "escalate" not in row["tokens"]:
            row["cost_musd"]["escalate"], row["imputed"] = sum(costs) / len(costs), ["escalate"]


def largest_cost(problems: dict, args: argparse.Namespace) -> float:
    """c_max in m$: two calls with the longest prompt (a token is at least a byte) and --max-tokens, dearer price."""
    longest = max((len(p["prompt"].encode("utf-8", "surrogatepass")) for p in problems.values()), default=0)
    seen = CUT_CODE + CUT_ERROR  # of the failed attempt; escalate is blind to it, unless asked
    strong = longest + TEMPLATE_TOKENS + (seen if args.escalate == "with-feedback" else 0)
    prompts = (longest + TEMPLATE_TOKENS + seen, args.price_cheap), (strong, args.price_strong)
    return 2 * max(prompt * p[0] + args.max_tokens * p[1] for prompt, p in prompts) / 1e3


def open_collection(args: argparse.Namespace) -> tuple[dict, common.Log, Callable]:
    """(problems by id, log, act(role, prompts) -> records)."""
    options = {"replay": args.replay, "execute": args.execute, "max_cost_usd": args.max_cost_usd}
    log = common.Log(args.run, __file__, vars(args), free=("cheap_url", "strong_url"), **options)
    try:
        problems = {p["id"]: p for p in functions.load_problems(args.problems)}
    except ValueError as e:
        raise common.UserError(str(e)) from None
    return problems, log, functools.partial(stage, problems, log, open_models(args), args)


def collect(args: argparse.Namespace) -> int:
    problems, log, act = open_collection(args)
    c_max = largest_cost(problems, args)
    if args.estimate:
        calls = 8 * len(problems)  # four roles, a retry each
        print(f"at most {calls} calls, {calls * args.max_tokens} completion tokens, {calls / 2 * c_max / 1e3:.2f} USD")
        return 0
    failed, prompts = failures(problems, act, args.escalate)
    # all that the cheap model does comes first: two engines in one process need not take turns
    tried = {a: act(a, prompts[a]) for a in ("reflect", "replan")}
    rescued = {i for done in tried.values() for i in done if done[i]["verdict"] == "pass" and args.short_circuit}
    tried["escalate"] = act("escalate", {i: prompts["escalate"][i] for i in failed if i not in rescued})
    ran = {i: {a: tried[a][i] for a in ACTIONS if i in tried[a]} for i in failed}
    table = [rescue_row(problems[i], failed[i], ran[i], c_max) for i in failed]
    if args.short_circuit:
        impute(table)
    for row in table:
        log.write("row", ("row", row["id"], 0, 0), **row)
    if (path := log.path("rescue.jsonl")) and not args.replay:
        write_lines(path, table)
    rows = arrays(table)
    show(fixed_policies(rows) if table else {})
    print(success_sets(rows["solved"]))
    return log.finish(problems=len(problems), failures=len(table), actions=fixed_policies(rows) if table else {})


def cell(found: dict, key: str, digits: int) -> str:
    return "-" if found.get(key) is None else f"{found[key]:.{digits}f}"


def show(table: dict[str, dict]) -> None:
    """Print the lines of a frontier; - is unknown. Shares are of reflect, replan, escalate, in per cent."""
    print(f"{'':30}B m$ status          lambda certified  solve  s.e.       m$   s.e.  shares")
    columns = (("lambda_hat", 5, 9), ("certified_musd", 3, 10), ("solve_rate", 3, 7), ("solve_se", 3, 6))
    columns += (("mean_cost_musd", 4, 9), ("cost_se", 3, 7))
    for name, found in table.items():
        line = f"{name:28}{cell(found, 'budget_musd', 3):>8} {found.get('status', ''):12}"
        line += "".join(f"{cell(found, key, digits):>{width}}" for key, digits, width in columns)
        line += "  " + " ".join(f"{100 * share:3.0f}" for share in found["shares"] or () if share is not None)
        if found["ungraded"]:
            line += f"  {found['ungraded']} ungraded; as failed {cell(found, 'solve_rate_ungraded_failed', 3)}"
        if found["unpriced"]:
            line += f"  cost over {found['rows'] - found['unpriced']} of {found['rows']} rows"
        print(line)


def train(args: argparse.Namespace) -> int:
    table = [row for path in args.table for row in read_table(path)]
    shares = {"train": args.train_split, "calibration": args.calibration_split}
    shares["test"] = 1 - sum(shares.values())
    if min(shares.values()) < 0:
        raise common.UserError(f"--train-split and --calibration-split leave no share for the test rows: {shares}")
    parts = split(table, shares, args.seed)
    rows = arrays(parts["train"])
    means = np.array([mean_se(paid)[0] for paid in rows["r"].T], float)  # NaN where no cost is known
    Y = targets(rows["solved"], means, args.labels)
    texts = [text_of(row, args.metadata) for row, y in zip(parts["train"], Y, strict=True) if y.any()]
    if not texts:
        raise common.UserError(f"no action solves any of the {len(Y)} rows of the training split: nothing to learn")
    Y, dropped = Y[Y.any(1)], len(Y) - len(texts)
    print({name: len(part) for name, part in parts.items()}, f"rows; {dropped} that nothing solves dropped from train")
    print("label shares", dict(zip(ACTIONS, Y.mean(0).round(3).tolist(), strict=True)))
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if args.router == "lm":
        answers = [{"role": "assistant", "content": ACTIONS[k]} for k in Y.argmax(1)]
        chats = [[*chat_of(text), answer] for text, answer in zip(texts, answers, strict=True)]
        write_lines(out / "chat.jsonl", [{"messages": chat} for chat in chats])
    if args.router == "lm" and not args.url:
        print("chat.jsonl is written: fine-tune a causal LM on it, serve it with vLLM, then the same with --url")
        return 0
    router = {"kind": args.router, "metadata": args.metadata, "prior": Y.mean(0)}
    router |= fit(texts, Y) if args.router == "tfidf" else {}
    np.savez_compressed(out / "router.npz", **router)
    show({f"argmax on {name}": score(router, part, means, args, out / f"{name}.jsonl") for name, part in parts.items()})
    return 0


def score(router: dict, table: list[dict], means: ndarray, args: argparse.Namespace, path: Path) -> dict:
    """Write the table with its scores and mean costs; what the best-scored action solves and costs."""
    s = predict(router, table, args)
    mean_cost = {a: None if math.isnan(c) else float(c) for a, c in zip(ACTIONS, means, strict=True)}
    filled = [{"scores": dict(zip(ACTIONS, values, strict=True)), "mean_cost_musd": mean_cost} for values in s.tolist()]
    write_lines(path, [row | new for row, new in zip(table, filled, strict=True)])
    return measure(arrays(table), s.argmax(1))


def check_tables(cal: list[dict], test: list[dict], args: argparse.Namespace) -> float:
    """c_max, in m$; UserError where a guarantee could not hold."""
    c_max = args.c_max_musd
    if not cal or not test or not 0 < args.delta < 1:
        raise common.UserError(
            f"{len(cal)} calibration rows, {len(test)} test rows, --delta {args.delta}: need some of each"
        )
    if both := {row["id"] for row in cal} & {row["id"] for row in test}:
        raise common.UserError(
            f"{len(both)} ids are in both tables, for one {min(both)}: no problem may be in two splits"
        )
    if bad := [row["id"] for row in cal + test if any(row["scores"].get(a) is None for a in ACTIONS)]:
        raise common.UserError(f"{len(bad)} rows have no scores, for one {bad[0]}: `coderescue.py train` fills them")
    if c_max is None:
        c_max = max((row["c_max_musd"] for row in cal + test if row.get("c_max_musd") is not None), default=None)
    if c_max is None:
        raise common.UserError("give --c-max-musd, the largest cost that an action can have (token limits x prices)")
    for row in cal + test:
        costs = [c for c in row["cost_musd"].values() if c is not None]
        if args.bound == "hoeffding" and min(costs, default=args.c_min_musd) < args.c_min_musd:
            raise common.UserError(f"{row['id']} has a cost below --c-min-musd {args.c_min_musd}")
        if max(costs, default=c_max) > c_max:
            raise common.UserError(f"{row['id']} has a cost above c_max = {c_max} m$, which must bound every cost")
    return c_max


def planned(args: argparse.Namespace, cal: list[dict], test: list[dict]) -> tuple[dict, dict, dict | None]:
    """arrays() of the calibration rows that have all costs and of the test rows, with c; c if it is means."""
    whole = [row for row in cal if all(row["cost_musd"].get(a) is not None for a in ACTIONS)]
    # a missing cost is no cost of 0: such a row is left out of the calibration, and of the test where c needs it
    rows, test_rows = arrays(whole), arrays(test)
    print(f"{len(whole)} calibration rows ({len(cal) - len(whole)} without a cost are left out), {len(test)} test rows")
    if not whole:
        raise common.UserError("no calibration row has the costs of all three actions")
    for warning in imputed_costs(whole, rows["solved"], args.cost):
        print("warning:", warning)
    if args.cost == "realised":
        return rows | {"c": rows["r"]}, test_rows | {"c": test_rows["r"]}, None
    trained = whole[0].get("mean_cost_musd")
    if not trained or any(row.get("mean_cost_musd") != trained for row in whole) or None in trained.values():
        print("warning: no mean_cost_musd from training rows; the calibration rows' own make the guarantee approximate")
        trained = dict(zip(ACTIONS, rows["r"].mean(0).tolist(), strict=True))
    # means of the calibration rows would make their costs depend on each other, and not in the same way on a test row's
    plan = [trained[a] for a in ACTIONS]
    rows["c"], test_rows["c"] = (np.tile(plan, (n, 1)) for n in (len(whole), len(test)))
    return rows, test_rows, dict(zip(ACTIONS, plan, strict=True))


def calibrate(args: argparse.Namespace) -> int:
    log = common.Log(args.run, __file__, vars(args), replay=args.replay)
    cal, test = read_table(args.calibration), read_table(args.test)
    log.write("input", ("input", "", 0, 0), sha256=common.sha256(json.dumps([cal, test])))
    c_max = check_tables(cal, test, args)
    rows, test_rows, plan = planned(args, cal, test)
    table = fixed_policies(test_rows)
    known = np.isfinite(test_rows["c"]).all(1)  # a policy that plans with a row's own costs needs them
    test = [row for row, ok in zip(test, known, strict=True) if ok]
    test_rows = {key: x[known] for key, x in test_rows.items()}
    table["argmax (lambda = 0)"] = measure(test_rows, choose(test_rows["s"], test_rows["c"], 0.0))
    options = {"bound": args.bound, "c_min": args.c_min_musd, "c_max": c_max, "delta": args.delta}
    found = []
    for name, use in contenders(rows["s"]).items():
        for k, record in enumerate(coderescue(use(rows["s"]), rows["c"], rows["r"], args.budget_musd, **options)):
            record = on_test(record, test_rows | {"s": use(test_rows["s"])}, args.on_infeasible)
            table[name + " " * k] = log.write("budget", (name, "", 0, k), **record)
            found += [record] if name == "router" else []
    show(table)
    print(success_sets(test_rows["solved"]))
    show_groups(found, test, test_rows)
    least = math.ceil(found[0]["min_budget_musd"] * 1e4) / 1e4
    print(f"the least budget that can be certified here is {least} m$ (n = {len(rows['s'])}, c_max = {c_max} m$)")
    print(f"guaranteed: {GUARANTEE[args.bound]}")
    if args.plot and (path := log.path("figure.png")):
        plot(path, table, test_rows)
    keys = ("budget_musd", "status", "lambda_hat", "solve_rate", "mean_cost_musd")
    code = log.finish(rows=[{key: record[key] for key in keys} for record in found], plan_musd=plan)
    return code or 3 * any(record["status"] == "infeasible" for record in found)


def show_groups(found: list[dict], test: list[dict], rows: dict[str, ndarray]) -> None:
    """The router's frontier by source and by difficulty. Nothing is guaranteed within a group."""
    groups = sorted({(field, str(row[field])) for row in test for field in ("source", "difficulty") if row.get(field)})
    for field, value in groups:
        mine = np.array([str(row.get(field)) == value for row in test])
        part = {key: x[mine] for key, x in rows.items()}
        cells = [on_test(record, part, "exit") for record in found if record["status"] == "ok"]
        text = [
            f"B {m['budget_musd']:g}: {m['solve_rate'] or 0:.3f} at {m['mean_cost_musd'] or 0:.3f} m$" for m in cells
        ]
        print(f"  {field} {value}, {mine.sum()} rows   {'   '.join(text)}")


def plot(path: Path, table: dict[str, dict], rows: dict[str, ndarray]) -> None:
    """The frontier: mean cost and solve rate on the test rows over all lambda, the calibrated budgets, the controls."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    t, _ = envelope(rows["s"], rows["c"])
    lambdas = np.quantile(t[np.isfinite(t)], np.linspace(0, 1, 200), method="nearest")
    curve = [measure(rows, choose(rows["s"], rows["c"], lam)) for lam in lambdas]
    figure, axes = plt.subplots(figsize=(7, 5))
    axes.plot([m["mean_cost_musd"] for m in curve], [m["solve_rate"] for m in curve], color="0.6")
    for name, m in table.items():
        if m["mean_cost_musd"] is not None and m["solve_rate"] is not None:
            point = (m["mean_cost_musd"], m["solve_rate"])
            budget = f" B={m['budget_musd']:g}" if "budget_musd" in m else ""
            axes.plot(*point, "o" if name.startswith("router") else "x", color="C0" if budget else "C1")
            axes.annotate(name.strip() + budget, point, fontsize=7, xytext=(4, 3), textcoords="offset points")
    axes.set(xlabel="mean cost of a recovery (m$)", ylabel="solve rate", title="CodeRescue on the test rows")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def decider(args: argparse.Namespace) -> Callable[[list[dict]], list[dict]]:
    """decide(rows) -> one decision each: the action, None where no budget is certified, and why."""
    result = json.loads((Path(args.calibrated) / "log.jsonl").read_text("utf-8").rstrip("\n").split("\n")[-1])
    budgets = {row["budget_musd"]: row for row in result.get("rows", [])}
    if args.budget_musd not in budgets and (args.budget_musd is not None or len(budgets) != 1):
        raise common.UserError(f"--budget-musd must be one of {list(budgets)}, those of {args.calibrated}")
    if result["plan_musd"] is None:
        raise common.UserError(f"{args.calibrated} plans with --cost realised, unknown before an action has run")
    row = budgets[min(budgets) if args.budget_musd is None else args.budget_musd]
    lam = {"ok": row["lambda_hat"], "no guarantee": math.inf}.get(row["status"])
    plan, router = np.array([result["plan_musd"][a] for a in ACTIONS]), dict(np.load(args.router_file))

    def decide(table: list[dict]) -> list[dict]:
        s = predict(router, table, args)
        best = choose(s, np.tile(plan, (len(s), 1)), math.inf if lam is None else lam)
        said = {"status": row["status"], "budget_musd": row["budget_musd"], "lambda": row["lambda_hat"]}
        said |= {"cost_musd": result["plan_musd"], "rule": "largest score - lambda x cost, ties to the cheaper"}
        scores = [dict(zip(ACTIONS, values, strict=True)) for values in s.tolist()]
        actions = [None if lam is None else ACTIONS[k] for k in best]
        return [{"action": action, "scores": x, **said} for action, x in zip(actions, scores, strict=True)]

    return decide


def route(args: argparse.Namespace) -> int:
    decide = decider(args)
    if args.problems:
        return route_live(args, decide)
    row = json.loads(sys.stdin.read() if args.failure == "-" else Path(args.failure).read_text("utf-8"))
    if missing := {"problem", "source", "verdict", "stderr"} - set(row):
        raise common.UserError(f"{args.failure} is not one row of a rescue table: {', '.join(sorted(missing))} missing")
    (decision,) = decide([row])
    print(json.dumps(decision))
    return 0 if decision["action"] else 3


def route_live(args: argparse.Namespace, decide: Callable) -> int:
    """The whole loop: first attempts, then on each failure the routed action alone; what that solves and costs."""
    problems, log, act = open_collection(args)
    failed, prompts = failures(problems, act, args.escalate)
    table = [rescue_row(problems[i], failed[i], {}, 0.0) for i in failed]
    chosen = {i: log.write("route", ("route", i, 0, 0), **said) for i, said in zip(failed, decide(table), strict=True)}
    done = {a: act(a, {i: prompts[a][i] for i in failed if chosen[i]["action"] == a}) for a in ACTIONS}
    table = [rescue_row(problems[i], failed[i], {a: done[a][i] for a in ACTIONS if i in done[a]}, 0.0) for i in failed]
    routed = [k for k, row in enumerate(table) if row["tokens"]]
    picked = np.array([ACTIONS.index(next(iter(table[k]["tokens"]))) for k in routed], int)
    found = measure(arrays([table[k] for k in routed]), picked)
    show({"routed": found})
    return log.finish(problems=len(problems), failures=len(table), routed=found)


def add_train(add: Callable) -> None:
    add("--table", nargs="+", required=True, help="rescue tables")
    add("--model", help="of an lm or zero-shot router")
    add("--url", nargs="+", help="of an lm or zero-shot router")
    add("--out", required=True, metavar="DIR", help="for router.npz and the scored train, calibration and test tables")
    add("--router", choices=["tfidf", "lm", "zero-shot", "constant"], default="tfidf", help="(paper: lm)")
    add("--train-split", type=float, default=0.5, help="share of the problems")
    add("--calibration-split", type=float, default=0.25, help="share of the problems; the test split is the rest")
    add("--labels", choices=["hard", "soft"], default="hard", help="the cheapest passing action, or all that pass")
    add("--metadata", action="store_true", help="the router reads source, difficulty, length, algorithm too (paper)")


def add_calibrate(add: Callable) -> None:
    add("--calibration", metavar="TABLE")
    add("--test", metavar="TABLE")
    add("--budget-musd", nargs="+", type=float, metavar="B", help="mean cost of a recovery, in milli-dollars")
    add("--cost", choices=["mean", "realised"], default="mean", help="what the policy plans with (paper: realised)")
    add("--c-max-musd", type=float, help="no action can cost more (default: the tables' c_max_musd)")
    add("--c-min-musd", type=float, default=0.0, help="nor less; --bound hoeffding needs it")
    add("--bound", choices=["crc", "hoeffding", "none"], default="crc", help="(paper: crc; its script: hoeffding)")
    add("--delta", type=float, default=0.05, help="of --bound hoeffding")
    add("--on-infeasible", choices=["exit", "abstain", "cheapest"], default="exit", help="exit: code 3 after all lines")
    add("--plot", action="store_true", help="draw figure.png into --run")


def add_route(add: Callable) -> None:
    add("--model", help="of an lm or zero-shot router")
    add("--url", nargs="+", help="of an lm or zero-shot router")
    add("--router-file", required=True, metavar="NPZ", help="router.npz of train")
    add("--calibrated", required=True, metavar="DIR", help="the --run of calibrate")
    add("--budget-musd", type=float, metavar="B", help="one of those that were calibrated")
    add(
        "--failure", default="-", metavar="JSON", help="a row of a rescue table: problem, source, verdict, stderr count"
    )
    add("--problems", help="the whole loop on these instead: first attempt, and the routed action where it fails")


COMMANDS = {"collect": collect, "train": train, "calibrate": calibrate, "route": route}


def parse(argv: list[str] | None) -> argparse.Namespace:
    options = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    options["usage"] = argparse.SUPPRESS  # an error is one line
    parser = argparse.ArgumentParser(**options)
    commands = parser.add_subparsers(dest="command", required=True, prog="coderescue.py")
    added = {name: commands.add_parser(name, **options) for name in COMMANDS}
    for name, sub in added.items():
        if name != "calibrate":
            sub.add_argument("--seed", type=int, default=0)
        if name != "train":
            sub.add_argument("--run", metavar="DIR", help="folder of the log; the same command goes on from it")
            sub.add_argument("--replay", action="store_true", help="recompute it all from the log, with no model")
        if name in ("collect", "route"):
            add_options(sub.add_argument)
    added["collect"].add_argument("--problems", default="humaneval", help="humaneval[:n] or FILE.jsonl[:n]")
    order = added["collect"].add_mutually_exclusive_group()
    order.add_argument("--short-circuit", action="store_true", help="escalate only where both others fail (paper)")
    order.add_argument("--exhaustive", dest="short_circuit", action="store_false", help="all three (the default)")
    added["collect"].add_argument("--estimate", action="store_true", help="print the most it can cost and stop")
    add_train(added["train"].add_argument)
    add_calibrate(added["calibrate"].add_argument)
    add_route(added["route"].add_argument)
    args = parser.parse_args(argv)
    replay, problems = getattr(args, "replay", False), getattr(args, "problems", None)
    if args.command == "calibrate" and not replay and None in (args.calibration, args.test, args.budget_musd):
        parser.error("calibrate needs --calibration, --test and --budget-musd")
    if problems and not replay and None in (args.price_cheap, args.price_strong):
        parser.error("--problems need --price-cheap and --price-strong: costs are what it is about")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    return COMMANDS[args.command](args)


if __name__ == "__main__":
    common.entry(main)
