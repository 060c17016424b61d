"""SWE-Bench through its own tools: mini-SWE-agent makes the rollouts, swebench grades them; here are only their files.

Tools   mini-swe-agent 2.4.6 and swebench 5.0.2, each in a virtual environment of its own (--agent, --grader)
Input   JSON lines, columns as in SWE-bench/SWE-bench_Verified: instance_id, problem_statement, image, eval_script ...
Layout  RUN/it0/ds/test.jsonl; RUN/it0/r00/: preds.json, ID/ID.traj.json, graded.json, logs/, *.log; r00 is rollout 0
Run     python evaluators/swe_bench.py check RUN/it0    what is unusable and why, the rate both ways (load: JSON lines)
        python evaluators/swe_bench.py command --data RUN/it0/ds --url URL --model NAME    what runs for one index
Differs - the paper names no version, temperature, limit or seed: mini-SWE-agent's own (250 steps), one seed an index
        - a context is appended to problem_statement; an empty patch or one that does not apply is null and counted
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

if __package__:
    from evaluators import harnesses
else:  # python evaluators/swe_bench.py
    import harnesses

LIMITS = {
    "LimitsExceeded",
    "TimeExceeded",
    "ContextWindowExceededError",
}  # the agent was stopped: no failed grade, no retry
OWN_ENDS = {"Submitted", "RepeatedFormatError", *LIMITS}
AGENT, GRADER = "mini-extra", "python -m swebench.harness.run_evaluation"


def clean_patch(patch: str | None) -> str:
    """A patch as git apply wants it: no code fence, exactly one final newline; None and blank are the empty patch."""
    fenced = re.fullmatch(r"\s*```\w*\n(.*?)\n?```\s*", patch or "", re.DOTALL)
    text = (fenced[1] if fenced else patch or "").strip("\n")
    return text + "\n" if text.strip() else ""


def read_trajectory(data: dict | list) -> dict:
    """A .traj.json, v1.1 or v1 (a list of messages) -> problem, transcript, steps, tokens, cost_usd, status, patch.

    The prompts are no part of the transcript, and no grade is: the file has none. A cost of 0 means: no price known.
    """
    info, messages = ({}, data) if isinstance(data, list) else (data.get("info") or {}, data.get("messages") or [])
    first = next((i for i, m in enumerate(messages) if m.get("role") == "user"), -1)
    text, tokens, step = [], [], 0
    for i, m in enumerate(messages):
        extra, said = m.get("extra") or {}, harnesses.flat(m.get("content"))
        response = extra.get("response")
        if isinstance(response, dict):
            tokens += [(response.get("usage") or {}).get(k) or 0 for k in ("prompt_tokens", "completion_tokens")]
        if m.get("role") == "assistant":
            step += 1
            commands = [c for a in extra.get("actions") or [] if (c := a.get("command")) and c not in said]
            text.append("\n".join([f"[{step}] agent", *filter(None, [said]), *(f"$ {c}" for c in commands)]))
        elif i != first and m.get("role") not in ("system", "exit"):
            text.append(f"[{step}] output\n{said}")
    return {
        "problem": harnesses.statement(harnesses.flat(messages[first].get("content"))) if messages else "",
        "transcript": "\n\n".join(text),
        "steps": step,
        "tokens": sum(tokens) if tokens else None,
        "cost_usd": (info.get("model_stats") or {}).get("instance_cost") or None,
        "status": info.get("exit_status") or "unknown",
        "patch": info.get("submission"),
    }


def verdicts(logs: Path) -> dict[tuple[str, str], bool]:
    """(instance, patch) -> resolved, of every report below a folder. swebench's own cache goes by run id alone.

    What swebench itself puts down to a broken environment is no verdict.
    """
    found = {}
    for path in sorted(Path(logs).rglob("report.json")):
        report, patch = harnesses.read_json(path), path.parent / "patch.diff"
        for task, r in report.items() if isinstance(report, dict) and patch.exists() else ():
            if isinstance(r.get("resolved"), bool) and (r["resolved"] or not r.get("infra_failure")):
                found.setdefault((task, clean_patch(patch.read_text("utf-8", "replace"))), r["resolved"])
    return found


def scores(preds: Path, logs: Path) -> dict[str, bool | None]:
    """Each prediction's verdict: True, False, None where this very patch is not graded (empty, not applied, error)."""
    found, predicted = verdicts(logs), harnesses.read_json(Path(preds)) or {}
    return {task: found.get((task, clean_patch(p["model_patch"]))) for task, p in predicted.items()}


