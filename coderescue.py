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
Expect  GPT-5.4-nano and GPT-5.4, 360 test rows, one split, B = 2.56: solve .717 at 2.56 m$; .817 at 5.51 (lambda = 0);
        always-escalate .686 at 7.22. The router outputs behind the first two, and 62 of escalate's passes, were not
        published. The published rows (tests/make_rescue_table.py, column "as failed") give with --cost realised .717 at
        2.61 for an older router, .605 at 2.65 for scores that know nothing; with mean costs .622 at 2.40, .453 at 1.59:
        escalate's cost was filled in where a cheap action had worked, so a policy that sees it sees the label
Differs - --cost mean plans with one cost an action (from training rows); the paper with the row's own (realised), which
          nobody knows before the action has run. Certified is what is really paid: a row is charged the largest cost
          that it has at any lambda' >= lambda, which is the paper's C_n where the two costs are the same
        - ties go to the cheaper action, then to the first of reflect, replan, escalate
        - collect runs all three actions on every failure (--short-circuit: the paper's order): no cost is imputed
        - prompts are our own; stderr keeps its last characters; the binary cascade, which the paper does not define, is
          a calibrated choice of two: the cheap action with the larger mean score, or escalate
        - routers beside the paper's lm (a fine-tuned causal LM, mean log-probability per label token): tfidf (softmax
          regression on hashed words and pairs), zero-shot (a chat model), constant (label shares, no information)
