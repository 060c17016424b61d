"""What the two harness adapters share: running a harness as a subprocess, reading and checking what it leaves, the CLI.

A harness is the user's tool. It runs once for each rollout index, in a folder rNN, with its output in a log file, and
running it again goes on where it stopped. Standard library only. An adapter has load, check, command and harness.
"""

import argparse
import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROLLOUT = ("task", "rollout", "problem", "transcript", "answer", "outcome", "steps", "tokens", "cost_usd", "status")
PROMPT = r"<pr_description>(?:\nConsider the following PR description:)?\n(.*)\n</pr_description>"
PROMPT += r"|Task Description:\n(.*)\n\nCurrent terminal state:"
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_SILENT_STARTUP": "1"}  # no look-ups of prices at each start
CONTEXT = "\n\n<refinement_context>\n", "\n</refinement_context>\n"


def with_context(problem: str, context: str) -> str:
    """The task as the agent reads it: the context is part of it, before the first action; "" adds nothing."""
    return problem + CONTEXT[0] + context + CONTEXT[1] if context else problem


def statement(prompt: str) -> str:
    """The task out of an agent's first message, where the words around it are mini-SWE-agent's or Terminus'."""
    told = re.search(PROMPT, prompt, re.DOTALL)
    return without_context(next(filter(None, told.groups()), "") if told else prompt).strip()


def without_context(text: str) -> str:
    return re.sub(f"{re.escape(CONTEXT[0])}.*{re.escape(CONTEXT[1].strip())}\n?", "", text, flags=re.DOTALL)


def copies(contexts: dict[str, list[str]], known: Container[str], out: Path) -> list[tuple[Path, dict[str, str]]]:
    """{task: [context of each rollout]} -> of each rollout the folder of its data set, below OUT, and {task: context}.

    One folder, OUT/ds, where all rollouts share their contexts; else one an index: OUT/ds00 ...
    """
    if unknown := [task for task in contexts if task not in known]:
        raise ValueError(f"{len(unknown)} of {len(contexts)} tasks are not in the data set: {unknown[:3]}")
    if len({len(c) for c in contexts.values()}) != 1:
        raise ValueError(f"tasks differ in their number of contexts: {sorted({len(c) for c in contexts.values()})}")
    rows = [dict(zip(contexts, row, strict=True)) for row in zip(*contexts.values(), strict=True)]
    shared = all(row == rows[0] for row in rows)
    return [(Path(out) / ("ds" if shared else f"ds{i:02d}"), row) for i, row in enumerate(rows)]


def read_json(path: Path) -> Any:
    """The parsed file, None where it is absent or torn."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict | list) else None


def write_if_new(path: Path, text: str) -> None:
    """Write only what differs, so that the harness's caches and a resumed run see an untouched file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def flat(content: str | list | None) -> str:
    """The text of a message's content: a string, a list of parts (an image is only named), or nothing."""
    if isinstance(content, list):
        parts = [p if isinstance(p, dict) else {"text": str(p)} for p in content]
        content = "\n".join(p.get("text") or f"[{p.get('type')}]" for p in parts)
    lines = (content or "").replace("\r\n", "\n").split("\n")  # terminals pad their screens
    return "\n".join(line.rstrip() for line in lines).strip()


def tally(outcomes: Iterable[bool | None]) -> dict:
    """Counts, and the rate both ways: over the graded, and with the ungraded as failed; None where there is none."""
    outcomes = list(outcomes)
    graded, passed = sum(o is not None for o in outcomes), sum(o is True for o in outcomes)
    rates = {"rate": passed / graded if graded else None, "rate_all": passed / len(outcomes) if outcomes else None}
    return {"graded": graded, "passed": passed, "ungraded": len(outcomes) - graded, **rates}


def check(rollouts: list[dict], own_ends: set[str]) -> list[str]:
    """What is unusable, one line each; own_ends are the statuses in which the agent itself came to an end."""
    said, seen = [], {}
    for r in rollouts:
        name = f"{r['task']} rollout {r['rollout']}"
        twin = seen.setdefault((r["task"], r["transcript"]), name)
        if r["status"] not in own_ends:
            said.append(
                f"{name}: the environment, the server or a file failed ({r['status']}); the same command retries it"
            )
        elif not r["transcript"]:
            said.append(f"{name}: no transcript ({r['status']})")
        elif twin != name:
            said.append(f"{name}: the same transcript as {twin} (one seed for both?)")
        elif r["answer"] == "":
            said.append(f"{name}: empty patch ({r['status']})")
    everything = {r["rollout"] for r in rollouts}
    for task in sorted({r["task"] for r in rollouts}):
        if missing := sorted(everything - {r["rollout"] for r in rollouts if r["task"] == task}):
            said.append(f"{task}: no rollout {', '.join(map(str, missing))}")
    return said


