"""Rollouts and what their outcomes say: reading the records, pass@1, the judge's accuracy and habits.

Nothing here decides anything: rtv.py and pdr.py choose without it, and are measured with it. A rate is a fraction over
tasks; a task with an ungraded rollout is left out of the rates and counted; None is where there is nothing to divide.
"""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evaluators import swe_bench, terminal_bench

Outcomes = Mapping[str, Mapping[int, bool | None]]  # [task][rollout]; None = not graded


def rollout_of(line: str) -> dict:
    """A rollout from its JSON line, ValueError where it is none."""
    r = {"answer": None, "outcome": None, **json.loads(line)}
    for name, kind in {"task": str, "rollout": int, "problem": str, "transcript": str}.items():
        if not isinstance(r.get(name), kind):
            raise ValueError(f"{name} is {r.get(name)!r}")
    if not isinstance(r["answer"], str | None) or not isinstance(r["outcome"], bool | None):
        raise ValueError(f"answer is {r['answer']!r}, outcome is {r['outcome']!r}")
    return r


def is_harbor(path: Path) -> bool:
    """Whether it is a folder with Harbor's trials in it, and not one of mini-SWE-agent or a file."""
    return path.is_dir() and bool(terminal_bench.trials(path))


def read_rollouts(path: Path) -> list[dict]:
    """The rollouts of a JSONL file or of a harness folder; ValueError names the line that is wrong."""
    if path.is_dir():
        return (terminal_bench if is_harbor(path) else swe_bench).load(path)
    rollouts = {}
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError as e:
        raise ValueError(f"{path} is not UTF-8 text: {e}") from None
    for number, line in enumerate(lines, 1):
        try:
            r = rollout_of(line) if line.strip() else None
        except (ValueError, TypeError) as e:
            raise ValueError(f"{path} line {number} is not a rollout: {e}") from None
        if r and rollouts.setdefault((r["task"], r["rollout"]), r) is not r:
            raise ValueError(f"{path} line {number}: rollout {r['rollout']} of {r['task']} stands there twice")
    if not rollouts:
        raise ValueError(f"{path}: no rollouts")
    return list(rollouts.values())


def by_task(rollouts: list[dict], values: list) -> dict[str, dict]:
    """values[k] of the k-th rollout as {task: {rollout: value}}."""
    table: dict[str, dict] = {}
    for r, value in zip(rollouts, values, strict=True):
        table.setdefault(r["task"], {})[r["rollout"]] = value
    return table


def mean_se(values: list) -> tuple[float | None, float | None]:
    """The mean and its standard error; None, never NaN, where there are too few values."""
    se = statistics.stdev(map(float, values)) / math.sqrt(len(values)) if len(values) > 1 else None
    return (statistics.fmean(values) if values else None), se


def pass_at_1(outcomes: Outcomes, kept: Mapping[str, Iterable[int]]) -> tuple[float | None, float | None]:
    """The share of passing rollouts among those kept, mean over the tasks of `outcomes`, and its standard error."""
    return mean_se([statistics.fmean(bool(o[i]) for i in kept[task]) for task, o in outcomes.items()])


def judged(outcomes: Outcomes, matches: list[dict]) -> tuple[int, int]:
    """(matches a passing rollout won, matches) among the groups with a pass and a fail, in tasks of `outcomes`."""
    of_task = [(x, outcomes[x["task"]]) for x in matches if x["task"] in outcomes]
    mixed = [(x, o) for x, o in of_task if len({bool(o[c]) for c in x["group"]}) == 2]
    return sum(bool(o[x["winner"]]) for x, o in mixed), len(mixed)


def read(matches: list[dict]) -> list[dict]:
    """The matches that the judge decided, be it by a tie; not those in which no vote could be read."""
    return [x for x in matches if x["status"] != "judge_failed"]


