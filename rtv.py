"""Recursive Tournament Voting (RTV): pick the best of N agent rollouts without an oracle.

Paper   Scaling Test-Time Compute for Agentic Coding, arXiv:2604.16529
Input   JSON lines, one rollout each: task, rollout (index), problem, transcript; and, if known, answer, outcome (true |
        false | null = not graded), steps, tokens, cost_usd, status. Or a folder as mini-SWE-agent or Harbor leaves it.
        A replay needs the same rollouts: the log has their sha256
Loop    1. the model turns each rollout R_i into a structured summary S_i, once
        2. the survivors of a task are split into groups of G; in each, V votes compare the summaries, one stays
        3. repeat 2 until K are left (a task with K or fewer passes as it is): selection and not synthesis
Run     python rtv.py rollouts.jsonl --model MODEL --G 2 --V 8 --K 1 --run runs/rtv
        python rtv.py rollouts.jsonl --judge vote=.6      (a simulated judge, on rollouts with outcomes: plan G and V)
        python rtv.py runs/swe/it0 --url URL --model NAME     (a harness's folder: an iteration, or one rollout index)
Output  a line a round; in RUN: log.jsonl (its last line has the winners, {task: [rollout]}), figure.png
Expect  pass@1 before the first round and after the last, Claude-4.5-Sonnet, N=16, G=2, V=8: SWE-Bench Verified (500)
        67.4 -> 73.6, Terminal-Bench 2.0 (88) 40.6 -> 54.6; the paper does not say over how many seeds
Differs what the paper does not disclose is an option, logged with the run:
        - prompts are our own; a summary's fields have the paper's names (--fields) but are not enforced
        - the display order turns by one place a vote (--order): position bias cancels within a match where V is a
          multiple of the group's size, else over the seeded pairing only
        - a tied vote is broken by a seeded coin (--tie); a vote whose last verdict line holds more than the name of one
          solution abstains; where none can be read the coin decides and the match is marked judge_failed
        - pairing is a seeded shuffle; any N works: max(K, ceil(n/G)) groups, as even as possible, one alone has a bye
        - what is longer than --cut-chars loses its middle, and the cut is marked
"""

import argparse
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import common
from evaluators.outcomes import Outcomes, by_task, health, is_harbor, plot, read_rollouts, report, score

SUMMARY_PROMPT = """\
An agent worked on this task:
<task>
{problem}
</task>
<attempt>
{attempt}
</attempt>
Summarise the attempt for a reviewer who will not see it and must compare it with others. Report what happened, not
whether you like it. Quote commands, output and code where they decide something. Keep what was observed apart from what
the agent only claimed, and name what was never checked. Use these sections, each under its name:
{fields}"""

COMPARE_PROMPT = """\
{n} attempts were made at the task below, each on its own. Decide which one solves it best.
<task>
{problem}
</task>
{solutions}
Compare them on evidence, in this order: what rules an attempt out (nothing submitted, another task solved, something
broken); correctness; completeness; whether its checks test what was asked; tests run and passed; no change beyond the
task; commands seen to work; reading of the task. A claim without an observation is weak; the attempts' order means
nothing. Write the comparison first. The last line of your reply must name one solution by number:
Final verdict: Solution N"""

FIELDS = {  # the paper's names; the words in brackets are ours
    "swe": """issue_requirements (all that is asked), agent_actions (in order), code_changes (file, function, how),
command_execution (with output, without output, errors), error_analysis (what failed, why, what was done),
evidence_inventory (confirmed, error, unconfirmed), final_state (of the working tree), patch_status (submitted,
complete, anything else in it), requirement_coverage (each: met, partly, not, unknown), verification_record (each check
and its result)""",
    "tb": """task_requirements (with paths, formats, limits), agent_actions (in order), command_execution_record (with
output), evidence_inventory (confirmed, error, unconfirmed), final_state (files, services, settings), resource_access
(used, missing), solution_characteristics (approach, assumptions), verification_record (each check and its result)""",
}
STUB = "[no summary: "  # then the reason
VERDICT = re.compile(r'^[ \t>*_#`-]*(?:final )?(?:verdict|answer)[*_` ]*:(.*)$|"winner"\s*:\s*([^,}\n]*)', re.I | re.M)
SHARE = r"(0?\.\d+|[01](\.0*)?)"
JUDGE = re.compile(f"model|oracle|coin|vote={SHARE}|accuracy={SHARE}(,{SHARE})*")
NUMBER = re.compile(r'[\s*_`"]*(?:(?:solution|candidate|attempt)\s*)?(\d{1,9})[\s*_`".]*', re.I)


