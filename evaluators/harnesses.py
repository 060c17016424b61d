"""What the two harness adapters share: running a harness as a subprocess, reading and checking what it leaves, the CLI.

A harness is the user's tool. It runs once for each rollout index, in a folder rNN, with its output in a log file, and
running it again goes on where it stopped. A file that is torn or not of its format makes its rollout "unreadable",
without a grade; check says why. Standard library only. An adapter has tasks, load, check, forget_failed, command and
harness.
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
from types import ModuleType

ROLLOUT = ("task", "rollout", "problem", "transcript", "answer", "outcome", "steps", "tokens", "cost_usd", "status")
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_SILENT_STARTUP": "1"}  # no look-ups of prices at each start
AGAIN = "pdr.py tries twice, then its iteration stands; after `forget` the command of its index runs it again"
TODO = {
    "check": "a folder: what is unusable, and the rates",
    "load": "a folder: the rollouts as JSON lines",
    "forget": "a folder: take out what failed, so that the command of its index runs it again",
    "scores": "a file of patches, chosen.json or preds.json: the verdicts on them, by the reports below its folder",
}
EMPTY = dict.fromkeys(ROLLOUT) | {"problem": "", "transcript": "", "status": "missing", "why": ""}


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


def write_if_new(path: Path, text: str) -> None:
    """Write only what differs, so that the harness's caches and a resumed run see an untouched file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != text.encode("utf-8"):
        path.write_text(text, "utf-8")


def read_rows(path: Path, columns: tuple[str, ...]) -> list[dict]:
    """The objects of a JSONL file, as they stand there; ValueError names a line that is wrong.

    `columns` must be strings; the first is a row's name, which stands there once.
    """
    found: dict[str, dict] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not all(isinstance(row.get(column), str) for column in columns):
                raise ValueError(f"needs the texts {' and '.join(columns)}")
            if found.setdefault(row[columns[0]], row) is not row:
                raise ValueError(f"{row[columns[0]]} stands there twice")
        except (ValueError, RecursionError) as e:
            raise ValueError(f"{path} line {number}: {e}") from None
    if not found:
        raise ValueError(f"{path} is empty")
    return list(found.values())


def collect(folder: Path, found: Iterable[tuple[str, Path, dict]]) -> list[dict]:
    """(task, where it lies, what is known of it) -> rollout records with `why`, by task and rollout.

    The index is in the name of a folder, rNN, from `folder` down, else it is the order. ValueError where two claim one.
    """
    records: dict[tuple[str, int], dict] = {}
    for task, path, r in found:
        below = path.absolute().relative_to(Path(folder).absolute().parent).parts
        named = next((int(part[1:]) for part in below[::-1] if re.fullmatch(r"r\d+", part)), None)
        key = task, sum(t == task for t, _ in records) if named is None else named
        if key in records:
            raise ValueError(f"{folder}: two rollouts {key[1]} of {task}; load one iteration at a time")
        records[key] = EMPTY | r | {"task": task, "rollout": key[1]}
    return [records[key] for key in sorted(records)]


def near(run: Path, mark: str) -> Path | None:
    """The data set, a folder ds* with `mark` in it, in a rollout's folder or in one of the two above it."""
    bases = [run, *run.resolve().parents[:2]]
    return next((d for base in bases for d in sorted(base.glob("ds*")) if next(d.glob(mark), None)), None)


def tally(outcomes: Iterable[bool | None]) -> dict:
    """Counts, and the rate both ways: over the graded, and with the ungraded as failed; None where there is none."""
    outcomes = list(outcomes)
    graded, passed = sum(o is not None for o in outcomes), sum(o is True for o in outcomes)
    rates = {"rate": passed / graded if graded else None, "rate_all": passed / len(outcomes) if outcomes else None}
    return {"graded": graded, "passed": passed, "ungraded": len(outcomes) - graded, **rates}


