"""Agentic Parallel-Distill-Refine (PDR): N rollouts, their summaries as context of N fresh ones, one of them picked.

Paper   Scaling Test-Time Compute for Agentic Coding, arXiv:2604.16529 (PDR itself: arXiv:2510.01123)
Loop    1. N rollouts of each task
        2. the model summarises each of them; of these, rollout i of the next iteration has a context C_i:
           select: the K that RTV keeps, one set for all; random: K of its own; single: its own former one (K unused)
        3. N fresh rollouts in fresh environments, C_i placed before the first action; repeat 2 and 3 until T iterations
        4. RTV over the last N rollouts picks one
Run     python pdr.py --harness functions --problems humaneval:8 --model MODEL --N 16 --K 4 --T 2 --run runs/pdr
        python pdr.py --harness swe_bench --problems verified.jsonl --url URL --model NAME --run runs/swe
Output  the four columns and what is behind them; in RUN: log.jsonl, chosen.jsonl (the picked rollouts), figure.png;
        chosen.json (swe_bench: their patches, as swebench grades them)
Expect  Iter0 / Sel-K / Iter1 / Final, Claude-4.5-Opus, select, N=16, K=4, T=2, G=2, V=8: SWE-Bench Verified (500 tasks)
        70.94 / 75.00 / 76.04 / 77.60, Terminal-Bench 2.0 (88) 46.95 / 54.26 / 52.49 / 59.09; seeds are not disclosed
Differs what RTV leaves open: see rtv.py. Besides:
        - the words around the summaries are our own, and the K summaries stand in order of their rollouts' index
        - a rollout that did not finish is a candidate like the others; of one that left nothing a stub says so
        - --temperature holds for all: summariser, judge and every agent; --max-tokens for all but mini-SWE-agent and
          terminus-2, whose replies have their own limits
        - --harness functions (a small agent, function problems) is ours; terminal_bench has terminus-2 for Terminus 1
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import common
import rtv
from evaluators import functions, swe_bench, terminal_bench
from evaluators.outcomes import as_failed, by_task, judge_of, measure, percent, plot

ADAPTERS = {"swe_bench": swe_bench, "terminal_bench": terminal_bench}
PROBLEMS = ("problems", ("problems", "", 0, 0))  # where they stand in the log, so that a replay needs no other file

CONTEXT = """\
Summaries of earlier attempts at this task follow. Each ran in another environment: none of their files or changes exist
here. They can be wrong, so check what you use. Take over what worked, and avoid what failed.