"""

import argparse
import bisect
import contextlib
import functools
import json
import math
import re
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy import ndarray

import common
from evaluators import functions

ACTIONS = ("reflect", "replan", "escalate")  # the order of ties and of the last axis of every [row, action] array
TEXTS = ("id", "problem", "source", "verdict", "stderr")  # what a row of a rescue table must have
ARRAYS = {"s": "scores", "solved": "solved", "r": "cost_musd"}  # the paper's letters: the fields of a row
CELLS = {"scores": {int, float}, "cost_musd": {int, float}, "solved": {bool}}  # by action, or null
BAD = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, zipfile.BadZipFile)
GUARANTEE = {
    "crc": "the mean cost of each ok line of the router is at most its B, in expectation over calibration and test "
    "rows of one population whose costs are known (0 where nothing can be certified); not within a source, not a row",
    "hoeffding": "the mean cost of each ok line of the router is at most its B, with probability 1 - delta over the "
    "calibration rows, on rows of their population whose costs are known",
    "none": "nothing; the calibration mean alone was compared with B, which the mean cost exceeds every other time",
}
TOKEN = re.compile(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]")
BUCKETS, STEPS = 2**15, 100  # hashed features, gradient steps
CUT_CODE, CUT_ERROR = 4000, 1500  # characters of a failed attempt that a prompt shows (paper)
TEMPLATE_TOKENS = 512  # what a chat template adds to a prompt, at most
ROUTER_PROMPT = (
    "A cheap model's program failed its tests. Choose what to do next. reflect: the cheap model repairs it. "
    "replan: the cheap model starts again. escalate: a strong, dear model solves it. "
    "Answer with one word: reflect, replan or escalate."
)
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


@contextlib.contextmanager
def one_line(what: str, errors: tuple[type[Exception], ...] = BAD) -> Iterator[None]:
    """UserError that begins with `what` in place of these errors."""
    try:
        yield
    except errors as e:
        raise common.UserError(f"{what}: {repr(e) if isinstance(e, LookupError) else e}") from None


def check_row(row: dict, *cells: str) -> None:
    """One of BAD where a field is not as in a rescue table."""
    if wrong := [key for key in TEXTS[not cells :] if not isinstance(row.get(key), str)]:  # a failure has no id
        raise ValueError(f"{wrong[0]} is no text")
    for key in cells:
        if not row[key].keys() <= set(ACTIONS):
            raise ValueError(f"{key} has other keys than {', '.join(ACTIONS)}")
        if bad := [v for v in row[key].values() if v is not None and not (type(v) in CELLS[key] and math.isfinite(v))]:
            raise ValueError(f"{key} has {bad[0]!r}, which is no finite number or truth value")
    numbers = [*(row.get("mean_cost_musd") or {}).values(), row.get("c_max_musd")]
    if not all(math.isfinite(v) for v in numbers if v is not None):
        raise ValueError("mean_cost_musd or c_max_musd is not finite")
    if not set(row.get("imputed", ())) <= set(ACTIONS):
        raise ValueError(f"imputed names others than {', '.join(ACTIONS)}")


def read_table(*paths: str) -> list[dict]:
    """The rows of rescue tables. UserError names the first line that is not one, or an id that stands there twice."""
    table = []
    for path in paths:
        k = 0
        try:
            for k, line in enumerate(Path(path).read_text("utf-8").split("\n"), 1):  # noqa: B007 (named below)
                if line and not line.isspace():
                    table.append(json.loads(line))
                    check_row(table[-1], *CELLS)
        except BAD as e:
            raise common.UserError(f"{path}, line {k}: not a row of a rescue table: {e!r}") from None
    counts = Counter(row["id"] for row in table)
    if len(counts) < len(table):
        raise common.UserError(f"{', '.join(paths)}: more than one row has the id {counts.most_common(1)[0][0]!r}")
    return table


def write_lines(path: Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


def arrays(table: list[dict]) -> dict[str, ndarray]:
    """[row, action] arrays: s scores, solved 1 or 0, r costs paid, NaN unknown; calibrate adds c, planning costs."""
    cells = {name: [row[field].get(a) for row in table for a in ACTIONS] for name, field in ARRAYS.items()}
    return {name: np.array(values, float).reshape(-1, len(ACTIONS)) for name, values in cells.items()}


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
    if n == 0 or np.isnan(s).any() or not (np.isfinite(c).all() and np.isfinite(r).all()):
        raise ValueError(f"{n} calibration rows; at least one is needed, and scores and finite costs in all")
    if not r.max() <= c_max or (bound == "hoeffding" and not r.min() >= c_min):
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


def measure(x: dict[str, ndarray], chosen: ndarray) -> dict:
    """What these actions solve and cost. Ungraded and unpriced cells are left out and counted. x: see arrays()."""
    won, paid = (x[key][np.arange(len(chosen)), chosen] for key in ("solved", "r"))
    (rate, rate_se), (cost, cost_se) = mean_se(won), mean_se(paid)
    found = {"solve_rate": rate, "solve_se": rate_se, "mean_cost_musd": cost, "cost_se": cost_se, "rows": len(chosen)}
    found |= {"ungraded": int(np.isnan(won).sum()), "unpriced": int(np.isnan(paid).sum())}
    found["solve_rate_ungraded_failed"] = mean_se(np.nan_to_num(won))[0]
    return found | {"shares": [mean_se(chosen == k)[0] for k in range(len(ACTIONS))]}


def fixed_policies(x: dict[str, ndarray]) -> dict[str, dict]:
    """What needs no router: always one action, a random one (in expectation), the cheapest that passes."""
    solved, r = x["solved"], x["r"]
    found = {f"always {a}": measure(x, np.full(len(r), k)) for k, a in enumerate(ACTIONS)}
    expected = {"solved": solved.mean(1, keepdims=True), "r": r.mean(1, keepdims=True)}
    found["random"] = measure(expected, np.zeros(len(r), int)) | {"shares": [1 / len(ACTIONS)] * len(ACTIONS)}
    found["random"]["solve_rate_ungraded_failed"] = mean_se(np.nan_to_num(solved).mean(1))[0]
    # where nothing passes the oracle takes the cheapest action: it is not told to give up
    price = np.nan_to_num(r, nan=1e9) + np.where(solved == 1, 0.0, 1e12)
    return found | {"oracle": measure(x, price.argmin(1))}


def contenders(s: ndarray) -> dict[str, Callable[[ndarray], ndarray]]:
    """Who is calibrated: the router and two controls, each a function from scores to those it uses (-inf: never)."""
    constant = s.mean(0)  # nothing about x: what it gains over always-X, it was told by the costs
    cheap = int(constant[1] > constant[0])
    found = {"router": lambda s: s, "constant scores": lambda s: np.broadcast_to(constant, s.shape)}
    return found | {
        f"cascade {ACTIONS[cheap]} | escalate": lambda s: np.where(np.isin(range(3), (cheap, 2)), s, -np.inf)
    }


def on_test(record: dict, x: dict[str, ndarray], on_infeasible: str) -> dict:
    """The record with what its policy does on these rows; where no budget is certified nothing, unless asked for."""
    certified = record["status"] == "ok"
    found = measure(x, choose(x["s"], x["c"], record["lambda_hat"] if certified else math.inf))
    if certified or on_infeasible == "cheapest":
        return record | found | ({} if certified else {"status": "no guarantee"})
    zero = {"status": "abstain", "solve_rate": 0.0, "mean_cost_musd": 0.0} if on_infeasible == "abstain" else {}
    return record | dict.fromkeys(found) | {"rows": len(x["s"])} | zero


def success_sets(solved: ndarray) -> str:
    """S(x): shares of all rows by what solves them, as far as it was run and graded."""
    cheap, strong = np.where((solved[:, :2] == 1).any(1), 1.0, solved[:, :2].sum(1)), solved[:, 2]  # NaN: not known
    kinds = {"cheap only": (1, 0), "both": (1, 1), "escalate only": (0, 1), "none": (0, 0)}
    shares = {name: mean_se((cheap == a) & (strong == b))[0] or 0 for name, (a, b) in kinds.items()}
    shares["cheap, escalate not known"] = mean_se((cheap == 1) & np.isnan(strong))[0] or 0
    shares["not known"] = 1 - sum(shares.values()) if len(solved) else 0
    return f"S(x) of {len(solved)} rows: " + ", ".join(f"{k} {v:.3f}" for k, v in shares.items() if abs(v) > 1e-9)


def imputed_costs(table: list[dict], solved: ndarray, how: str) -> Iterator[str]:
    """Warnings about costs that were filled in: that one was can say what the other actions did."""
    for k, action in enumerate(ACTIONS):
        filled = np.array([action in row.get("imputed", ()) for row in table])
        other = (np.delete(solved, k, 1) == 1).any(1)
        if filled.any():
            share = [f"{100 * (mean_se(other[part])[0] or 0):.0f} %" for part in (filled, ~filled)]
            yield f"the cost of {action} is imputed in {filled.sum()} of {len(table)} rows and certified as if real"
            yield f"where it is imputed another action solves {share[0]} of the rows, elsewhere {share[1]}"
            yield from ["LEAK: --cost realised shows the policy which; use --cost mean"] * (how == "realised")


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


def split(table: list[dict], shares: Mapping[str, float], seed: int) -> dict[str, list[dict]]:
    """Parts of about these shares (the last is the rest) by a hash of the problem's text, else of its id."""
    parts: dict[str, list[dict]] = {part: [] for part in shares}
    ends = np.cumsum(list(shares.values())[:-1])
    for row in table:
        text = " ".join(row["problem"].split()) or row["id"]
        share = int(common.sha256(f"{seed}:{text}")[:16], 16) / 2**64
        parts[list(shares)[bisect.bisect_right(ends, share)]].append(row)
    return parts