def health(matches: list[dict]) -> dict:
    """The judge's habits, for which no outcome is needed. Margin: (first - second) / valid votes of a match."""
    votes = [vote for x in matches for vote in x["votes"]]
    valid = [vote for vote in votes if vote is not None]
    tallies = [sorted(x["tally"])[::-1] for x in matches if any(x["tally"])]
    habits: dict = {"votes": len(votes), "abstained": len(votes) - len(valid)}
    habits["first_shown"] = mean_se([vote == 1 for vote in valid])[0]  # 0.5 without a bias, at G=2
    habits["margin"] = mean_se([(counts[0] - counts[1]) / sum(counts) for counts in tallies])[0]
    return habits | {s: sum(x["status"] == s for x in matches) for s in ("won", "tie", "judge_failed", "bye")}


def whole(outcomes: Outcomes) -> dict[str, Mapping[int, bool | None]]:
    """The tasks whose rollouts are all graded."""
    return {task: o for task, o in outcomes.items() if None not in o.values()}


def score(outcomes: Outcomes, records: list[dict]) -> dict:
    """pass@1 by round ([0] is before any vote) and the judge's accuracy on mixed groups by round; rates are fractions.

    Where no vote could be read (judge_failed) a coin decided, which says nothing about the judge: not in its accuracy.
    Only tasks whose rollouts are all graded count; ungraded_as_failed is pass@1 over all tasks.
    """
    graded = whole(outcomes)
    kept = [{task: list(o) for task, o in outcomes.items()}, *(record["kept"] for record in records)]
    rates, right = [pass_at_1(graded, k) for k in kept], [judged(graded, read(record["matches"])) for record in records]
    n = sum(n for _, n in right)
    return {
        "pass_at_1": [rate for rate, _ in rates] if graded else None,
        "se": [se for _, se in rates],
        "ungraded_as_failed": [pass_at_1(outcomes, k)[0] for k in kept],
        "ungraded_tasks": len(outcomes) - len(graded),
        "coverage": mean_se([any(o.values()) for o in graded.values()])[0],
        "judge_accuracy": [a / n if n else None for a, n in right],
        "mixed": [n for _, n in right],
        "judge_accuracy_pooled": sum(a for a, _ in right) / n if n else None,
    }


def pass_counts(outcomes: Outcomes) -> dict[int, int]:
    """{number of passing rollouts: tasks with so many}."""
    counts = Counter(sum(bool(x) for x in o.values()) for o in outcomes.values())
    return dict(sorted(counts.items()))


def passing_priors(
    before: Outcomes, after: Outcomes, priors: dict[str, list[list[int]]]
) -> dict[int, tuple[float, int]]:
    """{number of passing priors: (pass@1 of the rollouts that read so many, how many they are)}."""
    results: dict[int, list[bool]] = {}
    for task, outcomes in after.items():
        for i, outcome in outcomes.items():
            results.setdefault(sum(bool(before[task][j]) for j in priors[task][i]), []).append(bool(outcome))
    return {k: (sum(results[k]) / len(results[k]), len(results[k])) for k in sorted(results)}


def of_priors(before: Outcomes, priors: dict[str, list[list[int]]]) -> tuple[float | None, float | None]:
    """Sel-K: the share of passing rollouts among those in the contexts, mean over tasks, and its standard error."""
    shares = []
    for task, outcomes in before.items():
        read = [bool(outcomes[j]) for js in priors[task] for j in js]
        shares += [sum(read) / len(read)] if read else []
    return mean_se(shares)


