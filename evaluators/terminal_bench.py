"""Terminal-Bench 2 through Harbor, which runs the agent in containers and grades each trial; here are only its files.

Tools   harbor 0.25.0 (Python >= 3.12), in a virtual environment of its own (--agent); not needed to read folders
Input   a folder of tasks (instruction.md, task.toml, environment/, tests/): harbor download terminal-bench@2.0 -o DIR
Layout  RUN/it0/ds/TASK/instruction.md; RUN/it0/r00/TASK__x/{result.json, agent/trajectory.json}; r00 is rollout 0
Run     python evaluators/terminal_bench.py check RUN/it0    which rollouts are unusable and why; the rate both ways
        python evaluators/terminal_bench.py load RUN/it0     the rollouts as JSON lines
        python evaluators/terminal_bench.py command --data DIR --url URL --model NAME    what runs for one index
Differs - the paper's agent is Terminus 1, which Harbor names but cannot run: terminus-2
        - version 2.0 has 89 tasks; the paper ran 88 and does not say which one it left out
        - the paper names no temperature, limit or seed: the tasks' own time limits, one seed a rollout index
        - a refinement context is appended to instruction.md; a trial without a reward is not graded (null), and counted
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

if __package__:
    from evaluators import harnesses
else:  # python evaluators/terminal_bench.py
    import harnesses

LIMITS = {
    "AgentTimeoutError",
    "turn_limit",
    "ContextLengthExceededError",
}  # the agent was stopped; a timed-out trial is graded
OWN_ENDS = {"completed", *LIMITS}
AGENT = "harbor"


def read_trajectory(parts: list[dict]) -> dict:
    """ATIF v1.0 to v1.8, a trajectory and its continuations in order -> problem, transcript, steps, tokens, cost_usd.

    The first user step is the prompt, no part of the transcript; steps copied from an earlier part are skipped.
    ATIF has no grade in it.
    """
    steps = [s for part in parts for s in part.get("steps") or [] if not s.get("is_copied_context")]
    first = next((i for i, s in enumerate(steps) if s.get("source") == "user"), -1)
    text, step = [], 0
    for i, s in enumerate(steps):
        said = harnesses.flat(s.get("message"))
        if s.get("source") == "agent":
            step += 1
            text.append(
                "\n".join([f"[{step}] agent", *filter(None, [said]), *map(show_call, s.get("tool_calls") or [])])
            )
        elif i != first:
            text.append(f"[{step}] {s.get('source')}\n{said}")
        seen = [harnesses.flat(r.get("content")) for r in (s.get("observation") or {}).get("results") or []]
        text += [f"[{step}] output\n" + "\n".join(seen)] if any(seen) else []
    problem = harnesses.statement(harnesses.flat(steps[first].get("message"))) if steps else ""
    return {"problem": problem, "transcript": "\n\n".join(text), "steps": step, **totals(steps)}


def totals(steps: list[dict]) -> dict:
    """prompt_tokens, completion_tokens, cost_usd, tokens, summed over the steps (final_metrics may be null)."""
    sums = {}
    for name in ("prompt_tokens", "completion_tokens", "cost_usd"):
        values = [v for s in steps if (v := (s.get("metrics") or {}).get(name)) is not None]
        sums[name] = sum(values) if values else None
    counted = sums["prompt_tokens"] is not None
    return sums | {"tokens": sums["prompt_tokens"] + (sums["completion_tokens"] or 0) if counted else None}


def show_call(call: dict) -> str:
    """A tool call as a line: keystrokes and commands as they are, other arguments as JSON."""
    arguments = call.get("arguments") or {}
    typed = arguments.get("keystrokes") or arguments.get("command") or arguments.get("cmd")
    return f"$ {typed.rstrip()}" if isinstance(typed, str) else f"> {call.get('function_name')} {json.dumps(arguments)}"


def verdict(result: dict) -> bool | None:
    """A trial's grade: True at reward 1, False below it, None where no reward was given (image, API, verifier failed).

    A trial that ran out of time is graded as what it left behind, as Harbor does.
    """
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    reward = rewards.get("reward", next(iter(rewards.values())) if len(rewards) == 1 else None)
    return None if reward is None else reward >= 1


def scores(folder: Path) -> dict[str, bool | None]:
    """The verdict of each trial below a folder, by trial name."""
    return {r["trial_name"]: verdict(r) for _, r in trials(folder)}


def trials(folder: Path) -> list[tuple[Path, dict]]:
    """(trial folder, result.json) of every trial below a folder, in the order in which they began; a torn one is {}."""
    found = [(p.parent, harnesses.read_json(p) or {}) for p in Path(folder).rglob("*__*/result.json")]
    return sorted(found, key=lambda f: (f[1].get("started_at") or "", f[0].name))


def task_name(path: Path, result: dict) -> str:
    """The task's folder name; the trial's own name cuts it at 32 characters."""
    where = ((result.get("config") or {}).get("task") or {}).get("path")
    return Path(where).name if where else result.get("task_name") or path.name.rpartition("__")[0]


def ending(result: dict, parts: list[dict]) -> str:
    """How a trial ended: completed, turn_limit, or the exception's name; a torn result is "unreadable"."""
    if not result:
        return "unreadable"
    if result.get("exception_info"):
        return result["exception_info"].get("exception_type") or "unknown"
    limit = (((result.get("config") or {}).get("agent") or {}).get("kwargs") or {}).get("max_turns")
    episodes = ((result.get("agent_result") or {}).get("metadata") or {}).get("n_episodes") or 0
    last = (parts[-1].get("steps") or [{}])[-1] if parts else {}
    done = any(c.get("function_name") == "mark_task_complete" for c in last.get("tool_calls") or [])
    return "turn_limit" if limit and episodes >= limit and not done else "completed"


