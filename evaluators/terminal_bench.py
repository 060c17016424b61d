"""Terminal-Bench 2 through Harbor, which runs the agent in containers and grades each trial; here are only its files.

Tools   harbor 0.25.0 (Python >= 3.12), in a virtual environment of its own (--agent); not needed to read folders
Input   a folder of tasks (instruction.md, task.toml, environment/, tests/): harbor download terminal-bench@2.0 -o DIR
Layout  RUN/it0/ds/TASK/instruction.md; RUN/it0/r00/TASK__x/{result.json, agent/trajectory.json}; r00 is rollout 0
Run     python evaluators/terminal_bench.py check RUN/it0    which rollouts are unusable and why; the rate both ways
        python evaluators/terminal_bench.py load RUN/it0     the rollouts as JSON lines (pdr.py picked: chosen.jsonl)
        python evaluators/terminal_bench.py forget RUN/it0   deletes the trials that failed
        python evaluators/terminal_bench.py command --data DIR --url URL --model NAME    what runs for one index
Differs - the paper's agent is Terminus 1, which Harbor names but cannot run: terminus-2
        - version 2.0 has 89 tasks; the paper ran 88 and does not say which one it left out
        - the paper names no temperature, limit or seed: the tasks' own time limits, no limit of turns or of cost
          (terminus-2 knows none of cost), one seed a rollout, seed * 1000000 + t * N + index
        - graded as Harbor does, by what they left: AgentTimeoutError, turn_limit. Null, and counted: a trial without a
          reward; of these ContextLengthExceededError is the agent's own end, and is not tried again
        - a refinement context is appended to instruction.md
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

if __package__:
    from evaluators import harnesses, trajectories
    from evaluators.trajectories import NUMBER, atif, field, items, read_json, with_context, without_context
else:  # python evaluators/terminal_bench.py
    import harnesses
    import trajectories
    from trajectories import NUMBER, atif, field, items, read_json, with_context, without_context

UNGRADED_LIMIT = "ContextLengthExceededError"  # of the limits the only one after which Harbor does not grade
OWN_ENDS = {"completed", "AgentTimeoutError", "turn_limit", UNGRADED_LIMIT}
AGENT = "harbor"


def verdict(result: dict) -> bool | None:
    """A trial's grade: True at reward 1, False below it, None where no reward was given (image, API, verifier failed).

    A trial that ran out of time is graded as what it left behind, as Harbor does. ValueError: the reward is no number.
    """
    rewards = field(result, "verifier_result", "rewards", kind=dict, default={})
    name = next(iter(rewards)) if len(rewards) == 1 else "reward"
    reward = field(rewards, name, kind=NUMBER)
    return None if reward is None else reward >= 1


def graded(trial: Path) -> dict:
    return {"outcome": verdict(read_json(trial / "result.json"))}


def is_trial(folder: Path) -> bool:
    """Whether a trial ran here: result.json names it; where that is torn, a trial's other files are there.

    A job has a result.json too, and its name has the same form unless it was given another one.
    """
    named = {"task_name", "trial_name"} & trajectories.readable(folder / "result.json")[0].keys()
    return bool(named) or any((folder / name).exists() for name in ("agent", "trial.log"))


def trials(folder: Path) -> list[Path]:
    """The folder of every trial below a folder that has a result.json, in the order in which they began."""
    found = [p.parent for p in Path(folder).rglob("*__*/result.json") if is_trial(p.parent)]
    return sorted(
        found, key=lambda p: (str(trajectories.readable(p / "result.json")[0].get("started_at") or ""), p.name)
    )


def task_name(trial: Path, known: Iterable[str] = ()) -> str:
    """The task's folder name; the trial's own name cuts it at 32 characters."""
    cut = trial.name.rpartition("__")[0]
    named = {"task": next((task for task in known if task[:32].rstrip("_-") == cut), cut)}

    def told() -> dict:
        result = read_json(trial / "result.json")
        path = Path(field(result, "config", "task", "path", kind=str, default="")).name
        return {"task": path or field(result, "task_name", kind=str) or named["task"]}

    return (named | trajectories.attempt(told))["task"]


def ending(result: dict, parts: list[dict]) -> str:
    """How a trial ended: completed, turn_limit, or the exception's name."""
    if failed := field(result, "exception_info", kind=dict):
        return field(failed, "exception_type", kind=str, default="unknown")
    own = field(result, "config", "agent", "kwargs", kind=dict, default={})
    limits = [field(own, name, kind=NUMBER, default=0) for name in ("max_turns", "max_episodes", "episodes")]
    episodes = field(result, "agent_result", "metadata", "n_episodes", kind=NUMBER, default=0)
    last = (items(parts[-1], "steps") or [{}])[-1] if parts else {}
    done = any(c.get("function_name") == "mark_task_complete" for c in items(last, "tool_calls"))
    return "turn_limit" if 0 < max(limits) <= episodes and not done else "completed"


