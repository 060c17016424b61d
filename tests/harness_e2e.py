"""The toy task, a scripted model, the harness programs: what the end-to-end tests share, and the run with containers.

Run     python tests/harness_e2e.py --backend docker|podman     mini-SWE-agent -> swebench grading, then Harbor trials
        (the harnesses go into environments of their own under ~/.cache; Harbor needs Python >= 3.12: --harbor-python)
        --image NAME: the base image of the toy task's container; it needs bash, git, python3 and, for Harbor, tmux
"""

import argparse
import fcntl
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

from evaluators import swe_bench, terminal_bench  # noqa: E402
from evaluators.outcomes import rollout_of  # noqa: E402
from fake_server import FakeServer  # noqa: E402

TOY = TESTS / "toy_task"
CASES = {c["id"]: c for c in map(json.loads, (TESTS / "cases.jsonl").read_text("utf-8").split("\n")[:-1])}
VERSIONS = {"mini-swe-agent": "2.4.6", "swebench": "5.0.2", "harbor": "0.25.0"}
TASK = "toy__slug-1"
RIGHT = """sed -i 's/split(" ")/split()/' slug.py"""
WRONG = """sed -i 's/lower()/upper()/' slug.py"""
LOOK = ["cat slug.py", "git status --short"]
SUBMIT = [
    "git diff -- slug.py > patch.txt; cat patch.txt",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt",
]


def tool(name: str, python: str = sys.executable, extra: tuple[str, ...] = ()) -> Path:
    """The bin folder of a harness's own environment, made once under ~/.cache and keyed by its version."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / f"tts-for-code/{name}-{VERSIONS[name]}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs do not build one environment
        if (home / "ready").exists():
            return home / "bin"
        begun = time.monotonic()
        subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True)
        pip = [str(home / "bin/pip"), "install", "-q", f"{name}=={VERSIONS[name]}", *extra]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        (home / "ready").write_text(f"{time.monotonic() - begun:.0f} s\n")
    return home / "bin"


def write_source(folder: Path, image: str) -> Path:
    """The toy task as a data set with all columns that mini-SWE-agent 2.4.6 and swebench 5.0.2 read."""
    code = (TOY / "environment/slug.py").read_text()
    test = "import slug\n\n\ndef test_one_hyphen():\n    assert slug.slug('Hello  World') == 'hello-world'\n"
    test += "\n\ndef test_back():\n    assert slug.unslug('a-b') == 'a b'\n"
    run = 'for t in test_one_hyphen test_back; do python3 -c "import test_slug; test_slug.$t()" >/dev/null 2>&1'
    run += " && echo PASSED test_slug.py::$t || echo FAILED test_slug.py::$t; done"
    script = f"#!/bin/bash\nset -uxo pipefail\ncd /testbed\ncat > test_slug.py <<'END'\n{test}END\n"
    script += f": '>>>>> Start Test Output'\n{run}\n: '>>>>> End Test Output'\nrm test_slug.py\n"
    row = {
        "instance_id": TASK,
        "repo": "toy/slug",
        "version": "1.0",
        "base_commit": "0" * 40,
        "created_at": "2026-01-01",
    }
    row |= {
        "problem_statement": (TOY / "instruction.md").read_text(),
        "hints_text": "",
        "test_patch": "",
        "patch": code,
    }
    row |= {"FAIL_TO_PASS": '["test_slug.py::test_one_hyphen"]', "PASS_TO_PASS": '["test_slug.py::test_back"]'}
    row |= {"image": image, "eval_script": script, "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def plan(messages: list[dict], seed: int) -> list[str]:
    """The scripted agent: even seeds find the right fix, odd ones a wrong one; with a context it does so at once."""
    told = "<refinement_context>" in str(messages)
    return [*([] if told else LOOK), RIGHT if told or seed % 2 == 0 else WRONG, *SUBMIT]


def scripted(messages: list[dict], seed: int | None) -> dict | str:
    """A reply to mini-SWE-agent (a tool call), to Terminus (JSON in the text), or to a judge or summariser (text)."""
    first = str(messages[0]["content"])
    if messages[0]["role"] == "user" and "keystrokes" not in first:
        return "Final verdict: Solution 1" if "Final verdict" in first else f"Summary {seed}: {{{{ tried }}}} \u2028"
    step = sum(m["role"] == "assistant" for m in messages)
    todo = plan(messages, seed or 0)
    message: dict = {"role": "assistant", "content": f"Step {step + 1} of {len(todo)}."}
    if "keystrokes" in first:
        keys = [{"keystrokes": f"{todo[min(step, len(todo) - 2)]}\n", "duration": 0.5}]
        reply = {
            "analysis": message["content"],
            "plan": "go on",
            "commands": keys,
            "task_complete": step >= len(todo) - 2,
        }
        message["content"] = json.dumps(reply)
    else:
        call = {"name": "bash", "arguments": json.dumps({"command": todo[min(step, len(todo) - 1)]})}
        message["tool_calls"] = [{"id": f"call_{step}", "type": "function", "function": call}]
    usage = {"prompt_tokens": 100 + 50 * step, "completion_tokens": 20, "total_tokens": 120 + 50 * step}
    end = "tool_calls" if "tool_calls" in message else "stop"
    body: dict = {"id": f"x{step}", "object": "chat.completion", "created": 0, "model": "scripted", "usage": usage}
    body["choices"] = [{"index": 0, "message": message, "finish_reason": end}]
    return {"status": 200, "headers": {}, "body": body}


def run_adapter(name: str, *argv: str) -> subprocess.CompletedProcess:
    """The command line of an adapter, as a user runs it."""
    script = TESTS.parent / "evaluators" / f"{name}.py"
    return subprocess.run([sys.executable, str(script), *argv], capture_output=True, text=True, check=False)


def stand_in(folder: Path, text: str) -> Path:
    """A program of a few lines in a harness's place; it can count its runs in its own name + ".count"."""
    (folder / "stand-in").write_text(f"#!{sys.executable}\n{text}")
    (folder / "stand-in").chmod(0o755)
    return folder / "stand-in"