def load(folder: Path, problems: dict[str, str] | None = None) -> list[dict]:
    """The rollouts below a folder, by task and rollout. The index is in a folder's name, rNN, else the order of starts.

    ValueError where there is none, or two claim one index. answer is null: what was submitted is the container's state.
    """
    records: dict[tuple[str, int], dict] = {}
    for path, result in trials(folder):
        task, agent = task_name(path, result), result.get("agent_result") or {}
        more = sorted(path.glob("agent/trajectory.cont-*.json"), key=lambda p: int(re.sub(r"\D", "", p.stem) or 0))
        parts = [p for f in (path / "agent/trajectory.json", *more) if (p := harnesses.read_json(f))]
        r: dict[str, Any] = {"task": task, **read_trajectory(parts), "answer": None, "outcome": verdict(result)}
        if agent.get("n_input_tokens") is not None:  # Harbor's own count knows its summaries too
            r["tokens"] = agent["n_input_tokens"] + (agent.get("n_output_tokens") or 0)
        r["cost_usd"] = agent.get("cost_usd", r["cost_usd"])
        known = problems or near_tasks(path)
        r |= {"status": ending(result, parts), "problem": known.get(task) or r["problem"]}
        r["rollout"] = next((int(p.name[1:]) for p in path.parents if re.fullmatch(r"r\d+", p.name)), None)
        if r["rollout"] is None:
            r["rollout"] = sum(t == task for t, _ in records)
        if records.setdefault((task, r["rollout"]), r) is not r:
            raise ValueError(f"{folder}: two rollouts {r['rollout']} of {task}; load one iteration at a time")
    if not records:
        raise ValueError(f"{folder}: no trial's result.json in it")
    return [{k: records[key][k] for k in harnesses.ROLLOUT} for key in sorted(records)]


def near_tasks(trial: Path) -> dict[str, str]:
    """The instructions of a data set beside the rollout's folder; empty where there is none."""
    return next((tasks(d) for base in trial.resolve().parents[:3] for d in sorted(base.glob("ds*"))), {})


def check(folder: Path) -> list[str]:
    """What is unusable, one line each, before any money is spent on summaries; empty where all is well."""
    return harnesses.check(load(folder), OWN_ENDS)