def run_logged(argv: list[str], log: Path, cwd: Path, env: dict[str, str]) -> None:
    """Run a harness program with its output appended to a log; RuntimeError with the log's last line where it fails.

    The log is a lock that the child holds: a harness that outlives its killed run is not started again beside itself.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            env = {"OPENAI_API_KEY": "none", **os.environ, **env}
            done = subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
        except BlockingIOError:
            raise RuntimeError(f"another process still writes {log}; wait for it or end it") from None
        except FileNotFoundError:
            raise RuntimeError(f"{argv[0]} is not installed here: name the program with --agent or --grader") from None
    if done.returncode:
        last = log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"{argv[0]} ended with {done.returncode}: {last[:200]} (all of it in {log})")


def iterations(
    one: Callable, tasks: Callable, write_dataset: Callable, load: Callable,
    *, run_dir: Path, source: Path, N: int, workers: int,
) -> Callable[[int, dict[str, list[str]]], list[dict]]:  # fmt: skip
    """rollout(t, {task: [context of each of the N rollouts]}) -> N rollouts of each task in iteration t, in RUN/it<t>.

    one(index, agents, t, folder, data, problems) runs and grades one index. `workers` agents at once in all: as many
    as there are tasks, then several indexes beside each other. A rollout that left nothing has the status "missing".
    """

    def rollout(t: int, contexts: dict[str, list[str]]) -> list[dict]:
        it = Path(run_dir).resolve() / f"it{t}"
        data = write_dataset(source, contexts, it)
        if len(data) != N:
            raise ValueError(f"{len(data)} contexts a task, but N={N} rollouts")
        statements = tasks(source)
        problems, agents = {task: statements[task] for task in contexts}, min(workers, len(contexts))
        with ThreadPoolExecutor(max(1, workers // len(contexts))) as pool:
            list(pool.map(lambda i: one(i, agents, t, it, data[i], problems), range(N)))
        made = {(r["task"], r["rollout"]): r for r in load(it, problems)}
        none = dict.fromkeys(ROLLOUT) | {"transcript": "", "status": "missing"}
        return [
            made.get((task, i)) or none | {"task": task, "rollout": i, "problem": problems[task]}
            for task in contexts
            for i in range(N)
        ]

    return rollout


def show(rollouts: list[dict], problems: list[str]) -> None:
    """Print what is there, what is unusable and why, and the rate with its error counts."""
    statuses = ", ".join(f"{n} {status}" for status, n in Counter(r["status"] for r in rollouts).most_common())
    print(*problems, f"{len(rollouts)} rollouts of {len({r['task'] for r in rollouts})} tasks: {statuses}", sep="\n")
    t = tally(r["outcome"] for r in rollouts)
    rate = f"{t['rate']:.1%}" if t["graded"] else "none graded"
    counts = f"{t['passed']} of {t['graded']} graded; {t['rate_all']:.1%} with {t['ungraded']} ungraded as failed"
    print(f"pass@1 {rate} ({counts})")


def parse(doc: str | None, agent: str, grader: str) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=form, allow_abbrev=False)
    todo = parser.add_subparsers(dest="todo", required=True)
    for name, what in (("check", "what is unusable, and the rates"), ("load", "the rollouts as JSON lines")):
        todo.add_parser(name, help=what, allow_abbrev=False).add_argument("folder", type=Path)
    sub = todo.add_parser(
        "command", allow_abbrev=False, help="print the commands of one rollout index; grading, once OUT is there"
    )
    sub.add_argument(
        "--data", type=Path, required=True, help="the data set's folder, as it is or as write_dataset leaves it"
    )
    sub.add_argument("--out", type=Path, default=Path("r00"), help="the rollout's folder")
    sub.add_argument("--url", nargs="+", required=True, help="OpenAI-compatible servers")
    sub.add_argument("--model", required=True, help="the model's name there")
    sub.add_argument("--index", type=int, default=0, help="the rollout's index")
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--temperature", type=float, default=0.7)
    sub.add_argument("--workers", type=int, default=4, help="agents at once")
    sub.add_argument("--backend", default="docker", help="where containers run: docker, podman, modal ...")
    sub.add_argument("--agent", default=agent, help="the harness program")
    sub.add_argument("--grader", default=grader, help="the grading program, where there is one of its own")
    return parser.parse_args()


def main(
    doc: str | None, agent: str, grader: str, load: Callable, check: Callable, command: Callable, grade: Callable | None
) -> int:  # fmt: skip
    """The command line of an adapter. 0; 1 where check finds something; 2 for a user's mistake, in one line."""
    args = vars(parse(doc, agent, grader))
    try:
        if (todo := args.pop("todo")) == "command":
            grader, preds = args.pop("grader"), args["out"] / "preds.json"
            print(shlex.join(command(**args)))
            if grade and preds.exists():
                kw = {k: args[k] for k in ("data", "workers", "backend")}
                print(shlex.join(grade(preds, grader=grader, **kw)))
        elif todo == "load":
            print(*(json.dumps(r) for r in load(args["folder"])), sep="\n")
        else:
            show(load(args["folder"]), problems := check(args["folder"]))
            return 1 if problems else 0
    except (ValueError, OSError) as e:
        print(f"{Path(sys.argv[0]).name}: {e}", file=sys.stderr)
        return 2
    return 0