def mutations(data: object, values: Iterable) -> Iterator[str]:
    """`data` as JSON with each of its nodes in turn replaced by each of the values, and cut short."""
    text = json.dumps(data)
    yield from (text[:cut] for cut in range(0, len(text), 1 + len(text) // 9))
    nodes: list = [(None, None, data)]
    while nodes:
        parent, key, node = nodes.pop()
        nodes += [(node, k, v) for k, v in (node.items() if isinstance(node, dict) else ())]
        nodes += [(node, k, v) for k, v in (enumerate(node) if isinstance(node, list) else ())]
        for value in values:
            if parent is None:
                yield json.dumps(value)
                continue
            parent[key] = value
            yield json.dumps(data)
            parent[key] = node


def unreadable(adapter: ModuleType, folder: Path, then: Callable[[], object], *, step: int = 1) -> int:
    """How often a mutation of a JSON file makes a rollout unreadable; each must be loaded, and check must say why."""
    total, files = 0, {path: path.read_text() for path in sorted(folder.rglob("*.json"))}
    for path, whole in files.items():
        for text in itertools.islice(mutations(json.loads(whole), [None, 5, "x", [], {}, [1]]), 0, None, step):
            path.write_text(text)
            torn = [r for r in map(rollout_of, map(json.dumps, adapter.load(folder))) if r["status"] == "unreadable"]
            assert len(torn) == sum("unreadable: " in line for line in adapter.check(folder))
            assert not any(r["outcome"] is not None for r in torn)
            then()
            for other, content in files.items():
                other.write_text(content)
            total += len(torn)
    return total


def local_agent(folder: Path, mini: str) -> Path:
    """mini-SWE-agent as a program that works in the rollout's own folder (-o), without a container."""
    begin = f"cp {shlex.quote(str(TOY / 'environment/slug.py'))} . && git init -q . && git add slug.py"
    begin += " && git -c user.name=t -c user.email=t@t commit -qm base --allow-empty"
    local = f"-c environment.cwd=$out -c environment.env.BASH_ENV= -c {shlex.quote(f'run.env_startup_command={begin}')}"
    find = 'for a; do [ "$last" = -o ] && out=$a; last=$a; done'
    (folder / "local-mini").write_text(f'#!/bin/sh\n{find}\nexec {mini} "$@" {local}\n')
    (folder / "local-mini").chmod(0o755)
    return folder / "local-mini"


def show(name: str, rollouts: list[dict], begun: float) -> None:
    for r in rollouts:
        print(
            f"{name} rollout {r['rollout']}: "
            + ", ".join(f"{k} {r[k]}" for k in ("status", "outcome", "steps", "tokens"))
        )
    took = time.monotonic() - begun
    print(f"{name}: {took:.0f} s, {took / len(rollouts):.0f} s a graded rollout, one after the other", flush=True)


def about(backend: str) -> str:
    """What a reader of the output must know of the programs and of the machine; no path and no name of it."""
    version = subprocess.run([backend, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    harnesses = ", ".join(f"{name} {number}" for name, number in VERSIONS.items())
    return f"{harnesses}; {version}; scripted model; {cores} cores, load {load:.1f} at the start"


def with_containers(backend: str, image: str, harbor_python: str, run_dir: Path, url: str) -> None:
    """PDR's two iterations, N=2, through the real programs: mini-SWE-agent -> swebench, then Harbor."""
    subprocess.run([backend, "tag", image, "localhost/toy-base:latest"], check=True)
    built = [backend, "build", "-q", "-t", "localhost/toy-slug:latest", str(TOY / "environment")]
    subprocess.run(built, check=True, stdout=sys.stderr)
    asks = {"url": [url], "model": "scripted", "N": 2, "seed": 0, "temperature": 0.7, "workers": 1, "backend": backend}
    swe = swe_bench.harness(
        run_dir=run_dir / "swe", source=write_source(run_dir / "source", "localhost/toy-slug:latest"),
        agent=str(tool("mini-swe-agent") / "mini-extra"), extra=(),
        grader=f"{tool('swebench') / 'python'} -m swebench.harness.run_evaluation", **asks,
    )  # fmt: skip
    harbor = tool("harbor", harbor_python, ("podman-compose",))
    os.environ["PATH"] = f"{harbor}:{os.environ['PATH']}"  # Harbor calls podman-compose by its name
    tb = terminal_bench.harness(run_dir=run_dir / "tb", source=TESTS, agent=str(harbor / "harbor"), extra=(), **asks)
    for name, rollout, task in (("swe_bench", swe, TASK), ("terminal_bench", tb, "toy_task")):
        for t, context in enumerate(("", "An earlier attempt split on single spaces. {{ braces }} {% stay %}")):
            begun = time.monotonic()
            show(f"{name} it{t}", rollout(t, {task: [context] * 2}), begun)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["docker", "podman"], default="docker")
    parser.add_argument("--image", default="localhost/deb:base")
    parser.add_argument("--harbor-python", default=sys.executable, help="a Python >= 3.12")
    parser.add_argument("--run", type=Path, help="keep the run here (else a temporary folder)")
    args = parser.parse_args()
    print(about(args.backend), flush=True)
    with tempfile.TemporaryDirectory() as scratch, FakeServer(scripted) as server:
        with_containers(args.backend, args.image, args.harbor_python, args.run or Path(scratch), server.url)