def targets(solved: ndarray, costs: ndarray, labels: str) -> ndarray:
    """[row, action] label shares, 0 where none passes. hard: the cheapest that does, ties to the first; soft: all."""
    passed = solved == 1
    if labels == "soft":
        return passed / np.maximum(passed.sum(1, keepdims=True), 1)
    cheapest = np.where(passed, np.nan_to_num(costs, nan=1e300), np.inf).argmin(1)  # an unknown cost comes last
    return np.eye(solved.shape[1])[cheapest] * passed.any(1, keepdims=True)


def weighted(texts: list[str], idf: ndarray | None) -> tuple[tuple[ndarray, ndarray, ndarray], ndarray]:
    """((row, feature, value) of each entry, idf): (1 + log count) idf, rows of length one; crc32, stable everywhere."""
    known: dict[str, int] = {}
    keys = [np.empty(0, np.int64)]
    for k, text in enumerate(texts):
        words = TOKEN.findall(text)
        for word in set(words) - known.keys():
            known[word] = zlib.crc32(word.encode("utf-8", "surrogatepass"))
        h = np.array([known[word] for word in words], np.uint64)
        pairs = (h[:-1] * np.uint64(0x9E3779B97F4A7C15) + h[1:] * np.uint64(0xC2B2AE3D27D4EB4F)) >> np.uint64(40)
        keys.append(k * BUCKETS + (np.concatenate([h, pairs]) % np.uint64(BUCKETS)).astype(np.int64))
    entries, counts = np.unique(np.concatenate(keys), return_counts=True)
    rows, features = np.divmod(entries, BUCKETS)
    if idf is None:
        idf = np.log((1 + len(texts)) / (1 + np.bincount(features, minlength=BUCKETS))) + 1
    values = (1 + np.log(counts)) * idf[features]
    return (rows, features, values / np.sqrt(np.bincount(rows, values**2, len(texts)))[rows]), idf


def softmax(z: ndarray) -> ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def product(rows: ndarray, features: ndarray, values: ndarray, W: ndarray, n: int) -> ndarray:
    """W X' for the sparse X of n rows that these entries are: [action, row] from W [action, feature]."""
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


def ask_vllm(url: str, model: str | None, path: str, **body) -> dict:
    """The JSON that a vLLM server answers; one of BAD if it refuses."""
    import requests

    body |= {"model": model} if model else {}
    answer = requests.post(url.rstrip("/").removesuffix("/v1") + path, json=body, timeout=600)
    if answer.status_code != 200:
        raise ValueError(f"{path} answered {answer.status_code}: {answer.text[:300]}")
    return answer.json()


