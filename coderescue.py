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
"""

import argparse
import bisect
import functools
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy import ndarray

import common
import rescue_actions
import rescue_router
from evaluators import functions
from rescue_actions import failures, rescue_row
from rescue_router import ACTIONS

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


def open_collection(args: argparse.Namespace) -> tuple[dict, common.Log, Callable]:
    """(problems by id, log, act(role, prompts) -> records)."""
    options = {"replay": args.replay, "execute": args.execute, "max_cost_usd": args.max_cost_usd}
    log = common.Log(args.run, __file__, vars(args), free=("cheap_url", "strong_url"), **options)
    try:
        problems = {p["id"]: p for p in functions.load_problems(args.problems)}
    except ValueError as e:
        raise common.UserError(str(e)) from None
    return problems, log, functools.partial(rescue_actions.stage, problems, log, rescue_actions.open_models(args), args)


def collect(args: argparse.Namespace) -> int:
    problems, log, act = open_collection(args)
    c_max = rescue_actions.largest_cost(problems, args)
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
        rescue_actions.impute(table)
    for row in table:
        log.write("row", ("row", row["id"], 0, 0), **row)
    if (path := log.path("rescue.jsonl")) and not args.replay:
        write_lines(path, table)
    rows = arrays(table)
    show(fixed_policies(rows) if table else {})
    print(success_sets(rows["solved"]))
    return log.finish(problems=len(problems), failures=len(table), actions=fixed_policies(rows) if table else {})


def text_of(found: dict, key: str, digits: int) -> str:
    return "-" if found.get(key) is None else f"{found[key]:.{digits}f}"


def show(table: dict[str, dict]) -> None:
    """Print the lines of a frontier; - is unknown. Shares are of reflect, replan, escalate, in per cent."""
    print(f"{'':30}B m$ status          lambda certified  solve  s.e.       m$   s.e.  shares")
    columns = (("lambda_hat", 5, 9), ("certified_musd", 3, 10), ("solve_rate", 3, 7), ("solve_se", 3, 6))
    columns += (("mean_cost_musd", 4, 9), ("cost_se", 3, 7))
    for name, found in table.items():
        line = f"{name:28}{text_of(found, 'budget_musd', 3):>8} {found.get('status', ''):12}"
        line += "".join(f"{text_of(found, key, digits):>{width}}" for key, digits, width in columns)
        line += "  " + " ".join(f"{100 * share:3.0f}" for share in found["shares"] or () if share is not None)
        if found["ungraded"]:
            line += f"  {found['ungraded']} ungraded; as failed {text_of(found, 'solve_rate_ungraded_failed', 3)}"
        if found["unpriced"]:
            line += f"  cost over {found['rows'] - found['unpriced']} of {found['rows']} rows"
        print(line)


def train(args: argparse.Namespace) -> int:
    table = [row for path in args.table for row in read_table(path)]
    shares = {"train": args.train_split, "calibration": args.calibration_split}
    shares["test"] = 1 - sum(shares.values())
    if min(shares.values()) < 0:
        raise common.UserError(f"--train-split and --calibration-split leave no share for the test rows: {shares}")
    parts = rescue_router.split(table, shares, args.seed)
    rows = arrays(parts["train"])
    means = np.array([mean_se(paid)[0] for paid in rows["r"].T], float)  # NaN where no cost is known
    Y = rescue_router.targets(rows["solved"], means, args.labels)
    texts = [rescue_router.text_of(row, args.metadata) for row, y in zip(parts["train"], Y, strict=True) if y.any()]
    if not texts:
        raise common.UserError(f"no action solves any of the {len(Y)} rows of the training split: nothing to learn")
    Y, dropped = Y[Y.any(1)], len(Y) - len(texts)
    print({name: len(part) for name, part in parts.items()}, f"rows; {dropped} that nothing solves dropped from train")
    print("label shares", dict(zip(ACTIONS, Y.mean(0).round(3).tolist(), strict=True)))
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if args.router == "lm":
        answers = [{"role": "assistant", "content": ACTIONS[k]} for k in Y.argmax(1)]
        chats = [[*rescue_router.chat_of(text), answer] for text, answer in zip(texts, answers, strict=True)]
        write_lines(out / "chat.jsonl", [{"messages": chat} for chat in chats])
    if args.router == "lm" and not args.url:
        print("chat.jsonl is written: fine-tune a causal LM on it, serve it with vLLM, then the same with --url")
        return 0
    router = {"kind": args.router, "metadata": args.metadata, "prior": Y.mean(0)}
    router |= rescue_router.fit(texts, Y) if args.router == "tfidf" else {}
    np.savez_compressed(out / "router.npz", **router)
    show({f"argmax on {name}": score(router, part, means, args, out / f"{name}.jsonl") for name, part in parts.items()})
    return 0


def score(router: dict, table: list[dict], means: ndarray, args: argparse.Namespace, path: Path) -> dict:
    """Write the table with its scores and mean costs; what the best-scored action solves and costs."""
    s = rescue_router.predict(router, table, args)
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
        s = rescue_router.predict(router, table, args)
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
    parser = argparse.ArgumentParser(**options)
    commands = parser.add_subparsers(dest="command", required=True)
    added = {name: commands.add_parser(name, **options) for name in COMMANDS}
    for name, sub in added.items():
        if name != "calibrate":
            sub.add_argument("--seed", type=int, default=0)
        if name != "train":
            sub.add_argument("--run", metavar="DIR", help="folder of the log; the same command goes on from it")
            sub.add_argument("--replay", action="store_true", help="recompute it all from the log, with no model")
        if name in ("collect", "route"):
            rescue_actions.add_options(sub.add_argument)
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
