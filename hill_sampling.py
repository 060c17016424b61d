"""Hill Sampling: keep the best program, sample N seeded edits of it, run them all, move to the best of them, repeat.

Paper   Hill Sampling, arXiv:2609.25510 (Beck, Ogren, Kobren); its baselines that change prompts (appendix F) are
        `--search`, those that change weights are weight_search.py
Input   the task: circles, sets or erdos (evaluators/); or `compare RUN RUN ...`: one table and figure of several runs
Loop    1. r = reward of the start program x
        2. draw N edits y_i of x, each with a seed of its own; run each y_i once for each --timeout-s; r_i = the reward
           of its last run, none where any run fails or the construction is invalid
        3. i* = argmax r_i (the lowest index of equals); if r_i* >= r: x, r = y_i*, r_i*   (a tie moves, on purpose)
        4. repeat 2 and 3 for M rounds; the incumbent is never run again
Run     python hill_sampling.py circles --model MODEL --N 64 --M 200 --seed 0 --run runs/circles
        python hill_sampling.py circles --url URL --N 512 --M 14 --timeout-s 100 --run runs/t1     (Table 1, circles)
Output  a line a round; in RUN: log.jsonl, best.py, best.json (its construction), figure.png. score: certified, as in
        the task; normalised: score / AlphaEvolve's, or its inverse where lower is better
Expect  Table 1, best of 3 seeds, N = 512, not reproduced here (8 x H100): circles 2.635983084917604 (M = 14, one
        timeout of 100 s, gpt-oss-20b), sets 1.109543 (M = 2, 5 s twice, OLMo-3.1-32B), erdos 0.38089767 (M = 70, 20 s
        twice, Mistral-Small-3.1-24B)
Differs - the reward is the certified score of the exact verifiers in evaluators/ (negative for erdos, where lower is
          better); the paper's own rule is logged too
        - seeds are seed * 1,000,000 + t * N + i; the paper only says that they increase across batches
        - prompts and start programs are our own; K of the top-K searches is not stated in the paper (default 4)
        - top-k-diverse measures similarity by TF-IDF of tokens, the paper by sentence embeddings; pools hold valid
          programs alone, top-K distinct ones; feedback shows the last 2,000 characters of stdout and of stderr
        - up to 64 requests are in flight a server (paper: 1 at N = 64, 8 at N = 512); a server's own sampling defaults
          count unless it is started with --generation-config vllm (paper: top-p 1, as it is in this process)
        - a set of more than 20,000 elements or a function of more than 10,000 steps is invalid (--max-size)
        - in-context-rl and subpopulation reset after 4 rounds to the best so far; the paper does not say to what
        - a reply without an EDIT block counts where its last code block defines the entry point
        - not here: the paper's searches that adapt the temperature (ATA, ATS), and climbing in weight space
"""

import argparse
import collections
import contextlib
import heapq
import json
import math
import os
import random
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import common

TASKS = ("circles", "sets", "erdos")
CYCLE = 4  # rounds until in-context-rl and subpopulation start again
POPULATION = 8  # edits a round in one subpopulation
DIVIDER = "\n# ---- another program ----\n"


class Trial(NamedTuple):
    """One evaluated program. t is -1 for the start program; reward None: invalid; output: what it printed."""

    t: int
    i: int
    program: str
    reward: float | None
    output: str


# Parents: (best, history, N, K, t, seed) -> for each of the N children the earlier trials it sees; best: the incumbent.


def hill(best: Trial, history: list[Trial], N: int, K: int, t: int, seed: int) -> list[list[Trial]]:
    return [[best]] * N


def repeated(best: Trial, history: list[Trial], N: int, K: int, t: int, seed: int) -> list[list[Trial]]:
    return [[history[0]]] * N


