"""The first attempt and the three recovery actions of coderescue.py on real problems; the outcome is a rescue table.

Order    all first attempts, then reflect and replan on what failed (cheap model), then escalate (strong model)
Billing  tokens x price, both calls of a retry; the sandbox is not billed. Costs are in milli-dollars (m$)
Differs  prompts are our own; one retry where a reply has no `def ` (paper), or no program if no function is asked for
"""

import argparse
import functools
from collections.abc import Callable, Iterator

import numpy as np

import common
from evaluators import functions
from rescue_router import ACTIONS

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