def without_thinking(reply: str) -> str:
    """What the model says in the end: thinking is dropped, also where it was cut off or its start is missing."""
    return re.sub(r"<think>.*?(</think>|\Z)", "", reply, flags=re.DOTALL).rpartition("</think>")[2].strip()


def read_verdict(reply: str, n: int) -> int | None:
    """The number (1..n) in the last verdict line or {"winner": N}; None where that names no solution."""
    verdicts = list(VERDICT.finditer(without_thinking(reply)))
    number = NUMBER.fullmatch(verdicts[-1][1] or verdicts[-1][2] or "") if verdicts else None  # nothing beside it
    return int(number[1]) if number and 1 <= int(number[1]) <= n else None


def cut(text: str, budget: int) -> str:
    """At most `budget` characters: head and tail, with the cut marked between them."""
    if len(text) <= budget:
        return text
    mark = f"\n[... the middle of {len(text)} characters is cut out ...]\n"
    head = max(0, budget - len(mark)) // 2  # the tail has the other half
    return text[:head] + mark + text[len(text) - max(0, budget - len(mark) - head) :]


def group_sizes(n: int, G: int, K: int) -> list[int]:
    """How n candidates are split in one round: max(K, ceil(n/G)) groups as even as possible, the larger ones first."""
    groups = max(K, -(-n // G))  # Differs: the paper has powers of G alone
    return [n // groups + (i < n % groups) for i in range(groups)]


def schedule(n: int, *, G: int, K: int) -> list[list[int]]:
    """The group sizes of every round for n candidates: [[8, 8], [2]] for n=16, G=8, K=1; no round where n <= K."""
    rounds = []
    while n > K:
        rounds.append(group_sizes(n, G, K))
        n = len(rounds[-1])
    return rounds


def comparisons(n: int, *, G: int, V: int, K: int) -> int:
    """Judge calls of one task with n candidates, without revotes: 120 for n=16, G=2, V=8, K=1."""
    return V * sum(size > 1 for sizes in schedule(n, G=G, K=K) for size in sizes)


def tally(group: list, shown: list[list], votes: Sequence[int | None]) -> list[int]:
    """Votes for each member of the group, in its order. A vote is a place in the order shown, from 1; None abstains."""
    chosen = [order[vote - 1] for order, vote in zip(shown, votes, strict=True) if vote is not None]
    return [chosen.count(c) for c in group]


def leaders(group: list, counts: list[int]) -> list:
    """The members with the most votes: one, or those that are tied; the whole group where nobody has a vote."""
    return [c for c, count in zip(group, counts, strict=True) if count == max(counts)]


def display(group: list, v: int, order: str, draw: random.Random) -> list:
    """The group as vote v sees it: by index (fixed), drawn (shuffled), turned by one place a vote (balanced)."""
    if order == "fixed":
        return sorted(group)
    return draw.sample(group, len(group)) if order == "shuffled" else group[v % len(group) :] + group[: v % len(group)]


def poll(matches: list[dict], judge: Callable, *, t: int, V: int, order: str, seed: int) -> None:
    """Put V more votes on each match among those who lead it (at first: all), in one batch for all matches."""
    ballots = []
    for x in matches:
        lead, first = leaders(x["group"], x["tally"]), len(x["votes"])
        for v in range(first, first + V):
            draw = random.Random(f"{seed}:order:{x['task']}:{t}:{x['match']}:{v}")
            x["shown"].append(display(lead, v, order, draw))
            ballots.append((x["task"], t, x["match"], v, x["shown"][-1]))
    votes = iter(judge(ballots) if ballots else [])  # in the ballots' order
    for x in matches:
        x["votes"] += itertools.islice(votes, V)
        x["tally"] = tally(x["group"], x["shown"], x["votes"])


def rtv(
    candidates: dict[str, list[int]], judge: Callable, *, G: int, V: int, K: int, order: str, tie: str, seed: int
) -> Iterator[dict]:
    """Yield one record a round, over all tasks: round, matches, kept {task: survivors, sorted}; none where n <= K.

    judge(ballots) -> a vote for each ballot (task, round, match, vote, shown): the best one's place in `shown` from 1,
    or None. A match: task, match, group, shown, votes, tally (by group), winner, status won, tie, judge_failed or bye.
    Draws depend on (seed, task, round, match) alone, so what else is in the batch does not matter.
    tie: coin, lower (the lower index wins), revote (V more votes among the tied, then the coin).
    """
    if G < 2 or V < 1 or K < 1 or not all(candidates.values()):
        raise ValueError(f"need G >= 2, V >= 1, K >= 1 and a candidate for every task: {G=} {V=} {K=} {candidates=}")
    kept = {task: sorted(c) for task, c in candidates.items()}  # [task]: the survivors
    for t in itertools.count():
        playing = [task for task in kept if len(kept[task]) > K]
        if not playing:
            return
        matches = []
        for task in playing:
            drawn = iter(random.Random(f"{seed}:pairs:{task}:{t}").sample(kept[task], len(kept[task])))
            for m, size in enumerate(group_sizes(len(kept[task]), G, K)):
                x = {"task": task, "match": m, "group": list(itertools.islice(drawn, size)), "shown": [], "votes": []}
                matches.append({**x, "tally": [0] * size})
        contested = [x for x in matches if len(x["group"]) > 1]  # a group of one has a bye
        poll(contested, judge, t=t, V=V, order=order, seed=seed)  # all tasks in one batch
        if tie == "revote":
            tied = [x for x in contested if any(x["tally"]) and len(leaders(x["group"], x["tally"])) > 1]  # once
            poll(tied, judge, t=t, V=V, order=order, seed=seed)
        for x in matches:
            best, counted = leaders(x["group"], x["tally"]), any(x["tally"])
            coin = random.Random(f"{seed}:coin:{x['task']}:{t}:{x['match']}")
            x["winner"] = min(best) if counted and tie == "lower" else coin.choice(best)
            decided = "judge_failed" if not counted else "tie" if len(best) > 1 else "won"
            x["status"] = decided if len(x["group"]) > 1 else "bye"
        kept |= {task: sorted(x["winner"] for x in matches if x["task"] == task) for task in playing}
        yield {"round": t, "matches": matches, "kept": dict(kept)}


def simulated(spec: str, outcomes: Outcomes, seed: int, *, t0: int) -> Callable:
    """A judge without a model: oracle, coin, accuracy=A[,A2,...] (of a mixed match, by round), vote=A (of one vote).

    The last A holds on; t0 rounds went before. A coin decides what is not mixed. Not graded is not passing; UserError
    where nothing is graded.
    """
    kind, _, values = spec.partition("=")
    if kind != "coin" and all(x is None for o in outcomes.values() for x in o.values()):
        raise common.UserError(f"--judge {spec} needs outcomes, and no rollout has one")
    A = [1.0] if kind == "oracle" else [float(a) for a in values.split(",") if a]

    def vote(task: str, t: int, m: int, v: int, shown: list[int]) -> int:
        draw = random.Random(f"{seed}:{kind}:{task}:{t}:{m}" + (f":{v}" if kind in ("vote", "coin") else ""))
        pool = sorted(shown)
        right, wrong = [c for c in pool if outcomes[task][c]], [c for c in pool if not outcomes[task][c]]
        if A and right and wrong:
            pool = right if draw.random() < A[min(t0 + t, len(A) - 1)] else wrong  # "accuracy": for all V votes
        return shown.index(draw.choice(pool)) + 1

    return lambda ballots: [vote(*ballot) for ballot in ballots]


def asker(log: common.Log, args: argparse.Namespace) -> Callable:
    """ask(units, requests) -> replies in the same order: one batch through the log, a seed of its own for each."""
    names = ("model", "url", "temperature", "max_tokens", "price_in", "price_out")
    chat = None if args.replay else common.open_chat(**{name: getattr(args, name) for name in names})

    def ask(units: list[common.Unit], requests: list[list[common.Message]]) -> list[common.Reply]:
        replies = dict(log.calls(chat, units, requests, [common.seed_of(args.seed, *unit) for unit in units]))
        return [replies[i] for i in range(len(units))]

    return ask


def evidence(rollout: dict, budget: int) -> str:
    """What the model reads of a rollout: transcript and answer; "" is said to be empty, null (there is none) is not."""
    answer = rollout.get("answer")
    if answer is not None:
        answer = "\n\nSubmitted answer:\n" + (cut(answer, budget // 4) if answer.strip() else "(empty)")
    return cut(rollout["transcript"] or "(empty)", budget - len(answer or "")) + (answer or "")


def readable(rollout: dict) -> bool:
    """Whether there is something to read of a rollout, a transcript or an answer."""
    return bool(rollout["transcript"].strip() or (rollout.get("answer") or "").strip())


def summarise(rollouts: list[dict], ask: Callable, *, fields: str, cut_chars: int, t: int) -> list[str]:
    """A summary of each, in order. An empty one is asked for again with another seed; then a marked STUB stands.

    Of a rollout that left nothing, nothing is asked: its summary would be invented.
    """
    texts, why = [""] * len(rollouts), ["" if readable(r) else "the rollout left nothing" for r in rollouts]
    for attempt in range(2):  # the second one for empty replies alone; a call that failed would fail again
        todo = [i for i, text in enumerate(texts) if not text and not why[i]]
        units, requests = [], []
        for r in (rollouts[i] for i in todo):
            units.append(("summary", r["task"], 2 * t + attempt, r["rollout"]))
            parts = {"problem": r["problem"], "attempt": evidence(r, cut_chars), "fields": FIELDS[fields]}
            requests.append([{"role": "user", "content": SUMMARY_PROMPT.format(**parts)}])
        for i, reply in zip(todo, ask(units, requests) if todo else [], strict=True):
            texts[i], why[i] = without_thinking(reply.text), reply.error
    return [x or f"{STUB}{e or 'the model returned nothing, twice'}]" for x, e in zip(texts, why, strict=True)]


def model_judge(problems: dict[str, str], texts: dict[str, dict], ask: Callable, *, V: int, t0: int) -> Callable:
    """The model as the judge, one call a vote; it reads texts[task][rollout]. t0 keeps tournaments apart in the log.

    Where all that is shown are stubs it is not asked, and abstains.
    """

    def judge(ballots: list[tuple]) -> list[int | None]:
        told = [b for b in ballots if not all(texts[b[0]][c].startswith(STUB) for c in b[4])]
        units, requests = [], []
        for task, t, m, v, shown in told:
            units.append(("vote", task, t0 + t, 2 * V * m + v))  # at most 2V votes a match, with its revote
            blocks = [f"<solution_{k}>\n{texts[task][c]}\n</solution_{k}>" for k, c in enumerate(shown, 1)]
            text = COMPARE_PROMPT.format(n=len(shown), problem=problems[task], solutions="\n".join(blocks))
            requests.append([{"role": "user", "content": text}])
        replies = ask(units, requests) if told else []
        votes = {b[:4]: read_verdict(r.text, len(b[4])) for r, b in zip(replies, told, strict=True)}
        return [votes.get(b[:4]) for b in ballots]

    return judge


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of the tournament and of the model calls; pdr.py has them too."""
    add = parser.add_argument
    add("--G", type=int, default=2, help="candidates in a group (paper: 2)")
    add("--V", type=int, default=8, help="votes in a group (paper: 8)")
    add("--fields", choices=list(FIELDS), help="of a summary (paper: one list a benchmark; default: tb for Harbor)")
    add("--compare", choices=["summary", "trace"], default="summary", help="what the judge reads (paper: summary)")
    add("--judge", default="model", help="model | oracle | coin | accuracy=A[,A2,...] by round | vote=A")
    add("--order", choices=["balanced", "shuffled", "fixed"], default="balanced", help="of display, over the votes")
    add("--tie", choices=["coin", "lower", "revote"], default="coin", help="what breaks a tied vote")
    add("--cut-chars", type=int, default=40_000, help="characters of one rollout in a prompt")
    add("--model", help="a folder or hub name for vLLM in this process; with --url the model's name there")
    add("--url", nargs="+", help="OpenAI-compatible servers, used in turn")
    add("--temperature", type=float, default=0.7, help="(paper: not disclosed)")
    add("--max-tokens", type=int, default=2048, help="of one reply (paper: not disclosed)")
    add("--price-in", type=float, help="USD a million tokens")
    add("--price-out", type=float, help="USD a million tokens")
    add("--max-cost-usd", type=float, help="stop when this is spent")
    add("--seed", type=int, default=0)
    add("--run", metavar="DIR", help="folder of the log; the same command goes on from what it holds")
    add("--replay", action="store_true", help="recompute every decision from the log, without a model")
    add("--estimate", action="store_true", help="print the number of calls and stop")
    add("--plot", action="store_true", help="draw figure.png in --run")


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> argparse.Namespace:
    """The arguments, if they are possible."""
    if args.K < 1 or args.G < 2 or args.V < 1 or args.cut_chars < 400:
        parser.error("need --K >= 1, --G >= 2, --V >= 1, --cut-chars >= 400")
    if not JUDGE.fullmatch(args.judge):
        parser.error(f"--judge {args.judge} is not as in --help, with A in [0, 1]")
    return args


def estimate(calls: dict[str, int], args: argparse.Namespace) -> str:
    """How many calls, by role, and at most how many tokens the replies have; prompts come on top."""
    if args.judge != "model":
        calls = calls | {"vote": 0}
    again = {"summary": 2, "vote": 1 + (args.tie == "revote")}  # an empty summary, a tied vote
    total = sum(n * again.get(role, 1) for role, n in calls.items()) * args.max_tokens
    cost = "" if args.price_out is None else f" (USD {total * args.price_out / 1e6:.2f})"
    listed = ", ".join(f"{n} {role} calls" for role, n in calls.items())
    return f"{listed}, if none is asked twice; at most {total} completion tokens{cost}, prompts not counted"


def parse(argv: list[str] | None) -> argparse.Namespace:
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter, "usage": argparse.SUPPRESS}
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, **style)
    parser.add_argument("rollouts", help="JSONL file, or a folder of mini-SWE-agent or Harbor")
    parser.add_argument("--K", type=int, default=1, help="how many to keep (paper: 1; for PDR's context 4)")
    options(parser)
    return check(parser, parser.parse_args(argv))


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        rollouts = read_rollouts(Path(args.rollouts))
    except ValueError as e:
        raise common.UserError(str(e)) from None
    outcomes = by_task(rollouts, [r["outcome"] for r in rollouts])
    candidates = {task: list(o) for task, o in outcomes.items()}
    args.fields = args.fields or ("tb" if is_harbor(Path(args.rollouts)) else "swe")
    if args.estimate:
        votes = sum(comparisons(len(c), G=args.G, V=args.V, K=args.K) for c in candidates.values())
        asked = [r for r in rollouts if len(candidates[r["task"]]) > args.K and readable(r)]
        summaries = len(asked) if args.judge == "model" and args.compare == "summary" else 0
        print(estimate({"summary": summaries, "vote": votes}, args))
        return 0
    limits = {"replay": args.replay, "max_cost_usd": args.max_cost_usd}
    log = common.Log(args.run, __file__, vars(args), free={"rollouts"}, **limits)
    log.write("input", ("input", "", 0, 0), sha256=common.sha256(json.dumps(rollouts)))
    texts: list[str] = []
    if args.judge != "model":
        judge = simulated(args.judge, outcomes, args.seed, t0=0)
    else:
        ask = asker(log, args)
        playing = [r for r in rollouts if len(candidates[r["task"]]) > args.K]  # where n <= K nothing is asked
        texts = [evidence(r, args.cut_chars) for r in playing]
        if args.compare == "summary":
            texts = summarise(playing, ask, fields=args.fields, cut_chars=args.cut_chars, t=0)
        judge = model_judge({r["task"]: r["problem"] for r in playing}, by_task(playing, texts), ask, V=args.V, t0=0)
    records = []
    for record in rtv(candidates, judge, G=args.G, V=args.V, K=args.K, order=args.order, tie=args.tie, seed=args.seed):
        records.append(record)
        log.write("round", ("round", "", record["round"], 0), **record)
    scores, habits = score(outcomes, records), health([x for r in records for x in r["matches"]])
    habits["stubs"] = sum(text.startswith(STUB) for text in texts)
    report(scores, habits)
    winners = records[-1]["kept"] if records else candidates
    print("winners: " + json.dumps(winners))
    if args.plot and scores["pass_at_1"]:
        rounds = dict(enumerate(zip(scores["pass_at_1"], scores["se"], strict=True)))
        plot(rounds, scores["coverage"], Path(args.run) / "figure.png")
    return log.finish(**scores, judge=habits, winners=winners)


if __name__ == "__main__":
    common.entry(main)