def check(records: list[dict], own_ends: set[str], failed: Callable[[dict], bool]) -> list[str]:
    """What is unusable, one line each.

    own_ends: the statuses in which the agent itself came to an end; failed: which records forget_failed forgets.
    """
    said, seen = [], {}
    for r in records:
        name = f"{r['task']} rollout {r['rollout']}"
        twin = seen.setdefault((r["task"], r["transcript"]), name)
        if r["why"]:
            said.append(f"{name}: {r['status']}: {r['why']}")
        elif failed(r):
            said.append(f"{name}: the environment, the server or the grading failed ({r['status']}): {AGAIN}")
        elif r["status"] not in own_ends:
            said.append(f"{name}: {r['status']}, and graded all the same: it stays as it is")
        elif not r["transcript"]:
            said.append(f"{name}: no transcript ({r['status']})")
        elif twin != name:
            said.append(f"{name}: the same transcript as {twin} (one seed for both?)")
        elif r["answer"] == "":
            said.append(f"{name}: empty patch ({r['status']})")
    everything = {r["rollout"] for r in records}
    for task in sorted({r["task"] for r in records}):
        if missing := sorted(everything - {r["rollout"] for r in records if r["task"] == task}):
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


def program(text: str) -> list[str]:
    """The words of --agent or --grader; a path that is there becomes absolute, since they run in another folder."""
    return [str(Path(word).absolute()) if "/" in word and Path(word).exists() else word for word in shlex.split(text)]


def server(url: list[str], index: int) -> str:
    """Rollout index i asks server i mod n."""
    return url[index % len(url)].rstrip("/").removesuffix("/v1") + "/v1"


def seed_of(seed: int, t: int, N: int, index: int) -> int:
    """The seed of rollout `index` of N in iteration t, another one in every run, iteration and rollout."""
    return seed * 1_000_000 + t * N + index