{summaries}"""


def choose(context: str, kept: list[int], *, K: int, N: int, draw: str) -> list[list[int]]:
    """Whose summaries each of the next N rollouts reads: all kept (select), its own (single), K of its own (random)."""
    if context == "single":
        return [[i] if i in kept else [] for i in range(N)]
    if context == "random":
        return [sorted(random.Random(f"{draw}:{i}").sample(kept, min(K, len(kept)))) for i in range(N)]
    return [kept for _ in range(N)]


def refinement(summaries: list[str]) -> str:
    """The context of one rollout, "" where it has no priors."""
    blocks = [f"<attempt_{k}>\n{summary}\n</attempt_{k}>" for k, summary in enumerate(summaries, 1)]
    return CONTEXT.format(summaries="\n".join(blocks)) if blocks else ""


def pdr(
    tasks: list[str], rollout: Callable, summarise: Callable, select: Callable,
    *, N: int, K: int, T: int, context: str, seed: int,
) -> Iterator[dict]:  # fmt: skip
    """Yield one record an iteration: iteration, rollouts, priors, kept.

    rollout(t, C) -> the rollouts of iteration t, all run afresh, rollout i with C[task][i] before its first action;
    summarise(t, rollouts) -> {task: {rollout: summary}}; select(t, rollouts, summaries, keep) -> {task: the kept}.
    priors[task][i]: whose summaries, of the iteration before, rollout i was given. kept[task]: the K of this iteration
    that go on (all unless context is "select"); in the last one the winner.
    """
    if N < 1 or K < 1 or T < 1 or context not in ("select", "random", "single"):
        raise ValueError(f"need N, K, T >= 1 and context select, random or single: {N=} {K=} {T=} {context=}")
    priors: dict[str, list[list[int]]] = {task: [[] for _ in range(N)] for task in tasks}
    C = {task: [""] * N for task in tasks}  # [task][rollout]: the refinement contexts
    for t in range(T):
        R = rollout(t, C)
        S = summarise(t, R)  # [task][rollout], made once
        if missing := [task for task in tasks if not S.get(task)]:
            raise ValueError(f"iteration {t} has no rollout of {missing}")
        if t == T - 1:
            kept = select(t, R, S, 1)
        elif context == "select":
            kept = select(t, R, S, K)  # one set, shared by all rollouts
        else:
            kept = {task: sorted(S[task]) for task in tasks}
        yield {"iteration": t, "rollouts": R, "priors": priors, "kept": kept}
        priors = {task: choose(context, kept[task], K=K, N=N, draw=f"{seed}:{task}:{t}") for task in tasks}
        C = {task: [refinement([S[task][j] for j in js]) for js in priors[task]] for task in tasks}


def selector(args: argparse.Namespace, log: common.Log, ask: Callable, problems: dict, rounds: dict) -> Callable:
    """select(t, rollouts, summaries, keep) by RTV; every round is logged and put into rounds[t]."""

    def select(t: int, R: list[dict], S: dict[str, dict], keep: int) -> dict[str, list[int]]:
        outcomes = by_task(R, [r["outcome"] for r in R])
        texts = S if args.compare == "summary" else by_task(R, [rtv.evidence(r, args.cut_chars) for r in R])
        left = stage = {task: sorted(o) for task, o in outcomes.items()}
        settings = {"G": args.G, "V": args.V, "order": args.order, "tie": args.tie}
        for K in [keep, 1] if args.diagnose else [keep]:
            first = len(rounds.setdefault(t, []))  # rounds are counted through both stages
            seed = common.seed_of(args.seed, "round", "", t, first)
            if args.judge == "model":
                judge = rtv.model_judge(problems, texts, ask, V=args.V, t0=100 * t + first)
            else:
                judge = rtv.simulated(args.judge, outcomes, seed, t0=first)
            for record in rtv.rtv(left, judge, **settings, K=K, seed=seed):
                log.write("round", ("round", "", 100 * t + first + record["round"], 0), **record)
                rounds[t].append(record)
                left = record["kept"]
            stage = left if keep == K else stage  # what --diagnose adds changes nothing
        return stage

    return select


def summarised(args: argparse.Namespace, t: int) -> bool:
    """Whether the rollouts of iteration t are summarised: in the last one only if the judge reads summaries."""
    return t < args.T - 1 or (args.judge == "model" and args.compare == "summary" and args.N > 1)


def summariser(args: argparse.Namespace, ask: Callable, stubs: Counter) -> Callable:
    """summarise(t, rollouts) -> {task: {rollout: summary}}."""

    def summarise(t: int, R: list[dict]) -> dict[str, dict]:
        texts = [""] * len(R)
        if summarised(args, t):
            texts = rtv.summarise(R, ask, fields=args.fields, cut_chars=args.cut_chars, t=t)
        stubs[t] += sum(text.startswith(rtv.STUB) for text in texts)
        return by_task(R, texts)

    return summarise


def problems_of(args: argparse.Namespace) -> list[dict]:
    """Problems with id and prompt, and what else the harness needs to know of them."""
    try:
        if args.harness == "functions":
            return functions.load_problems(args.problems)
        statements = ADAPTERS[args.harness].tasks(Path(args.problems))
    except ValueError as e:
        raise common.UserError(str(e)) from None
    return [{"id": task, "prompt": statement} for task, statement in statements.items()]


def of_functions(args: argparse.Namespace, log: common.Log, problems: list[dict], ask: Callable) -> Callable:
    """rollout(t, C) by the small agent on function problems: its calls and its programs' runs are the log's units."""
    if not args.replay or args.execute:
        common.sound(functions.self_test)  # a broken sandbox must not look like a bad model
    price = None if None in (args.price_in, args.price_out) else (args.price_in, args.price_out)

    def execute(jobs: list[tuple]) -> list[dict]:
        done = common.parallel(lambda job: log.once("execution", *job), enumerate(jobs))
        return [done[i] for i in range(len(jobs))]

    def rollout(t: int, C: dict[str, list[str]]) -> list[dict]:
        helpers = {"run_program": common.run_program, "extract": common.extract_code}
        settings = {"t": t, "turns": args.turns, "timeout_s": args.timeout_s}
        cost = partial(common.cost_usd, price=price)
        return functions.rollouts(problems, C, ask, execute, cost=cost, **helpers, **settings)

    return rollout


def spend(log: common.Log, t: int, made: list[dict]) -> None:
    """Count the agents' own spending, as far as it is known, towards --max-cost-usd; Stopped where that is spent."""
    known = [r["cost_usd"] for r in made if r["cost_usd"] is not None]
    if unknown := len(made) - len(known):
        said = f"the cost of {unknown} of {len(made)} rollouts of iteration {t} is unknown"
        print(f"warning: {said}: not counted in --max-cost-usd", file=sys.stderr)
    log.cost = None if log.cost is None else log.cost + sum(known)
    if log.is_spent():
        raise common.Stopped(f"--max-cost-usd {log.max_cost_usd} is spent ({log.cost:.4f}, iteration {t})")


