"""SWE-Bench through its own tools: mini-SWE-agent makes the rollouts, swebench grades them; here are only their files.

Tools   mini-swe-agent 2.4.6 and swebench 5.0.2, each in a virtual environment of its own (--agent, --grader)
Input   JSON lines, columns as in SWE-bench/SWE-bench_Verified: instance_id, problem_statement, image, eval_script ...
Layout  RUN/it0/ds/test.jsonl; RUN/it0/r00/: preds.json, ID/ID.traj.json, graded.json, logs/, *.log; r00 is rollout 0
Run     python evaluators/swe_bench.py check RUN/it0    what is unusable and why, the rate both ways (load: JSON lines)
        python evaluators/swe_bench.py forget RUN/it0   takes out what failed, so that `command` runs or grades it again
        python evaluators/swe_bench.py command --data RUN/it0/ds --url URL --model NAME    what runs for one index
        python evaluators/swe_bench.py scores RUN/chosen.json     the verdicts on the patches that pdr.py picked
Differs - the paper names no version, temperature, limit or seed. An agent has the limits of mini-SWE-agent: 250 steps,
          3 USD where litellm knows the model's price. A rollout has its own seed: seed * 1000000 + t * N + index
        - what a limit stopped (cost_limit, step_limit, TimeExceeded, ContextWindowExceededError) has submitted nothing:
          null, counted, not tried again; null too: an empty patch, and one that does not apply
        - a context is appended to problem_statement
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

if __package__:
    from evaluators import harnesses, trajectories
    from evaluators.trajectories import clean_patch, field, mini, read_json, with_context, without_context
else:  # python evaluators/swe_bench.py
    import harnesses
    import trajectories
    from trajectories import clean_patch, field, mini, read_json, with_context, without_context

# The agent's own ends, which are not tried again, in mini-SWE-agent's words.
OWN_ENDS = {"Submitted", "RepeatedFormatError", "LimitsExceeded", "TimeExceeded", "ContextWindowExceededError"}
AGENT, GRADER = "mini-extra", "python -m swebench.harness.run_evaluation"


def scores(preds: Path) -> dict[str, bool | None]:
    """Each prediction's verdict, by the reports below its folder: None where this very patch has none."""
    found, predicted = trajectories.verdicts(Path(preds).parent), read_json(Path(preds)) or {}
    return {task: found.get((task, patch_of(predicted, task)), {}).get("outcome") for task in predicted}


def patch_of(predicted: dict, task: str) -> str:
    return clean_patch(field(predicted, task, "model_patch", kind=str))


def rows(source: Path) -> list[dict]:
    """The rows of a .jsonl file, or of test.jsonl in a folder."""
    path = Path(source) / "test.jsonl" if Path(source).is_dir() else Path(source)
    if not path.exists():
        how = "import datasets as d; d.load_dataset('SWE-bench/SWE-bench_Verified')['test'].to_json('FILE.jsonl')"
        raise ValueError(f'no data set at {path}; with the Python of swebench: python -c "{how}"')
    return harnesses.read_rows(path, ("instance_id", "problem_statement"))


def tasks(source: Path) -> dict[str, str]:
    """Problem statements by instance id, in the data set's order, without a refinement context."""
    return {row["instance_id"]: without_context(row["problem_statement"]) for row in rows(source)}


def write_dataset(source: Path, contexts: dict[str, list[str]], out: Path) -> list[Path]:
    """The data set folder of each rollout index: the tasks in contexts, the context appended to each problem."""
    by_id = {row["instance_id"]: row for row in rows(source)}
    planned = harnesses.copies(contexts, by_id, out)
    for folder, texts in planned:
        lines = []
        for task, context in texts.items():
            row = by_id[task]
            image = row.get("image_name") or row.get("image")  # the agent reads the one, swebench the other
            problem = with_context(row["problem_statement"], context)
            lines.append(json.dumps(row | {"image_name": image, "problem_statement": problem}) + "\n")
        harnesses.write_if_new(folder / "test.jsonl", "".join(lines))  # in ASCII: swebench splits lines at U+2028 too
    return [folder for folder, _ in planned]