def iterations(
    one: Callable, tasks: Callable, write_dataset: Callable, load: Callable,
    *, run_dir: Path, source: Path, N: int, seed: int, workers: int,
) -> Callable[[int, dict[str, list[str]]], list[dict]]:  # fmt: skip
    """rollout(t, {task: [context of each of the N rollouts]}) -> N rollouts of each task in iteration t, in RUN/it<t>.

    one(index, its seed, agents, folder, data, problems) runs and grades an index. `workers` agents at once in all: as
    many as there are tasks, then several indexes beside each other. What left nothing has the status "missing".
    """
    if workers < 1 or seed < 0:
        raise ValueError(f"need workers >= 1 and seed >= 0: {workers=} {seed=}")

    def rollout(t: int, contexts: dict[str, list[str]]) -> list[dict]:
        it = Path(run_dir).resolve() / f"it{t}"
        data = write_dataset(source, contexts, it)
        if len(data) != N:
            raise ValueError(f"{len(data)} contexts a task, but N={N} rollouts")
        statements = tasks(source)
        problems, agents = {task: statements[task] for task in contexts}, min(workers, len(contexts))
        with ThreadPoolExecutor(max(1, workers // len(contexts))) as pool:
            list(pool.map(lambda i: one(i, seed_of(seed, t, N, i), agents, it, data[i], problems), range(N)))
        made = {(r["task"], r["rollout"]): r for r in load(it, problems)}
        none = {name: EMPTY[name] for name in ROLLOUT}
        return [
            made.get((task, i)) or none | {"task": task, "rollout": i, "problem": problems[task]}
            for task in contexts
            for i in range(N)
        ]

    return rollout


def rate(outcomes: Iterable[bool | None]) -> str:
    """pass@1 both ways, with its counts."""
    t = tally(outcomes)
    counts = f"{t['passed']} of {t['graded']} graded; {t['rate_all'] or 0:.1%} with {t['ungraded']} ungraded as failed"
    return f"pass@1 {t['rate']:.1%} ({counts})" if t["graded"] else f"pass@1 none graded ({counts})"


def show(rollouts: list[dict], problems: list[str]) -> None:
    """Print what is there, what is unusable and why, and the rate with its error counts."""
    statuses = ", ".join(f"{n} {status}" for status, n in Counter(r["status"] for r in rollouts).most_common())
    print(*problems, f"{len(rollouts)} rollouts of {len({r['task'] for r in rollouts})} tasks: {statuses}", sep="\n")
    print(rate(r["outcome"] for r in rollouts))


def parse(module: ModuleType, argv: list[str] | None) -> argparse.Namespace:
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    style["usage"] = argparse.SUPPRESS  # an error is one line
    parser = argparse.ArgumentParser(description=module.__doc__, **style)
    todo = parser.add_subparsers(dest="todo", required=True, prog=parser.prog)
    for name, what in TODO.items():
        if name != "scores" or hasattr(module, name):
            todo.add_parser(name, help=what, **style).add_argument("path", type=Path)
    what = "print the commands of one rollout index; grading, once OUT is there"
    add = todo.add_parser("command", help=what, **style).add_argument
    add("--data", type=Path, required=True, help="the data set's folder, as it is or as write_dataset leaves it")
    add("--out", type=Path, help="the rollout's folder (default: r00 for index 0 ...)")
    add("--url", nargs="+", required=True, help="OpenAI-compatible servers")
    add("--model", required=True, help="the model's name there")
    add("--index", type=int, default=0, help="the rollout's index")
    add("--t", type=int, default=0, help="the iteration")
    add("--N", type=int, default=16, help="rollouts a task and iteration (paper: 16)")
    add("--seed", type=int, default=0, help="of the run; this index gets seed * 1000000 + t * N + index")
    add("--temperature", type=float, default=0.7)
    add("--workers", type=int, default=4, help="agents at once")
    add("--backend", default="docker", help="where containers run: docker, podman, modal ...")
    add("--agent", default=module.AGENT, help="the harness program")
    if hasattr(module, "GRADER"):
        add("--grader", default=module.GRADER, help="the grading program")
    args = parser.parse_args(argv)
    if args.todo == "command" and (wrong := impossible(args)):
        parser.error(wrong)
    return args


def impossible(args: argparse.Namespace) -> str:
    """The first argument that no run can mean, "" where there is none."""
    said = {
        f"--data {args.data}: no such folder": not args.data.is_dir(),
        **{f"--url {u}: not an http(s) address": not re.match(r"https?://[^/\s]", u) for u in args.url},
        f"--t {args.t}: must be at least 0": args.t < 0,
        f"--index {args.index}: must be in [0, N - 1] with --N {args.N}": not 0 <= args.index < args.N,
        f"--temperature {args.temperature}: must be in [0, 10]": not 0 <= args.temperature <= 10,
        f"--seed {args.seed}: must be at least 0": args.seed < 0,
        f"--workers {args.workers}: must be at least 1": args.workers < 1,
    }
    return next((what for what, wrong in said.items() if wrong), "")


def commands(module: ModuleType, args: argparse.Namespace) -> list[str]:
    """The command line of one rollout index, and of its grading where there are predictions to grade."""
    module.tasks(args.data)  # ValueError where that is no data set
    out, seed = args.out or Path(f"r{args.index:02d}"), seed_of(args.seed, args.t, args.N, args.index)
    where = {"data": args.data, "workers": args.workers, "backend": args.backend}
    asks = {"url": args.url, "model": args.model, "seed": seed, "temperature": args.temperature, "agent": args.agent}
    argvs = [module.command(args.index, out=out, **asks, **where)]
    if hasattr(module, "GRADER") and (preds := out / "preds.json").exists():
        argvs.append(module.grade_command(preds, grader=args.grader, **where))
    return [shlex.join(argv) for argv in argvs]


def main(module: ModuleType, argv: list[str] | None = None) -> int:
    """The command line of an adapter. 0; 1 where check finds something; 2 for a user's mistake, in one line."""
    args = parse(module, argv)
    try:
        if "path" in args and not args.path.exists():
            raise ValueError(f"{args.path} does not exist")
        if args.todo == "command":
            print(*commands(module, args), sep="\n")
        elif args.todo == "forget":
            print(f"{len(gone := module.forget_failed(args.path))} forgotten", *gone, sep="\n")
        elif args.todo == "scores":
            found = module.scores(args.path)
            print(*(json.dumps({"task": task, "outcome": outcome}) for task, outcome in found.items()), sep="\n")
            print(rate(found.values()))
        elif args.todo == "load":
            print(*(json.dumps(r) for r in module.load(args.path)), sep="\n")
        else:
            show(module.load(args.path), problems := module.check(args.path))
            return 1 if problems else 0
    except BrokenPipeError:  # nobody reads on: no mistake
        raise
    except (ValueError, OSError) as e:
        print(f"{Path(sys.argv[0]).name}: {e}", file=sys.stderr)
        return 2
    return 0
