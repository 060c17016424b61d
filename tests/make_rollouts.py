"""Rollout lines for rtv.py out of published outcomes and dialogues, on the standard output.

Run     python tests/make_rollouts.py tb_core ../shared/data/rollouts/tb_core_0.1.1_outcomes.csv > tb.jsonl
        python rtv.py tb.jsonl --judge accuracy=.805,.870,.786,.625
        python tests/make_rollouts.py tau_bench ../shared/data/rollouts/tau_bench_gpt4o_airline_compact.jsonl --tasks 4
tb_core: an agent model pooled over its scaffolds, N of its trials a task, drawn by the seed; no transcripts.
swebench: the runs of a CSV with a column each. tau_bench: whole dialogues; the reward is the outcome alone.
"""

import argparse
import csv
import json
import random
from pathlib import Path


def line(task: str, i: int, outcome: bool, problem: str = "", transcript: str = "", steps: int | None = None):
    known = {"task": task, "rollout": i, "problem": problem, "transcript": transcript, "outcome": outcome}
    return known | {"answer": None, "steps": steps, "tokens": None, "cost_usd": None, "status": "ok"}


def tb_core(path: Path, *, model: str = "claude-4-sonnet", N: int = 16, seed: int = 0) -> list[dict]:
    """N trials a task out of all trials of agents that end in `model`; every trial is graded, time-outs as failed."""
    trials: dict[str, list[bool]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["agent"].endswith(f"_{model}"):
                trials.setdefault(row["task"], []).append(row["resolved"] == "1")
    drawn = {task: random.Random(f"{seed}:{task}").sample(all_, N) for task, all_ in trials.items()}
    return [line(task, i, outcome) for task, outcomes in drawn.items() for i, outcome in enumerate(outcomes)]


def swebench(path: Path) -> list[dict]:
    """Every run column of the outcomes table as a rollout."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(row.pop("instance_id"), list(row.values())) for row in csv.DictReader(file)]
    return [line(task, i, outcome == "1") for task, outcomes in rows for i, outcome in enumerate(outcomes)]


def tau_bench(path: Path, *, tasks: int = 50) -> list[dict]:
    """Dialogues as transcripts, a turn a paragraph; the problem is how the task's first customer begins."""
    rollouts, problems = [], {}
    for d in map(json.loads, path.read_text("utf-8").rstrip("\n").split("\n")):
        if d["task_id"] < tasks:
            task, turns = f"airline-{d['task_id']}", [f"[{turn[0]}] " + " ".join(turn[1:]) for turn in d["turns"]]
            problem = problems.setdefault(task, "Serve this airline customer, who begins: " + d["turns"][0][1])
            rollouts.append(line(task, d["trial"], d["reward"] == 1, problem, "\n\n".join(turns), len(turns)))
    return rollouts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["tb_core", "swebench", "tau_bench"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--model", default="claude-4-sonnet", help="tb_core: the end of the agent's name")
    parser.add_argument("--N", type=int, default=16, help="tb_core: rollouts a task")
    parser.add_argument("--tasks", type=int, default=50, help="tau_bench: how many")
    parser.add_argument("--seed", type=int, default=0, help="tb_core: which trials")
    args = parser.parse_args()
    options = {"tb_core": {"model": args.model, "N": args.N, "seed": args.seed}, "tau_bench": {"tasks": args.tasks}}
    make = {"tb_core": tb_core, "swebench": swebench, "tau_bench": tau_bench}[args.kind]
    for r in make(args.path, **options.get(args.kind, {})):
        print(json.dumps(r))


if __name__ == "__main__":
    main()