def rows(source: Path) -> list[dict]:
    """The rows of a .jsonl file, or of test.jsonl in a folder, as they stand there."""
    path = Path(source) / "test.jsonl" if Path(source).is_dir() else Path(source)
    if not path.exists():
        how = "import datasets as d; d.load_dataset('SWE-bench/SWE-bench_Verified')['test'].to_json('FILE.jsonl')"
        raise ValueError(f'no data set at {path}; with the Python of swebench: python -c "{how}"')
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]


def tasks(source: Path) -> dict[str, str]:
    """Problem statements by instance id, in the data set's order, without a refinement context."""
    return {row["instance_id"]: harnesses.without_context(row["problem_statement"]) for row in rows(source)}


def write_dataset(source: Path, contexts: dict[str, list[str]], out: Path) -> list[Path]:
    """The data set folder of each rollout index: the tasks in contexts, the context appended to each problem."""
    by_id = {row["instance_id"]: row for row in rows(source)}
    planned = harnesses.copies(contexts, by_id, out)
    for folder, texts in planned:
        lines = []
        for task, context in texts.items():
            row = by_id[task]
            image = row.get("image_name") or row.get("image")  # the agent reads the one, swebench the other
            problem = harnesses.with_context(row["problem_statement"], context)
            lines.append(json.dumps(row | {"image_name": image, "problem_statement": problem}) + "\n")
        harnesses.write_if_new(folder / "test.jsonl", "".join(lines))  # in ASCII: swebench splits lines at U+2028 too
    return [folder for folder, _ in planned]


def command(
    index: int, *, data: Path, out: Path, url: list[str], model: str, seed: int, temperature: float, workers: int,
    backend: str, agent: str = AGENT, extra: Iterable[str] = (),
) -> list[str]:  # fmt: skip
    """One rollout index over all tasks of data. Index i asks server i mod n; {out} in extra is the rollout's folder."""
    server = url[index % len(url)].rstrip("/").removesuffix("/v1") + "/v1"
    kwargs = {"api_base": server, "seed": seed, "temperature": temperature}
    config = ["swebench.yaml", "model.cost_tracking=ignore_errors"]  # any -c drops the default file, so it comes first
    config += [f"model.model_kwargs.{k}={v}" for k, v in kwargs.items()]
    own = {"podman": "environment.executable=podman", "modal": "environment.startup_timeout=600"}
    config += [own[backend]] if backend in own else []
    where = ["--subset", str(data), "--split", "test", "-o", str(out), "-w", str(workers)]
    environment = {"podman": "docker", "modal": "swerex_modal"}.get(backend, backend)
    asks = ["-m", f"openai/{model.removeprefix('openai/')}", "--environment-class", environment]
    argv = [*shlex.split(agent), "swebench", *where, *asks, *(a for c in config for a in ("-c", c))]
    return [*argv, *(a.replace("{out}", str(out)) for a in extra)]


def run_id(preds: Path) -> str:
    """A name for a grading run that only these predictions have, so that the cache holds no verdict on others."""
    return "p" + hashlib.sha256(Path(preds).read_bytes()).hexdigest()[:16]


def grade_command(preds: Path, *, data: Path, workers: int, backend: str, grader: str = GRADER) -> list[str]:
    """Grade one predictions file; run it where logs/ should lie. Running it again grades what has no report yet."""
    what = ["-d", str(Path(data) / "test.jsonl"), "-s", "test", "-p", str(preds), "-id", run_id(preds)]
    return [*shlex.split(grader), *what, "--max_workers", str(workers), *(["--modal", "true"] * (backend == "modal"))]


def write_predictions(chosen: Iterable[dict], out: Path, model: str = "chosen") -> Path:
    """The patches of the chosen rollouts, one a task, as a preds.json that swebench grades; returns its path."""
    preds = {}
    for r in chosen:
        if (task := r["task"]) in preds:
            raise ValueError(f"two patches chosen for {task}: swebench would silently take the later one")
        preds[task] = {"instance_id": task, "model_name_or_path": model, "model_patch": clean_patch(r["answer"])}
    harnesses.write_if_new(Path(out), json.dumps(preds, indent=1))
    return Path(out)


def forget_failed(out: Path) -> list[str]:
    """Take infra failures out of OUT/preds.json, so that the next run retries them; return their ids. Limits stay.

    What a kill left out of preds.json, or tore, comes back from its finished trajectory: nothing is paid for twice.
    """
    path, kept = Path(out) / "preds.json", {}
    predicted = harnesses.read_json(path) or {}
    for file in sorted(Path(out).glob("*/*.traj.json")):
        t, task = harnesses.read_json(file), file.parent.name
        info = t["info"] if isinstance(t, dict) else {}
        if info.get("exit_status") in OWN_ENDS and info.get("submission") is not None:
            name, patch = info["config"]["model"]["model_name"], info["submission"]
            kept[task] = {"model_name_or_path": name, "instance_id": task, "model_patch": patch}
        elif isinstance(t, list) and task in predicted:
            kept[task] = predicted[task]  # v1 does not say how it ended
    if kept != predicted:
        harnesses.write_if_new(path, json.dumps(kept, indent=2))
    return sorted({*predicted} - {*kept})