def command(
    index: int, *, data: Path, out: Path, url: list[str], model: str, seed: int, temperature: float, workers: int,
    backend: str, agent: str = AGENT, extra: Iterable[str] = (),
) -> list[str]:  # fmt: skip
    """One rollout index over all tasks of data, with its own seed; {out} in extra is the rollout's folder."""
    kwargs = {"api_base": harnesses.server(url, index), "seed": seed, "temperature": temperature}
    config = ["swebench.yaml", "model.cost_tracking=ignore_errors"]  # any -c drops the default file, so it comes first
    config += [f"model.model_kwargs.{k}={v}" for k, v in kwargs.items()]
    own = {"podman": ["environment.executable=podman"], "modal": ["environment.startup_timeout=600"]}
    config += own.get(backend, [])
    where = ["--subset", str(data), "--split", "test", "-o", str(out), "-w", str(workers)]
    environment = {"podman": "docker", "modal": "swerex_modal"}.get(backend, backend)
    asks = ["-m", f"openai/{model}", "--environment-class", environment]
    argv = [*harnesses.program(agent), "swebench", *where, *asks, *(a for c in config for a in ("-c", c))]
    return [*argv, *(a.replace("{out}", str(out)) for a in extra)]


def run_id(preds: Path) -> str:
    """A name for a grading run that only these predictions have, so that the cache holds no verdict on others."""
    return "p" + hashlib.sha256(Path(preds).read_bytes()).hexdigest()[:16]


def grade_command(preds: Path, *, data: Path, workers: int, backend: str, grader: str = GRADER) -> list[str]:
    """Grade one predictions file; run it where logs/ should lie. Running it again grades what has no report yet.

    Where one prediction changed all are graded again, so harness() hands over only those without a verdict.
    """
    what = ["-d", str(Path(data) / "test.jsonl"), "-s", "test", "-p", str(preds), "-id", run_id(preds)]
    return [
        *harnesses.program(grader),
        *what,
        "--max_workers",
        str(workers),
        *(["--modal", "true"] * (backend == "modal")),
    ]


def write_predictions(chosen: Iterable[dict], out: Path, model: str = "chosen") -> Path:
    """The patches of the chosen rollouts, one a task, as a preds.json that swebench grades; returns its path."""
    preds = {}
    for r in chosen:
        if (task := r["task"]) in preds:
            raise ValueError(f"two patches chosen for {task}: swebench would silently take the later one")
        preds[task] = {"instance_id": task, "model_name_or_path": model, "model_patch": clean_patch(r["answer"])}
    harnesses.write_if_new(Path(out), json.dumps(preds, indent=1))
    return Path(out)


def finished(path: Path, predicted: dict) -> dict:
    """The prediction of a trajectory whose agent came to an end of its own; empty where it did not. ValueError too."""
    task, t = path.parent.name, read_json(path, dict | list)
    if isinstance(t, list):  # v1 does not say how it ended: what stands there stays, if it can be read
        patch_of(predicted, task)
        return predicted.get(task) or {}
    info = field(t, "info", kind=dict, default={})
    patch = field(info, "submission", kind=str)
    if patch is None or field(info, "exit_status", kind=str) not in OWN_ENDS:
        return {}
    name = field(info, "config", "model", "model_name", kind=str, default="unknown")
    return {"model_name_or_path": name, "instance_id": task, "model_patch": patch}


def mend(run: Path) -> list[Path]:
    """Make RUN/preds.json what its trajectories say; RUN/ID of each prediction that this takes out."""
    predicted, torn = trajectories.readable(run / "preds.json")
    kept = {}
    for file in sorted(run.glob("*/*.traj.json")):
        if "model_patch" in (prediction := trajectories.attempt(finished, file, predicted)):
            kept[file.parent.name] = prediction
    if torn or kept != predicted:
        harnesses.write_if_new(run / "preds.json", json.dumps(kept, indent=2))
    return [run / task for task in sorted({*predicted} - {*kept})]


def forget_failed(out: Path) -> list[str]:
    """Forget what the environment, the server or the grading failed, below a folder, so that it is done again.

    Returned: the predictions taken out of a preds.json, RUN/ID, and the reports deleted. The agent's own limits stay.
    What a kill left out of a preds.json, or tore, comes back from its finished trajectory.
    """
    broken = [path for path in trajectories.reports(out) if "why" in trajectories.attempt(trajectories.graded, path)]
    for report in broken:
        report.unlink()
    runs = sorted({path.parent for path in Path(out).rglob("preds.json")} | {Path(out)})
    return [str(path.relative_to(out)) for path in [p for run in runs for p in mend(run)] + broken]