def measure(records: list[dict], rounds: dict[int, list[dict]]) -> dict:
    """The paper's columns and what they are made of, over the tasks whose rollouts are all graded, in all of them."""
    all_ = [by_task(r["rollouts"], [x["outcome"] for x in r["rollouts"]]) for r in records]
    graded = [task for task in all_[0] if all(None not in o[task].values() for o in all_)]
    O = [{task: o[task] for task in graded} for o in all_]
    columns: dict = {"iter0": pass_at_1(O[0], O[0]), "sel_k": (None, None), "iter1": (None, None)}
    if len(O) > 1:
        columns |= {"sel_k": of_priors(O[0], records[1]["priors"]), "iter1": pass_at_1(O[1], O[1])}
    columns["final"] = pass_at_1(O[-1], records[-1]["kept"])
    steps = [[x["steps"] for x in r["rollouts"] if x["steps"] is not None] for r in records]
    return {
        **{name: rate for name, (rate, _) in columns.items()},
        "se": {name: se for name, (_, se) in columns.items()},
        "by_iteration": [pass_at_1(o, o)[0] for o in O],
        "tasks": len(all_[0]),
        "ungraded_tasks": len(all_[0]) - len(graded),
        "final_ungraded_as_failed": pass_at_1(all_[-1], records[-1]["kept"])[0],
        "coverage": [mean_se([any(x.values()) for x in o.values()])[0] for o in O],
        "pass_counts": [pass_counts(o) for o in O],
        "by_passing_priors": passing_priors(O[0], O[1], records[1]["priors"]) if len(O) > 1 else {},
        "judge_accuracy": [score(o, rounds.get(t, []))["judge_accuracy_pooled"] for t, o in enumerate(O)],
        "steps": [mean_se(x)[0] for x in steps],
    }


def as_failed(records: list[dict]) -> list[dict]:
    """The records with every ungraded rollout as failed, for the other way to measure them."""
    failed = [[{**x, "outcome": bool(x["outcome"])} for x in record["rollouts"]] for record in records]
    return [{**record, "rollouts": rollouts} for record, rollouts in zip(records, failed, strict=True)]


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def report(s: dict, judge: dict) -> None:
    """Print the table by round, where there are outcomes, and the judge's habits."""
    if s["pass_at_1"] is None:
        print(f"no rates: none of {s['ungraded_tasks']} tasks has all its rollouts graded")
    else:
        print("round  pass@1 %   s.e.  ungraded as failed  judge right %  of mixed groups")
        after = zip([None, *s["judge_accuracy"]], ["", *s["mixed"]], strict=True)
        rows = zip(s["pass_at_1"], s["se"], s["ungraded_as_failed"], after, strict=True)
        for t, (rate, se, failed, (right, mixed)) in enumerate(rows):
            print(f"{t:5} {percent(rate):>9} {percent(se):>6} {percent(failed):>19} {percent(right):>14} {mixed:>16}")
        print(f"pass@N {percent(s['coverage'])} %; {s['ungraded_tasks']} tasks left out for an ungraded rollout")
        print(f"the judge's accuracy over all rounds {percent(s['judge_accuracy_pooled'])} %")
    print("judge: " + said(judge))


def said(habits: dict) -> str:
    """health() in one line."""
    shares = {k: percent(habits[k]) + " %" for k in ("first_shown", "margin")}
    return ", ".join(f"{k} {v}" for k, v in {**habits, **shares}.items())


def judge_of(rollouts: list[dict], rounds: list[dict]) -> str:
    """The judge's habits in an iteration, and how many mixed groups its accuracy is about, in one line."""
    matches = [x for record in rounds for x in record["matches"]]
    right, mixed = judged(whole(by_task(rollouts, [r["outcome"] for r in rollouts])), read(matches))
    return f"right in {right} of {mixed} mixed groups that it decided; {said(health(matches))}"


def plot(columns: Mapping[Any, tuple[float | None, float | None]], coverage: float | None, file: Path) -> None:
    """pass@1 and standard error of each column, in order, below the line of what the rollouts cover."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    known = {str(name): (100 * rate, 100 * (se or 0)) for name, (rate, se) in columns.items() if rate is not None}
    rates, errors = zip(*known.values(), strict=True)
    axes.errorbar(list(known), rates, errors, marker="o", capsize=3, label="pass@1 and s.e.")
    axes.axhline(100 * (coverage or 0), linestyle="--", color="grey", label="pass@N of the first rollouts")
    axes.set(ylabel="% of tasks", xlabel="rounds of voting" if "0" in known else "", ylim=(0, 100))
    figure.legend(loc="outside upper center", ncols=2)
    figure.savefig(file, dpi=150)
    print(f"figure: {file}")