def load(folder: Path, problems: dict[str, str] | None = None) -> list[dict]:
    """The rollouts below a folder, by task and rollout. The index is in a folder's name, rNN, else the order of paths.

    ValueError where there is none, or two claim one index. A prediction with no trajectory has status no_trajectory.
    """
    records = {}
    files = {p: p.name.removesuffix(".traj.json") for p in sorted(Path(folder).rglob("*.traj.json"))}
    runs = {p.parent.parent if p.parent.name == task else p.parent for p, task in files.items()}
    for run in sorted(runs | {p.parent for p in Path(folder).rglob("preds.json")}):
        near = (run, *run.resolve().parents[:2])  # where a data set and reports may lie
        known = problems or next((tasks(d) for base in near for d in sorted(base.glob("ds*"))), {})
        found = {k: v for base in near[::-1] for k, v in verdicts(base / "logs").items()}
        predicted = harnesses.read_json(run / "preds.json") or {}
        paths = {task: p for p, task in files.items() if p in (run / p.name, run / task / p.name)}
        for task in sorted({*predicted, *paths}):
            data = harnesses.read_json(paths[task]) if task in paths else None
            r = {"task": task, **read_trajectory(data or [])}
            r["status"] = r["status"] if data else "unreadable" if task in paths else "no_trajectory"
            r["rollout"] = int(run.name[1:]) if re.fullmatch(r"r\d+", run.name) else sum(t == task for t, _ in records)
            r["answer"] = clean_patch(predicted[task]["model_patch"] if task in predicted else r["patch"])
            r |= {"outcome": found.get((task, r["answer"])), "problem": known.get(task) or r["problem"]}
            if records.setdefault((task, r["rollout"]), r) is not r:
                raise ValueError(f"{folder}: two rollouts {r['rollout']} of {task}; load one iteration at a time")
    if not records:
        raise ValueError(f"{folder}: no preds.json and no .traj.json in it")
    return [{k: records[key][k] for k in harnesses.ROLLOUT} for key in sorted(records)]


def check(folder: Path) -> list[str]:
    """What is unusable, one line each, before any money is spent on summaries; empty where all is well."""
    return harnesses.check(load(folder), OWN_ENDS | {"unknown"})


def harness(
    *, run_dir: Path, source: Path, url: list[str], model: str, N: int, seed: int, temperature: float, workers: int,
    backend: str, agent: str = AGENT, grader: str | None = GRADER, extra: Iterable[str] = (),
) -> Callable[[int, dict[str, list[str]]], list[dict]]:  # fmt: skip
    """The function PDR needs: rollout(t, {task: [context of each of the N rollouts]}) -> graded rollouts of round t.

    workers = agents at once. Called again it goes on where it stopped: nothing is done twice. grader None: no outcomes.
    RuntimeError where a harness program fails; seeds are seed * 1_000_000 + t * N + index.
    """

    def one(i: int, agents: int, t: int, it: Path, data: Path, problems: dict[str, str]) -> None:
        out, kw = it / f"r{i:02d}", {"data": data, "workers": agents, "backend": backend}
        asks = {"url": url, "model": model, "seed": seed * 1_000_000 + t * N + i, "temperature": temperature}
        argv = command(i, out=out, agent=agent, extra=extra, **asks, **kw)
        for _ in range(2):  # what the environment or the server failed is tried once more
            forget_failed(out)
            if {*problems} - {*(harnesses.read_json(out / "preds.json") or {})}:
                harnesses.run_logged(argv, out / "agent.log", it, harnesses.QUIET)
        done = [r for r in load(out, problems) if r["status"] != "no_trajectory"]
        preds = write_predictions(done, out / "graded.json", model)
        if grader and any(r["answer"] and r["outcome"] is None for r in done):
            harnesses.run_logged(grade_command(preds, grader=grader, **kw), out / "grade.log", out, harnesses.QUIET)

    return harnesses.iterations(one, tasks, write_dataset, load, run_dir=run_dir, source=source, N=N, workers=workers)


if __name__ == "__main__":
    raise SystemExit(harnesses.main(__doc__, AGENT, GRADER, load, check, command, grade_command))