def top(history: list[Trial], K: int) -> list[Trial]:
    """The K best distinct programs, best first, the earlier of equals first; the start program where none is valid."""
    distinct = {trial.program: trial for trial in reversed(history) if trial.reward is not None}
    ranked = heapq.nsmallest(K, distinct.values(), key=lambda trial: (-(trial.reward or 0), trial.t, trial.i))
    return ranked or [history[0]]


def top_k(best: Trial, history: list[Trial], N: int, K: int, t: int, seed: int) -> list[list[Trial]]:
    pool = top(history, K)
    return [[pool[i % len(pool)]] for i in range(N)]


def top_k_random(best: Trial, history: list[Trial], N: int, K: int, t: int, seed: int) -> list[list[Trial]]:
    valid = [trial for trial in history if trial.reward is not None] or history[:1]
    pool = top(history, K) + random.Random(f"top-k-random {seed} {t}").sample(valid, min(K, len(valid)))
    return [[pool[i % len(pool)]] for i in range(N)]


def top_k_diverse(best: Trial, history: list[Trial], N: int, K: int, t: int, seed: int) -> list[list[Trial]]:
    """Top-K, then K times the valid program whose nearest one in the pool is least similar (the earlier of equals)."""
    rest = top(history, len(history))
    pool, vectors = rest[:K], tf_idf([trial.program for trial in rest])
    nearest = [max(dot(v, kept) for kept in vectors[:K]) for v in vectors]
    for _ in range(min(K, len(rest) - len(pool))):
        j = min(range(len(rest)), key=lambda j: (nearest[j], rest[j].t, rest[j].i))
        pool = [*pool, rest[j]]
        nearest = [max(near, dot(v, vectors[j])) for near, v in zip(nearest, vectors, strict=True)]
    return [[pool[i % len(pool)]] for i in range(N)]


def in_context(best: Trial, history: list[Trial], N: int, K: int, t: int, seed: int) -> list[list[Trial]]:
    return [top(history, K)[::-1]] * N  # the best last, next to the answer


def in_context_rl(best: Trial, history: list[Trial], N: int, K: int, t: int, seed: int) -> list[list[Trial]]:
    """Child i sees what its own line drew since the last reset, after the best program of that time."""
    since = [trial for trial in history if trial.t >= t - t % CYCLE]
    root = best_before(history, t - t % CYCLE)
    return [[root] + [trial for trial in since if trial.i == i] for i in range(N)]