def of_harness(args: argparse.Namespace, log: common.Log) -> Callable:
    """rollout(t, C) by the user's harness program: an iteration is one record of the log, a replay runs nothing."""
    own = {name: value for name in ("agent", "grader") if (value := getattr(args, name))}
    settings = {"N": args.N, "seed": args.seed, "temperature": args.temperature, "workers": args.workers}
    where = {"run_dir": Path(args.run), "source": Path(args.problems), "backend": args.backend}

    def rollout(t: int, contexts: dict[str, list[str]]) -> list[dict]:
        def run() -> dict:
            try:
                make = ADAPTERS[args.harness].harness(url=args.url, model=args.model, **where, **settings, **own)
                return {"rollouts": make(t, contexts)}
            except RuntimeError as e:
                raise common.Stopped(f"{e}; the same command goes on") from None
            except (ValueError, KeyError) as e:  # a data set or a file that the harness left is not as it must be
                raise common.UserError(f"--harness {args.harness}: {e}") from None

        made = log.once("rollouts", ("rollouts", "", t, 0), json.dumps(contexts), run)["rollouts"]
        if args.max_cost_usd is not None:
            spend(log, t, made)
        return made

    return rollout


def total(rollouts: list[dict]) -> dict:
    """What these rollouts used together; None where one of them does not know."""
    used = {name: [r[name] for r in rollouts] for name in ("steps", "tokens", "cost_usd")}
    return {"rollouts": len(rollouts)} | {name: None if None in x else sum(x) for name, x in used.items()}


def report(m: dict, failed: dict, N: int) -> None:
    """Print the four columns, of the graded tasks and with ungraded rollouts as failed, and what is behind them."""
    print(f"{m['tasks']} tasks, {m['ungraded_tasks']} left out for an ungraded rollout")
    print(f"{'':19} Iter0  Sel-K  Iter1  Final")
    for name, row in {"pass@1 %": m, "s.e.": m["se"], "ungraded as failed": failed}.items():
        print(f"{name:19}" + " ".join(f"{percent(row[c]):>6}" for c in ("iter0", "sel_k", "iter1", "final")))
    for t, counts in enumerate(m["pass_counts"]):
        steps = "-" if m["steps"][t] is None else f"{m['steps'][t]:.2f}"
        print(
            f"iteration {t}: pass@1 {percent(m['by_iteration'][t])} %, pass@N {percent(m['coverage'][t])} %", end=", "
        )
        print(f"tasks at 0/{N} {counts.get(0, 0)}, at {N}/{N} {counts.get(N, 0)}; {steps} steps a rollout; ", end="")
        print(f"judge right on mixed groups {percent(m['judge_accuracy'][t])} %; tasks by passes {counts}")
    for k, (rate, n) in m["by_passing_priors"].items():
        print(f"iteration 1 after {k} passing priors: pass@1 {percent(rate)} % of {n} rollouts")
    for role, used in m["usage"].items():
        print(f"{role}: " + ", ".join(f"{name} {'unknown' if n is None else n}" for name, n in used.items()))


def parse(argv: list[str] | None) -> argparse.Namespace:
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter, "usage": argparse.SUPPRESS}
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, **style)
    add = parser.add_argument
    add("--harness", choices=["functions", *ADAPTERS], default="functions", help="what makes the rollouts")
    add("--problems", default="humaneval:8", help="humaneval[:n], FILE.jsonl[:n]; or a harness's data set")
    add("--N", type=int, default=16, help="rollouts a task and iteration (paper: 16)")
    add("--K", type=int, default=4, help="summaries in a context (paper: 4)")
    add("--T", type=int, default=2, help="iterations (paper: 2)")
    add("--context", choices=["select", "random", "single"], default="select", help="whose summaries (paper: select)")
    add("--diagnose", action="store_true", help="select: continue the earlier iterations' tournaments to one winner")
    add("--turns", type=int, default=3, help="functions: replies of the agent in a rollout")
    add("--timeout-s", type=float, default=10.0, help="functions: of one program")
    add("--workers", type=int, default=4, help="other harnesses: agents at once")
    add("--backend", default="docker", help="other harnesses: where containers run")
    add("--agent", help="other harnesses: the agent program")
    add("--grader", help="other harnesses: the grading program")
    add("--execute", action="store_true", help="with --replay: run the programs again too (functions)")
    rtv.options(parser)
    args = rtv.check(parser, parser.parse_args(argv))
    args.fields = args.fields or ("tb" if args.harness == "terminal_bench" else "swe")
    if min(args.N, args.T, args.turns, args.workers) < 1 or not args.timeout_s > 0:
        parser.error("need --N, --T, --turns, --workers >= 1 and --timeout-s > 0")
    if args.diagnose and args.context != "select":
        parser.error(f"--diagnose: --context {args.context} has no tournament before the last one")
    return args