def read(trial: Path) -> dict:
    """What its result and its trajectory say of a rollout; ValueError where one of them cannot be read."""
    if not (result := read_json(trial / "result.json")):
        raise ValueError("result.json is empty")
    more = sorted(trial.glob("agent/trajectory.cont-*.json"), key=lambda p: int(re.sub(r"\D", "", p.stem) or 0))
    files = (trial / "agent/trajectory.json", *more)
    parts = [part for f in files if (part := read_json(f)) is not None]
    r, agent = atif(parts), field(result, "agent_result", kind=dict, default={})
    if (sent := field(agent, "n_input_tokens", kind=NUMBER)) is not None:  # Harbor's own count knows its summaries too
        r["tokens"] = sent + field(agent, "n_output_tokens", kind=NUMBER, default=0)
    if "cost_usd" in agent:
        r["cost_usd"] = field(agent, "cost_usd", kind=NUMBER)
    return r | {"status": ending(result, parts), "outcome": verdict(result)}


def records(folder: Path, problems: dict[str, str] | None = None) -> list[dict]:
    """As load, with `why` of what could not be read."""
    made, near = [], {}
    for trial in trials(folder):
        if trial.parent not in near:
            ds = None if problems else harnesses.near(trial.parent, "*/instruction.md")
            near[trial.parent] = problems or (tasks(ds) if ds else {})
        known, r = near[trial.parent], trajectories.attempt(read, trial)
        task = task_name(trial, known)
        made.append((task, trial, r | {"problem": known.get(task) or r.get("problem", "")}))
    if not made:
        raise ValueError(f"{folder}: no trial's result.json in it")
    return harnesses.collect(folder, made)


def load(folder: Path, problems: dict[str, str] | None = None) -> list[dict]:
    """The rollouts below a folder, by task and rollout. The index is in a folder's name, rNN, else the order of starts.

    ValueError where there is none, or two claim one index. answer is null: what was submitted is the container's state.
    """
    return [{name: r[name] for name in harnesses.ROLLOUT} for r in records(folder, problems)]


def check(folder: Path) -> list[str]:
    """What is unusable, one line each, before any money is spent on summaries; empty where all is well."""

    def failed(r: dict) -> bool:
        return r["outcome"] is None and r["status"] != UNGRADED_LIMIT

    return harnesses.check(records(folder), OWN_ENDS, failed)


def tasks(source: Path) -> dict[str, str]:
    """Instructions by task folder, sorted by name, without a refinement context."""
    found = sorted(Path(source).glob("*/instruction.md"))
    if not found:
        raise ValueError(
            f"no task folder in {source}; get the data set once: harbor download terminal-bench@2.0 -o DIR"
        )
    try:
        return {p.parent.name: without_context(p.read_text("utf-8")) for p in found}
    except UnicodeDecodeError as e:
        raise ValueError(f"an instruction.md in {source} is not UTF-8 text: {e}") from None