def read(path: Path | None, predicted: dict, torn: str, task: str, found: dict) -> dict:
    """What its trajectory, its prediction and swebench's reports say of a rollout; ValueError where they cannot."""
    if torn:
        raise ValueError(torn)
    none = {"status": "no_trajectory", "patch": None}
    r: dict[str, Any] = mini(read_json(path, dict | list)) if path else none
    r["answer"] = patch_of(predicted, task) if task in predicted else clean_patch(r["patch"])
    return r | found.get((task, r["answer"]), {})


def records(folder: Path, problems: dict[str, str] | None = None) -> list[dict]:
    """As load, with `why` of what could not be read."""
    made = []
    files = {p: p.name.removesuffix(".traj.json") for p in sorted(Path(folder).rglob("*.traj.json"))}
    runs = {p.parent.parent if p.parent.name == task else p.parent for p, task in files.items()}
    for run in sorted(runs | {p.parent for p in Path(folder).rglob("preds.json")}):
        bases, ds = (run, *run.resolve().parents[:2]), harnesses.near(run, "test.jsonl")  # reports lie there too
        known = problems or (tasks(ds) if ds else {})
        found = {k: v for base in bases[::-1] for k, v in trajectories.verdicts(base / "logs").items()}
        paths = {task: p for p, task in files.items() if p in (run / p.name, run / task / p.name)}
        predicted, torn = trajectories.readable(run / "preds.json")
        for task in sorted({*predicted, *paths} or (known if torn else ())):
            r = trajectories.attempt(read, paths.get(task), predicted, torn, task, found)
            made.append((task, run, r | {"problem": known.get(task) or r.get("problem", "")}))
    if not made:
        raise ValueError(f"{folder}: no preds.json that can be read, and no .traj.json in it")
    return harnesses.collect(folder, made)


def load(folder: Path, problems: dict[str, str] | None = None) -> list[dict]:
    """The rollouts below a folder, by task and rollout. The index is in a folder's name, rNN, else the order of paths.

    ValueError where there is none, or two claim one index. A prediction with no trajectory has status no_trajectory.
    """
    return [{name: r[name] for name in harnesses.ROLLOUT} for r in records(folder, problems)]


def check(folder: Path) -> list[str]:
    """What is unusable, one line each, before any money is spent on summaries; empty where all is well."""
    own_ends = OWN_ENDS | {"cost_limit", "step_limit", "unknown"}
    return harnesses.check(records(folder), own_ends, lambda r: r["status"] not in own_ends)


def harness(
    *, run_dir: Path, source: Path, url: list[str], model: str, N: int, seed: int, temperature: float, workers: int,
    backend: str, agent: str = AGENT, grader: str | None = GRADER, extra: Iterable[str] = (),
) -> Callable[[int, dict[str, list[str]]], list[dict]]:  # fmt: skip
    """The function PDR needs: rollout(t, {task: [context of each of the N rollouts]}) -> graded rollouts of round t.

    workers: agents at once. grader None: no outcomes. Called again it goes on. RuntimeError where a program fails.
    """

    def one(i: int, own_seed: int, agents: int, it: Path, data: Path, problems: dict[str, str]) -> None:
        out, kw = it / f"r{i:02d}", {"data": data, "workers": agents, "backend": backend}
        asks = {"url": url, "model": model, "seed": own_seed, "temperature": temperature}
        argv = command(i, out=out, agent=agent, extra=extra, **asks, **kw)
        for _ in range(2):  # what the environment or the server failed is tried once more
            forget_failed(out)
            if {*problems} - {*(read_json(out / "preds.json") or {})}:
                harnesses.run_logged(argv, out / "agent.log", it, harnesses.QUIET)
        done = [r for r in load(out, problems) if r["answer"] and r["status"] != "no_trajectory"]
        if grader and (todo := [r for r in done if r["outcome"] is None]):  # under a run id of their own
            preds = write_predictions(todo, out / "graded.json", model)
            harnesses.run_logged(grade_command(preds, grader=grader, **kw), out / "grade.log", out, harnesses.QUIET)

    parts = {"tasks": tasks, "write_dataset": write_dataset, "load": load}
    return harnesses.iterations(one, **parts, run_dir=run_dir, source=source, N=N, seed=seed, workers=workers)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import common

    common.entry(lambda: harnesses.main(sys.modules[__name__]))