def tasks(source: Path) -> dict[str, str]:
    """Instructions by task folder, sorted by name, without a refinement context."""
    found = sorted(Path(source).glob("*/instruction.md"))
    if not found:
        raise ValueError(
            f"no task folder in {source}; get the data set once: harbor download terminal-bench@2.0 -o DIR"
        )
    return {p.parent.name: harnesses.without_context(p.read_text("utf-8")) for p in found}


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
            text = harnesses.with_context((old / "instruction.md").read_text("utf-8"), context)
            harnesses.write_if_new(new / "instruction.md", text)
    return [folder for folder, _ in planned]


def command(
    index: int, *, data: Path, out: Path, url: list[str], model: str, seed: int, temperature: float, workers: int,
    backend: str, agent: str = AGENT, extra: Iterable[str] = (),
) -> list[str]:  # fmt: skip
    """One rollout index over all tasks of data, as a Harbor job of one attempt; its grading is part of it.

    The server (i mod n) goes in the environment: a job is only resumed under an equal configuration.
    """
    server = url[index % len(url)].rstrip("/").removesuffix("/v1") + "/v1"
    calls = json.dumps({"seed": seed})
    kwargs = [f"temperature={temperature}", f"llm_call_kwargs={calls}", "record_terminal_session=false"]
    job = ["-p", str(data), "-o", str(Path(out).parent), "--job-name", Path(out).name, "-k", "1", "-n", str(workers)]
    asks = ["-a", "terminus-2", "-m", f"openai/{model.removeprefix('openai/')}", "-e", backend]
    argv = ["env", f"OPENAI_BASE_URL={server}", *shlex.split(agent), "run", "-y", "-q", *job, *asks]
    return [*argv, *(a for k in kwargs for a in ("--ak", k)), *(a.replace("{out}", str(out)) for a in extra)]


def forget_failed(out: Path) -> list[str]:
    """Delete the folders of trials without a grade, so that the next run redoes them and only them; their names."""
    failed = [(path, r.get("trial_name") or path.name) for path, r in trials(out) if verdict(r) is None]
    for path, _ in failed:
        shutil.rmtree(path)
    return [name for _, name in failed]


def write_predictions(chosen: Iterable[dict], out: Path) -> Path:
    """The chosen rollouts as {task: index}, since the trial's folder is what there is instead of a patch; its path."""
    harnesses.write_if_new(Path(out), json.dumps({r["task"]: r["rollout"] for r in chosen}, indent=1))
    return Path(out)


def harness(
    *, run_dir: Path, source: Path, url: list[str], model: str, N: int, seed: int, temperature: float, workers: int,
    backend: str, agent: str = AGENT, grader: str | None = None, extra: Iterable[str] = (),  # noqa: ARG001
) -> Callable[[int, dict[str, list[str]]], list[dict]]:  # fmt: skip
    """The function PDR needs: rollout(t, {task: [context of each of the N rollouts]}) -> graded rollouts of round t.

    As swe_bench.harness, so that PDR calls both alike; grader is not used: Harbor grades each trial itself.
    """

    def one(i: int, agents: int, t: int, it: Path, data: Path, problems: dict[str, str]) -> None:
        out = it / f"r{i:02d}"
        asks = {"url": url, "model": model, "seed": seed * 1_000_000 + t * N + i, "temperature": temperature}
        argv = command(i, data=data, out=out, workers=agents, backend=backend, agent=agent, extra=extra, **asks)
        for _ in range(2):  # what the environment or the server failed is tried once more
            forget_failed(out)
            if {*problems} - {task_name(*found) for found in trials(out)}:
                harnesses.run_logged(argv, it / f"{out.name}.log", it, harnesses.QUIET)

    return harnesses.iterations(one, tasks, write_dataset, load, run_dir=run_dir, source=source, N=N, workers=workers)


if __name__ == "__main__":
    raise SystemExit(harnesses.main(__doc__, AGENT, "", load, check, command, None))