def write_dataset(source: Path, contexts: dict[str, list[str]], out: Path) -> list[Path]:
    """The data set folder of each rollout index: copies of the tasks, a context appended to each instruction.md."""
    planned = harnesses.copies(contexts, tasks(source), out)
    for folder, texts in planned:
        for task, context in texts.items():
            old, new = Path(source) / task, folder / task
            if not new.exists():
                part = new.with_name(f".{task}.part")  # a copy that a kill cut short is never taken for a task
                shutil.rmtree(part, ignore_errors=True)
                shutil.copytree(old, part, symlinks=True)
                part.rename(new)
            text = with_context((old / "instruction.md").read_text("utf-8"), context)
            harnesses.write_if_new(new / "instruction.md", text)
    return [folder for folder, _ in planned]


def command(
    index: int, *, data: Path, out: Path, url: list[str], model: str, seed: int, temperature: float, workers: int,
    backend: str, agent: str = AGENT, extra: Iterable[str] = (),
) -> list[str]:  # fmt: skip
    """One rollout index over all tasks of data, as a Harbor job of one attempt; its grading is part of it.

    The server (i mod n) goes in the environment: a job is only resumed under an equal configuration.
    """
    calls = json.dumps({"seed": seed})
    kwargs = [f"temperature={temperature}", f"llm_call_kwargs={calls}", "record_terminal_session=false"]
    job = ["-p", str(data), "-o", str(Path(out).parent), "--job-name", Path(out).name, "-k", "1", "-n", str(workers)]
    asks = ["-a", "terminus-2", "-m", f"openai/{model}", "-e", backend]
    argv = [
        "env",
        f"OPENAI_BASE_URL={harnesses.server(url, index)}",
        *harnesses.program(agent),
        "run",
        "-y",
        "-q",
        *job,
        *asks,
    ]
    return [*argv, *(a for k in kwargs for a in ("--ak", k)), *(a.replace("{out}", str(out)) for a in extra)]


def forget_failed(out: Path) -> list[str]:
    """Delete the folders of trials without a grade, so that the next run redoes them and only them; their paths.

    What the agent's own limit left ungraded stays, and so does a graded trial whose trajectory cannot be read.
    """
    ungraded = [p for p in trials(out) if trajectories.attempt(graded, p).get("outcome") is None]
    failed = [p for p in ungraded if trajectories.attempt(read, p)["status"] != UNGRADED_LIMIT]
    for path in failed:
        shutil.rmtree(path)
    return [str(path.relative_to(out)) for path in failed]


def harness(
    *, run_dir: Path, source: Path, url: list[str], model: str, N: int, seed: int, temperature: float, workers: int,
    backend: str, agent: str = AGENT, grader: str | None = None, extra: Iterable[str] = (),  # noqa: ARG001
) -> Callable[[int, dict[str, list[str]]], list[dict]]:  # fmt: skip
    """The function PDR needs: rollout(t, {task: [context of each of the N rollouts]}) -> graded rollouts of round t.

    As swe_bench.harness, so that PDR calls both alike; grader is not used: Harbor grades each trial itself.
    """

    def one(i: int, own_seed: int, agents: int, it: Path, data: Path, problems: dict[str, str]) -> None:
        out = it / f"r{i:02d}"
        asks = {"url": url, "model": model, "seed": own_seed, "temperature": temperature}
        argv = command(i, data=data, out=out, workers=agents, backend=backend, agent=agent, extra=extra, **asks)
        for _ in range(2):  # what the environment or the server failed is tried once more
            forget_failed(out)
            if {*problems} - {task_name(trial, problems) for trial in trials(out)}:
                harnesses.run_logged(argv, it / f"{out.name}.log", it, harnesses.QUIET)

    parts = {"tasks": tasks, "write_dataset": write_dataset, "load": load}
    return harnesses.iterations(one, **parts, run_dir=run_dir, source=source, N=N, seed=seed, workers=workers)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import common

    common.entry(lambda: harnesses.main(sys.modules[__name__]))