def check_harness(args: argparse.Namespace) -> None:
    """UserError where a harness program lacks what it needs."""
    if args.harness != "functions" and args.execute:
        raise common.UserError(f"--harness {args.harness} has no --execute: its programs ran elsewhere")
    if args.harness != "functions" and not (args.replay or (args.run and args.url and args.model)):
        raise common.UserError(f"--harness {args.harness} needs --run, --url and --model (the name there)")
    asks = not args.replay and (args.judge == "model" or args.T > 1)
    if args.max_cost_usd is not None and asks and None in (args.price_in, args.price_out):
        raise common.UserError("--max-cost-usd needs --price-in and --price-out")  # said before a rollout is paid for


def estimate(args: argparse.Namespace, tasks: int) -> str:
    """The calls that these settings mean: a rollout of the functions harness has one a turn, at most."""
    count = partial(rtv.comparisons, G=args.G, V=args.V)
    early = count(args.N, K=args.K) + (count(min(args.N, args.K), K=1) if args.diagnose else 0)
    votes = count(args.N, K=1) + (early * (args.T - 1) if args.context == "select" else 0)
    made = tasks * args.N * args.T
    turns = made * (args.turns if args.harness == "functions" else 0)
    print(f"{tasks} tasks, {made} rollouts" + ("" if turns else " (their calls are the harness's own)"))
    summaries = tasks * args.N * sum(summarised(args, t) for t in range(args.T))
    return rtv.estimate({"rollout": turns, "summary": summaries, "vote": tasks * votes}, args)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    if args.estimate:
        print(estimate(args, len(problems_of(args))))
        return 0
    check_harness(args)
    limits = {"execute": args.execute, "max_cost_usd": args.max_cost_usd}
    log = common.Log(args.run, __file__, vars(args), free={"workers"}, replay=args.replay, **limits)
    check_harness(args)  # a replay knows its harness now
    problems = log.lines[PROBLEMS]["problems"] if args.replay and PROBLEMS in log.lines else problems_of(args)
    log.write(*PROBLEMS, problems=problems)
    statements = {p["id"]: p["prompt"] for p in problems}
    ask = rtv.asker(log, args)
    by_calls = args.harness == "functions"
    rollout = of_functions(args, log, problems, ask) if by_calls else of_harness(args, log)
    rounds: dict[int, list[dict]] = {}
    stubs: Counter = Counter()
    select, summarise = selector(args, log, ask, statements, rounds), summariser(args, ask, stubs)
    paper = {"N": args.N, "K": args.K, "T": args.T, "context": args.context, "seed": args.seed}
    records = []
    for record in pdr(list(statements), rollout, summarise, select, **paper):
        records.append(record)
        outcomes = by_task(record["rollouts"], [r["outcome"] for r in record["rollouts"]])
        unit = ("iteration", "", record["iteration"], 0)
        log.write("iteration", unit, outcomes=outcomes, priors=record["priors"], kept=record["kept"])
    m = measure(records, rounds) | {"usage": log.usage(), "stubs": sum(stubs.values())}
    if not by_calls:  # its calls are not in our log, its rollouts say what they used
        m["usage"]["rollout"] = total([r for record in records for r in record["rollouts"]])
    report(m, measure(as_failed(records), rounds), args.N)
    for t, record in enumerate(records):
        if rounds.get(t):
            print(f"judge, iteration {t}: {judge_of(record['rollouts'], rounds[t])}")
    chosen = [r for r in records[-1]["rollouts"] if r["rollout"] in records[-1]["kept"][r["task"]]]
    if args.run and not args.replay:
        (Path(args.run) / "chosen.jsonl").write_text("".join(json.dumps(r) + "\n" for r in chosen), "utf-8")
        if args.harness == "swe_bench":
            swe_bench.write_predictions(chosen, Path(args.run) / "chosen.json", args.model)
    if args.plot and m["iter0"] is not None:
        plot({c: (m[c], m["se"][c]) for c in m["se"]}, m["coverage"][0], Path(args.run) / "figure.png")
    return log.finish(**m, winners=records[-1]["kept"])


if __name__ == "__main__":
    common.entry(main)