def lm_scores(texts: list[str], post: Callable[..., dict]) -> ndarray:
    """Softmax of the mean log-probability per label token after the assistant's header (the model's chat template)."""
    labels = [post("/tokenize", prompt=action, add_special_tokens=False)["tokens"] for action in ACTIONS]

    def score(text: str) -> list[float]:
        head = post("/tokenize", messages=chat_of(text), add_generation_prompt=True)["tokens"]
        means = []
        for label in labels:  # the server's prefix cache keeps the head
            asked = {"prompt": head + label, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
            told = post("/v1/completions", **asked)["choices"][0]["prompt_logprobs"][len(head) :]
            means.append(np.mean([by_token[str(t)]["logprob"] for by_token, t in zip(told, label, strict=True)]))
        return means

    with ThreadPoolExecutor(16) as pool:
        return softmax(np.array(list(pool.map(score, texts))).reshape(-1, len(ACTIONS)))


def named_scores(replies: list[str]) -> ndarray:
    """1 for the action that a reply names last; all alike where it names none."""
    named = (re.findall("|".join(ACTIONS), reply.lower())[-1:] or ACTIONS for reply in replies)
    scores = [[(a in names) / len(names) for a in ACTIONS] for names in named]
    return np.array(scores).reshape(-1, len(ACTIONS))


def predict(router: dict, table: list[dict], args: argparse.Namespace) -> ndarray:
    """[row, action] scores of a router {kind, metadata, ...}; UserError where its model cannot be asked."""
    texts, kind = [text_of(row, bool(router["metadata"])) for row in table], str(router["kind"])
    if kind == "constant":
        return np.tile(router["prior"], (len(table), 1))
    if kind == "tfidf":
        entries, _ = weighted(texts, router["idf"])
        return softmax(product(*entries, router["W"], len(texts)).T + router["b"])
    if kind == "zero-shot":
        options = {"temperature": 0.0, "max_tokens": 256, "price_in": None, "price_out": None}
        seeds = [common.seed_of(args.seed, "router", common.sha256(text), 0, 0) for text in texts]
        chat = common.open_chat(model=args.model, url=args.url, **options)
        replies = dict(chat([chat_of(text) for text in texts], seeds)) if texts else {}
        return named_scores([replies[k].text for k in range(len(texts))])
    if not args.url:
        raise common.UserError("an lm router reads log-probabilities from a vLLM server: give its --url")
    with one_line(f"--url {args.url[0]}"):
        return lm_scores(texts, functools.partial(ask_vllm, args.url[0], args.model))


def add_models(add: Callable) -> None:
    add("--cheap", metavar="MODEL", help="folder or hub name for vLLM in this process, or the name at --cheap-url")
    add("--cheap-url", nargs="+", metavar="URL", help="OpenAI-compatible servers, used in turn")
    add("--strong", metavar="MODEL")
    add("--strong-url", nargs="+", metavar="URL")
    add("--price-cheap", nargs=2, type=float, metavar=("IN", "OUT"), help="USD a million tokens (paper: .20 1.25)")
    add("--price-strong", nargs=2, type=float, metavar=("IN", "OUT"), help="USD a million tokens (paper: 2.50 15.00)")
    add("--escalate", choices=["blind", "with-feedback"], default="blind", help="the strong model sees (paper: blind)")
    add("--temperature", type=float, default=1.0, help="(paper: the server's own)")
    add("--max-tokens", type=int, default=8192, help="of one reply (paper: 8192)")
    add("--timeout-s", type=float, default=30.0, help="of a test run (paper: 30)")
    add("--max-cost-usd", type=float, help="stop when this is spent")
    add("--execute", action="store_true", help="with --replay: run the programs again too")


def judged(log: common.Log, problems: dict, timeout_s: float, item: tuple[common.Unit, common.Reply]) -> dict | None:
    """What became of one reply; None where it is to be asked for once more: the first one without a `def ` (paper)."""
    unit, reply = item
    problem = problems[unit[1]]
    code, why = common.extract_code(reply.text, problem["entry_point"] or "", reply.finish_reason)
    if unit[3] == 0 and ("def " not in reply.text if problem["entry_point"] else code is None):
        return None
    if code is None:
        return {"code": reply.text, "verdict": "parse_error", "stderr": f"no program in the reply: {why}"}
    options = {"run_program": common.run_program, "timeout_s": timeout_s}
    record = log.once("verdict", unit, code, lambda: functions.grade(problem, code, **options))
    return {"code": code, "verdict": record["verdict"], "stderr": record["stderr"]}


def stage(problems: dict, log: common.Log, models: dict, args: argparse.Namespace, role: str, asked: dict) -> dict:
    """{problem id: {code, verdict, stderr, tokens [in, out], cost_musd}} of one prompt each, retries included."""
    who = "strong" if role == "escalate" else "cheap"
    done, tokens = {}, {i: [] for i in asked}

    def replies(units: list[common.Unit]) -> Iterator:  # they are tested while others are still being written
        prompts = [[{"role": "user", "content": asked[unit[1]]}] for unit in units]
        seeds = [common.seed_of(args.seed, *unit) for unit in units]
        with one_line(f"--{who}, --{who}-url", (common.UserError,)):
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


def recovery_prompts(problem: dict, first: dict, escalate: str) -> dict[str, str]:
    """{action: prompt} for a first attempt {code, verdict, stderr} that failed."""
    seen = {"verdict": first["verdict"], "code": first["code"][:CUT_CODE], "error": first["stderr"][-CUT_ERROR:]}
    reflect, replan = (RETRY_PROMPT.format(problem=problem["prompt"], wish=w, **seen) for w in (REFLECT, REPLAN))
    strong = reflect if escalate == "with-feedback" else FIRST_PROMPT.format(problem=problem["prompt"])
    return dict(zip(ACTIONS, (reflect, replan, strong), strict=True))


def failures(problems: dict, act: Callable, escalate: str) -> tuple[dict, dict[str, dict[str, str]]]:
    """(first attempts that failed, {action: {id: prompt}}); act(role, prompts) -> records. Ungraded is not failed."""
    first = act("first", {i: FIRST_PROMPT.format(problem=p["prompt"]) for i, p in problems.items()})
    failed = {i: record for i, record in first.items() if record["verdict"] not in ("pass", "infra_error")}
    ungraded = sum(record["verdict"] == "infra_error" for record in first.values())
    print(f"first attempts: {len(first) - len(failed) - ungraded} pass, {len(failed)} fail, {ungraded} are ungraded")
    prompts = {i: recovery_prompts(problems[i], failed[i], escalate) for i in failed}
    return failed, {a: {i: prompts[i][a] for i in failed} for a in ACTIONS}


def rescue_row(problem: dict, first: dict, tried: dict[str, dict], c_max: float) -> dict:
    """A line of a rescue table; an action that was not run has cost and outcome null."""
    row = {"id": problem["id"], "problem": problem["prompt"], "source": problem["source"]}
    row |= {"difficulty": problem["difficulty"]} if problem.get("difficulty") else {}
    row |= {"verdict": first["verdict"], "stderr": first["stderr"], "scores": {}, "imputed": [], "c_max_musd": c_max}
    graded = [a for a in tried if tried[a]["verdict"] != "infra_error"]
    row["solved"] = {a: tried[a]["verdict"] == "pass" if a in graded else None for a in ACTIONS}
    row["cost_musd"] = {a: tried[a]["cost_musd"] if a in tried else None for a in ACTIONS}
    return row | {"tokens": {a: tried[a]["tokens"] for a in tried}}


def impute(table: list[dict]) -> None:
    """The paper's filling: an action that was not run costs the mean of its source (else of all), and is marked."""
    known = [(row["source"], c) for row in table if (c := row["cost_musd"]["escalate"]) is not None]
    for row in table:
        costs = [c for source, c in known if source == row["source"]] or [c for _, c in known]
        if costs and "escalate" not in row["tokens"]:
            row["cost_musd"]["escalate"], row["imputed"] = sum(costs) / len(costs), ["escalate"]


def largest_cost(problems: dict, args: argparse.Namespace) -> float:
    """c_max in m$: both calls of the dearest action on these problems, at --max-tokens and a token for every byte."""
    widest = {"verdict": "compile_error", "code": "\U0010ffff" * CUT_CODE, "stderr": "\U0010ffff" * CUT_ERROR}
    costs = [0.0]
    for problem in problems.values():
        for action, prompt in recovery_prompts(problem, widest, args.escalate).items():
            tokens = len(prompt.encode("utf-8", "surrogatepass")) + TEMPLATE_TOKENS
            price = np.array(args.price_strong if action == "escalate" else args.price_cheap)
            costs.append(float(price @ [2 * tokens, 2 * args.max_tokens]) / 1e3)
    return max(costs)


def open_collection(args: argparse.Namespace, *, live: bool) -> tuple[dict, common.Log, Callable]:
    """(problems by id, log, act(role, prompts) -> records). live: with models, which load at their first call."""
    with one_line("--problems"):
        problems, models = {p["id"]: p for p in functions.load_problems(args.problems)}, {}
    for who in ("cheap", "strong") if live else ():
        price_in, price_out = getattr(args, f"price_{who}")
        given = {"url": getattr(args, f"{who}_url"), "price_in": price_in, "price_out": price_out}
        given |= {"temperature": args.temperature, "max_tokens": args.max_tokens}
        with one_line(f"--{who}, --{who}-url", (common.UserError,)):
            models[who] = common.open_chat(model=getattr(args, who), **given)
    options = {"replay": args.replay, "execute": args.execute, "max_cost_usd": args.max_cost_usd}
    run = args.run if live or args.replay else None
    log = common.Log(run, __file__, vars(args), free=("cheap_url", "strong_url"), **options)
    if live or args.execute:
        common.sound(functions.self_test)  # a broken sandbox must not look like a bad model
    return problems, log, functools.partial(stage, problems, log, models, args)


def collect(args: argparse.Namespace) -> int:
    problems, log, act = open_collection(args, live=not (args.replay or args.estimate))
    n, c_max = 8 * len(problems), largest_cost(problems, args)  # n: four roles, a retry each
    if args.estimate:
        print(f"at most {n} calls, {n * args.max_tokens} completion tokens, {n / 2 * c_max / 1e3:.2f} USD")
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
    x = arrays(table)
    actions = fixed_policies(x) if table else {}
    show(actions)
    print(success_sets(x["solved"]))
    return log.finish(problems=len(problems), failures=len(table), actions=actions)


def fixed(found: dict, key: str, digits: int) -> str:
    return "-" if found.get(key) is None else f"{found[key]:.{digits}f}"


def show(frontier: dict[str, dict]) -> None:
    """Print the lines of a frontier; - is unknown. Shares are of reflect, replan, escalate, in per cent."""
    print(f"{'':30}B m$ status          lambda certified  solve  s.e.       m$   s.e.  shares")
    columns = (("lambda_hat", 5, 9), ("certified_musd", 3, 10), ("solve_rate", 3, 7), ("solve_se", 3, 6))
    columns += (("mean_cost_musd", 4, 9), ("cost_se", 3, 7))
    for name, found in frontier.items():
        line = f"{name:28}{fixed(found, 'budget_musd', 3):>8} {found.get('status', ''):12}"
        line += "".join(f"{fixed(found, key, digits):>{width}}" for key, digits, width in columns)
        line += "  " + " ".join(f"{100 * share:3.0f}" for share in found["shares"] or () if share is not None)
        if found["ungraded"]:
            line += f"  {found['ungraded']} ungraded; as failed {fixed(found, 'solve_rate_ungraded_failed', 3)}"
        if found["unpriced"]:
            line += f"  cost over {found['rows'] - found['unpriced']} of {found['rows']} rows"
        print(line)


def train(args: argparse.Namespace) -> int:
    table = read_table(*args.table)
    shares = {"train": args.train_split, "calibration": args.calibration_split, "test": 1.0}
    parts = split(table, shares, args.seed)
    x = arrays(parts["train"])
    means = np.array([mean_se(paid)[0] for paid in x["r"].T], float)  # NaN where no cost is known
    Y = targets(x["solved"], means, args.labels)
    texts = [text_of(row, args.metadata) for row, y in zip(parts["train"], Y, strict=True) if y.any()]
    if not texts:
        raise common.UserError(f"no action solves any of the {len(Y)} rows of the training split: nothing to learn")
    Y, dropped = Y[Y.any(1)], len(Y) - len(texts)
    said = f"rows; {dropped} that nothing solves dropped from train; label shares", Y.mean(0).round(3).tolist()
    print({name: len(part) for name, part in parts.items()}, *said)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if args.router == "lm":
        labels = [{"role": "assistant", "content": ACTIONS[k]} for k in Y.argmax(1)]
        chats = [{"messages": [*chat_of(text), label]} for text, label in zip(texts, labels, strict=True)]
        write_lines(out / "chat.jsonl", chats)
    if args.router == "lm" and not args.url:
        print("chat.jsonl is written: fine-tune a causal LM on it, serve it with vLLM, then the same with --url")
        return 0
    router = {"kind": args.router, "metadata": args.metadata, "prior": Y.mean(0)}
    router |= fit(texts, Y) if args.router == "tfidf" else {}
    router["id"] = common.sha256(repr([v.tobytes() if isinstance(v, ndarray) else v for v in router.values()]))[:16]
    np.savez_compressed(out / "router.npz", **router)
    show({f"argmax on {k}": fill_scores(router, part, means, args, out / f"{k}.jsonl") for k, part in parts.items()})
    return 0


def fill_scores(router: dict, table: list[dict], means: ndarray, args: argparse.Namespace, path: Path) -> dict:
    """Write the table with its scores and mean costs; what the best-scored action solves and costs."""
    s = predict(router, table, args)
    mean_cost = {a: None if math.isnan(c) else float(c) for a, c in zip(ACTIONS, means, strict=True)}
    known = {"mean_cost_musd": mean_cost, "router": str(router["id"])}
    filled = [{"scores": dict(zip(ACTIONS, values, strict=True)), **known} for values in s.tolist()]
    write_lines(path, [row | new for row, new in zip(table, filled, strict=True)])
    return measure(arrays(table), s.argmax(1))


def check_tables(cal: list[dict], test: list[dict], x: dict, fresh: dict, args: argparse.Namespace) -> float:
    """c_max, in m$; UserError where a guarantee could not hold. x, fresh: arrays() of the two tables."""
    if not cal or not test:
        raise common.UserError(f"{len(cal)} calibration rows and {len(test)} test rows: some of each are needed")
    if both := {row["id"] for row in cal} & {row["id"] for row in test}:
        raise common.UserError(f"{len(both)} ids are in both tables, as {min(both)}: no problem may be in two splits")
    if both := {row["problem"] for row in cal if row["problem"]} & {row["problem"] for row in test}:
        raise common.UserError(f"{len(both)} problem texts are in both tables, as {min(both)!r:.60}")
    known = [c for row in cal + test if (c := row.get("c_max_musd")) is not None]
    known = known if args.c_max_musd is None else [args.c_max_musd]
    if not known:
        raise common.UserError("give --c-max-musd, the largest cost that an action can have (token limits x prices)")
    least = args.c_min_musd if args.bound == "hoeffding" else -math.inf
    for table, a in ((cal, x), (test, fresh)):
        faults = {"no scores (`coderescue.py train` fills them in)": np.isnan(a["s"])}
        faults[f"a cost above c_max = {max(known)} m$, which must bound every cost"] = a["r"] > max(known)
        faults[f"a cost below --c-min-musd {least}"] = a["r"] < least
        for what, where in faults.items():
            for k in np.flatnonzero(where.any(1))[:1]:
                raise common.UserError(f"{table[k]['id']} has {what}")
    return max(known)


def planned(args: argparse.Namespace, table: list[dict], x: dict, fresh: dict) -> tuple[dict, dict | None, bool]:
    """(x of the calibration rows with all costs, c if it is means, is all exact?); x and fresh get c."""
    known = np.isfinite(x["r"]).all(1)
    # a missing cost is no cost of 0: such a row is left out of the calibration, and of the test where c needs it
    table, x = [table[k] for k in np.flatnonzero(known)], {name: a[known] for name, a in x.items()}
    print(f"{len(table)} calibration rows ({(~known).sum()} without a cost are left out), {len(fresh['r'])} test rows")
    if not table:
        raise common.UserError("no calibration row has the costs of all three actions")
    warnings, plan = list(imputed_costs(table, x["solved"], args.cost)), None
    x["c"], fresh["c"] = x["r"], fresh["r"]
    if args.cost == "mean":
        plan = table[0].get("mean_cost_musd") or {}
        if any(plan.get(a) is None for a in ACTIONS) or any(row.get("mean_cost_musd") != plan for row in table):
            # they make the rows' losses depend on each other, and not in the same way on a test row's
            warnings.append("no mean_cost_musd from training rows: the policy plans with the calibration rows' own")
            plan = dict(zip(ACTIONS, x["r"].mean(0).tolist(), strict=True))
        x["c"], fresh["c"] = (np.tile([plan[a] for a in ACTIONS], (len(each["r"]), 1)) for each in (x, fresh))
    for warning in warnings:
        print("warning:", warning)
    return x, plan, not warnings


def calibrate(args: argparse.Namespace) -> int:
    cal, test = read_table(args.calibration), read_table(args.test)
    x, fresh = arrays(cal), arrays(test)
    c_max = check_tables(cal, test, x, fresh, args)
    x, plan, exact = planned(args, cal, x, fresh)
    log = common.Log(args.run, __file__, vars(args), replay=args.replay)  # not before all that is sound
    texts = (Path(path).read_text("utf-8") for path in (args.calibration, args.test))
    log.write("input", ("input", "", 0, 0), sha256=list(map(common.sha256, texts)))
    frontier, sets = fixed_policies(fresh), success_sets(fresh["solved"])
    known = np.isfinite(fresh["c"]).all(1)  # a policy that plans with a row's own costs needs them
    test, fresh = [test[k] for k in np.flatnonzero(known)], {name: a[known] for name, a in fresh.items()}
    frontier["argmax (lambda = 0)"] = measure(fresh, choose(fresh["s"], fresh["c"], 0.0))
    options = {"bound": args.bound, "c_min": args.c_min_musd, "c_max": c_max, "delta": args.delta}
    found = []
    for name, use in contenders(x["s"]).items():
        for k, record in enumerate(coderescue(use(x["s"]), x["c"], x["r"], args.budget_musd, **options)):
            record = on_test(record, fresh | {"s": use(fresh["s"])}, args.on_infeasible)
            frontier[name + " " * k] = log.write("budget", (name, "", 0, k), **record)
            found += [record] if name == "router" else []
    show(frontier)
    print(sets)
    show_groups(found, test, fresh)
    show_least(found[0])
    print(f"guaranteed{'' if exact or args.bound == 'none' else ' approximately'}: {GUARANTEE[args.bound]}")
    if args.plot and (path := log.path("figure.png")):
        plot(path, frontier, fresh)
    keys = ("budget_musd", "status", "lambda_hat", "solve_rate", "mean_cost_musd")
    lines, routers = [{key: record[key] for key in keys} for record in found], {str(row.get("router")) for row in cal}
    code = log.finish(rows=lines, plan_musd=plan, routers=sorted(routers))
    return code or 3 * any(record["status"] == "infeasible" for record in found)


def show_least(record: dict) -> None:
    least = math.ceil(record["min_budget_musd"] * 1e4) / 1e4
    about = f"n = {record['n']}, c_max = {record['c_max_musd']} m$"
    print(f"the least budget that can be certified here is {least} m$ ({about})")


def show_groups(found: list[dict], test: list[dict], x: dict[str, ndarray]) -> None:
    """The router's frontier by source and by difficulty. Nothing is guaranteed within a group."""
    groups = sorted({(field, str(row[field])) for row in test for field in ("source", "difficulty") if row.get(field)})
    for field, value in groups:
        mine = np.array([str(row.get(field)) == value for row in test])
        part = {key: a[mine] for key, a in x.items()}
        print(f"  {field} {value}, {mine.sum()} rows", end="")
        for m in (on_test(record, part, "exit") for record in found if record["status"] == "ok"):
            said = fixed(m, "solve_rate", 3), fixed(m, "mean_cost_musd", 3)
            print(f"   B {m['budget_musd']:g}: {said[0]} at {said[1]} m$", end="")
        print()


def plot(path: Path, frontier: dict[str, dict], x: dict[str, ndarray]) -> None:
    """The frontier: mean cost and solve rate on the test rows over all lambda, the calibrated budgets, the controls."""
    from matplotlib.figure import Figure

    t, _ = envelope(x["s"], x["c"])
    lambdas = np.quantile(t[np.isfinite(t)], np.linspace(0, 1, 200), method="nearest")
    curve = [measure(x, choose(x["s"], x["c"], lam)) for lam in lambdas]
    axes = (figure := Figure(figsize=(7, 5), layout="constrained")).subplots()
    axes.plot([m["mean_cost_musd"] for m in curve], [m["solve_rate"] for m in curve], color="0.6", zorder=0)
    for name in dict.fromkeys(name.strip() for name in frontier):
        found = [m for other, m in frontier.items() if other.strip() == name and m["solve_rate"] is not None]
        points = [m["mean_cost_musd"] for m in found], [m["solve_rate"] for m in found]
        axes.plot(*points, "o" if name == "router" else "x", label=name)
        for at in dict.fromkeys(zip(*points, strict=True)) if name == "router" else ():  # budgets may share a point
            here = [
                f"{m['budget_musd']:g}"
                for m, point in zip(found, zip(*points, strict=True), strict=True)
                if point == at
            ]
            axes.annotate(f"B = {', '.join(here)}  ", at, fontsize=8, ha="right", va="bottom")
    axes.legend(fontsize=8, loc="lower right")
    axes.set(xlabel="mean cost of a recovery (m$)", ylabel="solve rate", title="CodeRescue on the test rows")
    figure.savefig(path, dpi=150)


def decider(args: argparse.Namespace) -> Callable[[list[dict]], list[dict]]:
    """decide(table) -> one decision each: the action, None where no budget is certified, and why."""
    with one_line(f"--router-file {args.router_file}: not the router.npz of train"):
        router = dict(np.load(args.router_file, allow_pickle=False))
        _ = router["kind"], router["metadata"], router["prior"], router["id"]  # KeyError where it is another file
    with one_line(f"--calibrated {args.calibrated}: not the log of a finished calibrate"):
        result = json.loads((Path(args.calibrated) / "log.jsonl").read_text("utf-8").rstrip("\n").split("\n")[-1])
        budgets, plan_musd = {found["budget_musd"]: found for found in result["rows"]}, result["plan_musd"]
        known = result["routers"]
    if known != [str(router["id"])]:
        raise common.UserError(f"--router-file {args.router_file}: {args.calibrated} was calibrated on other scores")
    if args.budget_musd not in budgets and (args.budget_musd is not None or len(budgets) != 1):
        raise common.UserError(f"--budget-musd must be one of {list(budgets)}, those of {args.calibrated}")
    if plan_musd is None:
        raise common.UserError(f"{args.calibrated} plans with --cost realised, unknown before an action has run")
    found = budgets[min(budgets) if args.budget_musd is None else args.budget_musd]
    lam = {"ok": found["lambda_hat"], "no guarantee": math.inf}.get(found["status"])

    def decide(table: list[dict]) -> list[dict]:
        s = predict(router, table, args)
        best = choose(s, np.tile([plan_musd[a] for a in ACTIONS], (len(s), 1)), math.inf if lam is None else lam)
        said = {"status": found["status"], "budget_musd": found["budget_musd"], "lambda": found["lambda_hat"]}
        said |= {"cost_musd": plan_musd, "rule": "largest score - lambda x cost, ties to the cheaper"}
        scores = [dict(zip(ACTIONS, values, strict=True)) for values in s.tolist()]
        actions = [None if lam is None else ACTIONS[k] for k in best]
        return [{"action": action, "scores": x, **said} for action, x in zip(actions, scores, strict=True)]

    return decide


def route(args: argparse.Namespace) -> int:
    decide = decider(args)
    if args.problems:
        return route_live(args, decide)
    with one_line(f"--failure {args.failure}: not a row of a rescue table"):
        row = json.loads(sys.stdin.read() if args.failure == "-" else Path(args.failure).read_text("utf-8"))
        check_row(row)
    print(json.dumps(decision := decide([row])[0]))
    return 0 if decision["action"] else 3


def route_live(args: argparse.Namespace, decide: Callable) -> int:
    """The whole loop: first attempts, then on each failure the routed action alone; what that solves and costs."""
    problems, log, act = open_collection(args, live=not args.replay)
    failed, prompts = failures(problems, act, args.escalate)
    table = [rescue_row(problems[i], failed[i], {}, 0.0) for i in failed]
    chosen = {i: log.write("route", ("route", i, 0, 0), **said) for i, said in zip(failed, decide(table), strict=True)}
    done = {a: act(a, {i: prompts[a][i] for i in failed if chosen[i]["action"] == a}) for a in ACTIONS}
    routed = [rescue_row(problems[i], failed[i], {a: done[a][i]}, 0.0) for a in ACTIONS for i in done[a]]
    found = measure(arrays(routed), np.repeat(range(len(ACTIONS)), [len(done[a]) for a in ACTIONS]))
    show({"routed": found})
    return log.finish(problems=len(problems), failures=len(failed), routed=found)


def add_collect(add: Callable) -> None:
    add_models(add)
    add("--problems", default="humaneval", help="humaneval[:n] or FILE.jsonl[:n]")
    add("--short-circuit", action="store_true", help="escalate only where both others fail (paper)")
    add("--exhaustive", dest="short_circuit", action="store_false", help="all three (the default)")
    add("--estimate", action="store_true", help="print the most it can cost and stop")


def add_train(add: Callable) -> None:
    add("--table", nargs="+", required=True, help="rescue tables")
    add("--out", required=True, metavar="DIR", help="for router.npz and the scored train, calibration and test tables")
    add("--router", choices=["tfidf", "lm", "zero-shot", "constant"], default="tfidf", help="(paper: lm)")
    add("--train-split", type=float, default=0.5, help="share of the problems")
    add("--calibration-split", type=float, default=0.25, help="share of the problems; the rest is the test split")
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
    add_models(add)
    add("--router-file", required=True, metavar="NPZ", help="router.npz of train")
    add("--calibrated", required=True, metavar="DIR", help="the --run of calibrate")
    add("--budget-musd", type=float, metavar="B", help="one of those that were calibrated")
    add("--failure", default="-", metavar="JSON", help="a row of a rescue table; its costs and outcomes do not count")
    add("--problems", help="the whole loop on these instead: first attempt, and the routed action where it fails")


COMMANDS = {"collect": collect, "train": train, "calibrate": calibrate, "route": route}
ADD = {"collect": add_collect, "train": add_train, "calibrate": add_calibrate, "route": add_route}


def check(args: argparse.Namespace) -> str | None:
    """What no run can mean, in one line, before anything is read or written."""
    common.possible(vars(args))
    given = argparse.Namespace(**dict.fromkeys(("replay", "problems", "estimate", "labels")) | vars(args))
    below = {"train_split": 1, "calibration_split": 1, "delta": 1, "timeout_s": math.inf, "budget_musd": math.inf}
    for name, value in vars(args).items():
        if name in below and value is not None and not all(0 < v < below[name] for v in np.ravel(value)):
            return f"--{name.replace('_', '-')} {value}: must be above 0 and below {below[name]}"
    if args.command == "train" and args.train_split + args.calibration_split >= 1:
        return "--train-split and --calibration-split must leave a share of the problems to the test rows"
    if given.labels == "soft" and args.router in ("lm", "zero-shot"):
        return f"--labels soft goes with tfidf and constant: the label of --router {args.router} is one word"
    if args.command == "calibrate" and not given.replay and None in (args.calibration, args.test, args.budget_musd):
        return "calibrate needs --calibration, --test and --budget-musd"
    for who in ("cheap", "strong") if given.problems and not given.replay else ():
        if getattr(args, f"price_{who}") is None:
            return f"--price-{who} is missing: costs are what it is about"
        if not (given.estimate or getattr(args, who) or getattr(args, f"{who}_url")):
            return f"no {who} model: give --{who} MODEL (vLLM in this process) or --{who}-url URL (a server)"
    return None


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
        if name in ("train", "route"):
            sub.add_argument("--model", help="of an lm or zero-shot router")
            sub.add_argument("--url", nargs="+", help="of an lm or zero-shot router")
        ADD[name](sub.add_argument)
    args = parser.parse_args(argv)
    if wrong := check(args):
        added[args.command].error(wrong)
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    if args.command in ("collect", "calibrate") and args.replay:
        common.Log(args.run, __file__, vars(args), replay=True)  # its first line has the arguments
    return COMMANDS[args.command](args)


if __name__ == "__main__":
    common.entry(main)