def subpopulation(best: Trial, history: list[Trial], N: int, K: int, t: int, seed: int) -> list[list[Trial]]:
    """N / 8 populations, each hill climbing on its own; every 4 rounds all go on from the best of all."""
    root = best_before(history, t - t % CYCLE)
    own = [[x for x in history if x.t >= t - t % CYCLE and x.i // POPULATION == p] for p in range(-(-N // POPULATION))]
    bests = [best_before([root, *trials], t) for trials in own]
    return [[bests[i // POPULATION]] for i in range(N)]


def best_before(history: list[Trial], t: int) -> Trial:
    """The incumbent of hill climbing before round t: of equals the last round's, and in a round the lowest index."""
    best = history[0]
    for trial in history[1:]:
        if trial.t < t and trial.reward is not None:
            higher = best.reward is None or trial.reward > best.reward
            if higher or (trial.reward == best.reward and trial.t > best.t):
                best = trial
    return best


PARENTS = {
    "hill": hill,
    "repeated": repeated,
    "top-k": top_k,
    "top-k-random": top_k_random,
    "top-k-diverse": top_k_diverse,
    "in-context": in_context,
    "feedback": hill,
    "in-context-rl": in_context_rl,
    "subpopulation": subpopulation,
}


def tf_idf(texts: list[str]) -> list[dict[str, float]]:
    """Unit vectors of the words of each text, weighted by how few texts have them."""
    counts = [collections.Counter(re.findall(r"\w+|[^\w\s]", text)) for text in texts]
    seen = collections.Counter(word for count in counts for word in count)
    vectors = [{w: n * (1 + math.log(len(texts) / seen[w])) for w, n in count.items()} for count in counts]
    return [{w: v / math.sqrt(dot(vector, vector)) for w, v in vector.items()} for vector in vectors]


def dot(a: dict[str, float], b: dict[str, float]) -> float:
    return sum(v * b.get(w, 0.0) for w, v in a.items())


def context(search: str, trials: list[Trial]) -> str:
    """What stands in the prompt where the current program stands: a program, or several with what is known of them."""
    if search == "feedback":
        return (
            trials[0].program + "\n# It printed:\n" + "".join(f"#   {line}\n" for line in trials[0].output.split("\n"))
        )
    if search == "in-context-rl":
        return DIVIDER.join(f"# reward {trial.reward}\n{trial.program}" for trial in trials)
    return DIVIDER.join(trial.program for trial in trials)


def hill_sampling(
    x: str,
    sample: Callable,
    evaluate: Callable,
    *,
    N: int,
    M: int,
    K: int,
    seed: int,
    parents: Callable,
    context: Callable,
) -> Iterator[dict]:
    """Yield one record a round: {t, trials, best, accepted}; higher rewards are better, None is invalid and never wins.

    sample(t, contexts, seeds) -> iterator of (i, program or None) as replies finish; evaluate(t, that) -> [(program,
    reward, output)] by i: programs run while other replies are still being written. parents and context make the
    paper's variations; with `hill` and the program itself this is the paper's loop. Round -1 is the start program.
    """
    (first,) = evaluate(-1, iter([(0, x)]))
    best = Trial(-1, 0, *first)
    history = [best]
    yield {"t": -1, "trials": [best], "best": best, "accepted": False}
    for t in range(M):
        seeds = [seed * 1_000_000 + t * N + i for i in range(N)]  # every sample of every run has a seed of its own
        contexts = [context(shown) for shown in parents(best, history, N, K, t, seed)]
        trials = [Trial(t, i, *outcome) for i, outcome in enumerate(evaluate(t, sample(t, contexts, seeds)))]
        y = max(trials, key=lambda y: (y.reward is not None, y.reward or 0.0))  # max keeps the first of equals
        accepted = y.reward is not None and (best.reward is None or y.reward >= best.reward)
        best = y if accepted else best
        history += trials
        yield {"t": t, "trials": trials, "best": best, "accepted": accepted}


class Wiring:
    """The loop's callables, tied to a task, a log and a model; `records` keeps what each reply came to."""

    def __init__(self, args: argparse.Namespace, log: common.Log, chat: Callable | None, bar):
        self.args, self.log, self.chat, self.bar = args, log, chat, bar
        self.task = import_module(f"evaluators.{args.task}")
        self.records: dict[tuple[int, int], dict] = {}  # (t, i) -> what the program, or the lack of one, came to

    def sample(self, t: int, contexts: list[str], seeds: list[int], first: int = 0) -> Iterator[tuple[int, str | None]]:
        """(i, program) as replies finish, i from first on; None, with the reason in records, where there is none."""
        hint = f"\nHint: {self.args.hint}\n" if self.args.hint else ""
        requests = [[{"role": "user", "content": self.task.PROMPT.format(program=c) + hint}] for c in contexts]
        units = [("edit", self.args.task, t, first + k) for k in range(len(requests))]
        for k, reply in self.log.calls(self.chat, units, requests, seeds):
            i = first + k
            program, status = common.extract_code(reply.text, self.task.ENTRY, reply.finish_reason)
            if program is None:
                self.records[t, i] = {
                    "status": "call failed" if reply.error else status,
                    "reason": reply.error or reply.text,
                }
            yield i, program

    def evaluate(self, t: int, programs: Iterator[tuple[int, str | None]]) -> list[tuple[str, float | None, str]]:
        """[(program, reward, output)] by i. A program runs under each of the timeouts; the last run's reward counts."""
        texts: dict[int, str] = {}

        def one(job: tuple[int, str | None]) -> None:
            i, program = job[0], job[1] or ""
            texts[i] = program
            for k, timeout_s in enumerate(self.args.timeout_s if program else []):
                asked = json.dumps([program, timeout_s, self.args.memory_mb])
                unit = (f"run {k}", self.args.task, t, i)
                self.records[t, i] = self.log.once(
                    "run", unit, asked, partial(self.execute, program, timeout_s), self.check
                )
                if self.records[t, i]["status"] != "ok":
                    break
            self.bar.update(1 if t >= 0 else 0)

        common.parallel(one, ((i, (i, program)) for i, program in programs))
        outcomes = [(texts[i], self.records[t, i]) for i in sorted(texts)]
        return [(program, self.reward(r), r.get("stdout", "") + r.get("stderr", "")) for program, r in outcomes]

    def execute(self, program: str, timeout_s: float) -> dict:
        limits = {"timeout_s": timeout_s, "memory_mb": self.args.memory_mb}
        limits |= {"max_size": self.args.max_size} if self.args.max_size else {}
        return self.task.run(program, common.run_program, **limits)

    def check(self, record: dict) -> dict:
        """The scores that follow from a logged construction alone: a replay verifies every one again."""
        if record["status"] != "ok":
            return {}
        try:
            return self.task.verify(record["construction"])
        except ValueError as e:
            return {"status": "invalid", "reason": str(e)}

    def reward(self, record: dict) -> float | None:
        """The signed score: neighbouring floats stay apart, as they would not after a division."""
        return (record["score"] if self.task.HIGHER else -record["score"]) if record["status"] == "ok" else None

    def scores(self, best: Trial) -> dict:
        """What the result line says of a program."""
        known = self.records[best.t, best.i]
        score = known.get("score")
        normalised = None if best.reward is None else self.task.reward(score)
        return {"score": score, "normalised": normalised, "paper_score": known.get("paper_score", score)}

    def ledger(self, t: int, trials: list[Trial]) -> dict:
        """{status: {count, example: index, reason}} of the failures of a round, and how many programs are copies."""
        ledger: dict[str, dict] = {}
        for trial in trials:
            record = self.records[t, trial.i]
            if record["status"] != "ok":
                reason = record.get("reason") or record.get("stderr", "").strip()
                entry = ledger.setdefault(record["status"], {"count": 0, "example": trial.i, "reason": reason[-200:]})
                entry["count"] += 1
        programs = [trial.program for trial in trials if trial.program]
        return ledger | {"duplicates": {"count": len(programs) - len(set(programs))}}


def report(log: common.Log, wiring: Wiring, record: dict) -> str:
    """Log the round, and say it in one line with digits enough to see an improvement of 1e-12."""
    t, trials, best = record["t"], record["trials"], record["best"]
    known = wiring.records[best.t, best.i]
    valid = sum(trial.reward is not None for trial in trials)
    fields = {
        "best": [best.t, best.i],
        "score": known.get("score"),
        "reward": wiring.scores(best)["normalised"],
        "accepted": record["accepted"],
    }
    failures = wiring.ledger(t, trials)
    calls = [line for i in range(len(trials)) if (line := log.lines.get(("call", ("edit", wiring.args.task, t, i))))]
    counted = [call["completion_tokens"] for call in calls]
    tokens = "unknown" if None in counted else sum(counted)
    logged = log.write(
        "round", ("round", wiring.args.task, t, 0), **fields, valid=valid, programs=len(trials), failures=failures
    )
    counts = ", ".join(f"{v['count']} {k}" for k, v in failures.items() if v["count"])
    line = f"round {t:3d}  best {known.get('score')!r:20}  {'moved' if record['accepted'] else 'kept '}"
    line += f"  valid {valid}/{len(trials)}  {tokens} new tokens  {logged['t_s']:.0f} s"
    if valid == 0:
        most = max((k for k in failures if k != "duplicates"), key=lambda k: failures[k]["count"])
        line += f"\nwarning: no valid program in this round; most are {most}, e.g. {failures[most]['reason']!r}"
    return line + (f"  ({counts})" if counts else "")


def save_best(log: common.Log, best: Trial, record: dict) -> None:
    """best.py and best.json beside the log, each whole at any moment."""
    for name, text in (("best.py", best.program), ("best.json", json.dumps(record.get("construction")))):
        if (path := log.path(name)) is not None and not log.replay:
            part = path.with_suffix(".part")
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)


def curve(head: dict, rounds: list[dict]) -> tuple[list[int], list[float | None]]:
    """Completions and the best score after each round."""
    return [(r["unit"][2] + 1) * head["args"]["N"] for r in rounds], [r["score"] for r in rounds]


def plot(path: Path, log: common.Log, task, construction: object) -> None:
    """The best score by completions, and the best construction drawn."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    head = log.lines["run", 0]
    x, y = curve(head, [line for (event, _), line in log.lines.items() if event == "round"])
    left.step(x, [math.nan if v is None else v for v in y], where="post", marker=".")
    left.set(xlabel="completions", ylabel=f"best certified score ({'higher' if task.HIGHER else 'lower'} is better)")
    left.set_title(f"{head['args']['task']}: N = {head['args']['N']}, M = {head['args']['M']}")
    if construction is not None:
        task.plot(construction, right)
    figure.savefig(path, dpi=110)
    print(f"figure: {path}")


def finished(run: str) -> tuple[dict, list[dict]]:
    """First line and rounds of a run of this script or of weight_search.py; UserError where it has no result yet."""
    script = Path(__file__)
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError), open(Path(run) / "log.jsonl") as file:
        if json.loads(file.readline())["script"] == "weight_search.py":
            script = script.with_name("weight_search.py")
    log = common.Log(run, str(script), {}, replay=True)
    if log.differences:
        raise common.UserError(f"{log.name}: {log.differences[0]}")
    if ("result", 0) not in log.lines:
        raise common.UserError(f"{log.name} has no result yet; run its command again, then compare")
    return log.lines["run", 0], [line for (event, _), line in log.lines.items() if event == "round"]


def compare(runs: list[str], out: str | None) -> int:
    """One table and one figure: the best score by completions, by search; mean, standard error and best over seeds."""
    if not runs:
        raise common.UserError("compare: name the run folders")
    groups: dict[str, dict[int, tuple]] = {}  # what the runs of a group share, then by seed: task and curve
    found = [finished(run) for run in runs]
    heads = [head for head, _ in found]
    for run, (head, rounds) in zip(runs, found, strict=True):
        group, seed = groups.setdefault(name_of(head, heads), {}), head["args"]["seed"]
        if seed in group:
            raise common.UserError(f"{run}: seed {seed} of the same settings stands there twice")
        group[seed] = (head["args"]["task"], *curve(head, rounds))
    width = max(map(len, groups))
    print(f"{'search':{width}} {'completions':>11} {'seeds':>6} {'mean':>18} {'s.e.':>10} {'best':>18}")
    for name, curves in groups.items():
        task, x, _ = next(iter(curves.values()))
        last = [y[-1] for _, _, y in curves.values() if y[-1] is not None]
        line = f"{name:{width}} {x[-1]:11d} {f'{len(last)}/{len(curves)}':>6}"  # those with a valid program / all
        if not last:
            print(f"{line} {'no valid program':>18}")
            continue
        error = statistics.stdev(last) / math.sqrt(len(last)) if len(last) > 1 else math.nan
        best = (max if import_module(f"evaluators.{task}").HIGHER else min)(last)
        print(f"{line} {statistics.mean(last):18.15f} {error:10.2g} {best:18.15f}")
    if out:
        plot_groups(Path(out), groups)
    return 0


def name_of(head: dict, heads: list[dict]) -> str:
    """The search, and those of its settings (but the seed) in which other runs differ."""
    args, odd = head["args"], set()
    for other in heads:  # the two scripts have only some settings in common
        keys = args.keys() | other["args"] if other["script"] == head["script"] else args.keys() & other["args"]
        odd |= {k for k in keys if args.get(k) != other["args"].get(k)}
    shown = [f"{k} {args.get(k)}" for k in sorted(odd - {"seed", "search", "method"})]
    return ", ".join([args[k] for k in ("method", "search") if k in args] + shown)


def plot_groups(path: Path, groups: dict) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    for k, (name, curves) in enumerate(groups.items()):
        x = next(iter(curves.values()))[1]
        y = [[v for v in values if v is not None] for values in zip(*(y for _, _, y in curves.values()), strict=True)]
        mean = [statistics.fmean(v) if v else math.nan for v in y]
        error = [statistics.stdev(v) / math.sqrt(len(v)) if len(v) > 1 else 0.0 for v in y]
        low, high = ([m + sign * e for m, e in zip(mean, error, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, step="post", color=f"C{k}", alpha=0.15, linewidth=0)
        wide = 1.2 * (len(groups) - k)  # equal curves stay visible
        axes.step(x, mean, where="post", color=f"C{k}", linewidth=wide, marker=".", label=name)
    axes.set(xlabel="completions", ylabel="best certified score: mean and s.e. over seeds")
    figure.legend(loc="outside upper center", ncols=min(3, len(groups)))
    figure.savefig(path, dpi=110)
    print(f"figure: {path}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter, "usage": argparse.SUPPRESS}  # errors in one line
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, **style)
    add = parser.add_argument
    add("task", nargs="?", choices=[*TASKS, "compare"], help="the task; compare: RUN folders as further arguments")
    add("runs", nargs="*", help="with compare: run folders")
    add("--model", help="a folder or hub name: vLLM in this process; with --url the model's name there")
    add("--url", nargs="+", metavar="URL", help="OpenAI-compatible servers; request i goes to server i mod n")
    add("--N", type=int, default=64, help="edits a round (paper: 64; 512 in Table 1)")
    add("--M", type=int, default=200, help="rounds (paper: circles 200, sets 600, erdos 80 at N = 64)")
    add("--K", type=int, default=4, help="programs of the top-K searches (paper: not stated)")
    add("--search", choices=list(PARENTS), default="hill", help="the method, or one of the paper's baselines")
    add("--seed", type=int, default=0, help="of the run (paper: 3 seeds)")
    add("--temperature", type=float, default=1.0, help="(paper: the best of 0.95, 1.0, 1.05; sets 1.0)")
    add("--max-tokens", type=int, default=8000, help="new tokens a reply (paper: 8000)")
    add("--timeout-s", type=float, nargs="+", default=[5.0, 10.0], help="CPU seconds of each run (paper: 5 10)")
    add("--memory-mb", type=int, default=1024, help="of a program (paper: not stated)")
    add("--max-size", type=int, help="of a set or a step function that is verified (default: 20000, 10000)")
    add("--information", choices=["full", "none"], default="full", help="none: no start program shown (paper: NI)")
    add("--hint", default="", help="a sentence added to the prompt")
    add("--run", metavar="DIR", help="folder of the log; the same command goes on with it")
    add("--replay", action="store_true", help="no model, no program: recompute every decision from the log")
    add("--execute", action="store_true", help="with --replay: run the programs again too")
    add("--estimate", action="store_true", help="print what the settings cost at most, and stop")
    add("--plot", action="store_true", help="write figure.png into the run folder; with compare: compare.png here")
    add("--price-in", type=float, help="USD per million prompt tokens")
    add("--price-out", type=float, help="USD per million completion tokens")
    add("--max-cost-usd", type=float, help="stop when this much is spent")
    return parser.parse_intermixed_args(argv)


def check(args: argparse.Namespace) -> None:
    """UserError for settings that mean nothing."""
    counts = {f"--{k.replace('_', '-')}": getattr(args, k) for k in ("N", "M", "K", "memory_mb")}
    mistakes = {f"{flag} {n}: must be at least 1": n < 1 for flag, n in counts.items()}
    mistakes |= {f"--timeout-s {s}: must be above 0 and finite": not 0 < s < math.inf for s in args.timeout_s}
    mistakes |= {
        "--seed below 0, or N * M above 1,000,000: two runs would share seeds": args.seed < 0
        or args.N * args.M > 10**6,
        f"run folders ({args.runs} ...) are for compare alone": bool(args.runs),
        f"name a task: {', '.join(TASKS)}, or compare": args.task is None and not args.replay,
        f"--max-size {args.max_size}: must be at least 1, and circles have none": args.max_size is not None
        and (args.max_size < 1 or args.task == "circles"),
        f"--N {args.N}: subpopulation needs a multiple of {POPULATION}": args.search == "subpopulation"
        and args.N % POPULATION,
    }
    for mistake, made in mistakes.items():
        if made:
            raise common.UserError(mistake)


def estimate(args: argparse.Namespace) -> None:
    calls, tokens = args.N * args.M, args.N * args.M * args.max_tokens
    price = f", at most ${tokens * args.price_out / 1e6:.2f} for them" if args.price_out is not None else ""
    seconds = (calls + 1) * sum(args.timeout_s)
    print(f"{calls} calls, at most {tokens} new tokens{price} (prompts not counted)")
    print(f"{calls + 1} programs, at most {seconds:.0f} CPU seconds in the sandbox")


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    if args.task == "compare":
        if args.run or args.url or args.model:
            raise common.UserError("compare takes run folders and --plot; each folder's log says the rest")
        return compare(args.runs, "compare.png" if args.plot else None)
    check(args)
    if args.estimate:
        estimate(args)
        return 0
    keys = ("model", "url", "temperature", "max_tokens", "price_in", "price_out")
    chat = None if args.replay else common.open_chat(**{k: getattr(args, k) for k in keys})
    options = {"replay": args.replay, "execute": args.execute, "max_cost_usd": args.max_cost_usd}
    task = args.task
    log = common.Log(args.run, __file__, vars(args), free={"runs"}, **options)
    if task not in (None, args.task):
        raise common.UserError(f"{log.name} is a run of {args.task}, not of {task}")
    from tqdm import tqdm

    with tqdm(total=args.N * args.M, unit="edit", disable=args.replay or None) as bar:  # None: not into a file
        wiring = Wiring(args, log, chat, bar)
        if not args.replay:
            common.sound(wiring.task.self_test)
            tqdm.write(f"sandbox: {common.sandbox()['name']}; log: {log.name if args.run else 'none (no --run)'}")
        x = wiring.task.START if args.information == "full" else wiring.task.BARE
        settings = {"N": args.N, "M": args.M, "K": args.K, "seed": args.seed}
        shown = {"parents": PARENTS[args.search], "context": partial(context, args.search)}
        accepted = valid = 0
        for record in hill_sampling(x, wiring.sample, wiring.evaluate, **settings, **shown):
            tqdm.write(report(log, wiring, record))
            accepted += record["accepted"]
            valid += sum(trial.reward is not None for trial in record["trials"] if trial.t >= 0)
            best = record["best"]
            if record["accepted"] or record["t"] < 0:
                save_best(log, best, wiring.records[best.t, best.i])
    code = log.finish(**wiring.scores(best), accepted=accepted, completions=args.N * args.M)
    print(json.dumps(log.lines["result", 0], indent=1))
    if args.plot and (path := log.path("figure.png")) is not None:
        plot(path, log, wiring.task, wiring.records[best.t, best.i].get("construction"))
    if not valid:
        print("no edit was ever valid: see the failures of each round in the log", file=sys.stderr)
    return code or (0 if valid or args.replay else 1)


if __name__ == "__main__":
    common.entry(main)
