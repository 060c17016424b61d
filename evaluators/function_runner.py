"""What evaluators/functions.py runs in the sandbox: a solution in one process, its judge in another.

Input   stdin, one JSON object: stub, code, entry, and test with words ({verdict: random word}) or examples (sources)
Output  run_tests(): result.json is the verdict's word, stderr the traceback; run_examples(): what each one printed
Why     A solution that shares a process with its tests passes by exit(0), by an object that equals everything, by
        patching. Here it sees the arguments of each call; the tests and the word for "pass" never were in its memory
        or its files.
"""

import builtins
import contextlib
import ctypes
import io
import json
import linecache
import os
import pickle
import signal
import sys
import traceback
import types
from typing import Any

SCALARS: Any = (bool, int, float, complex, str, bytes)
COLLECTIONS: Any = (list, tuple, set, frozenset)


def define(stub: str, code: str, entry: str) -> types.ModuleType:
    """The solution as a module: the prompt's own imports and helpers, then the code, whose frames say solution.py."""
    module = sys.modules["solution"] = types.ModuleType("solution")
    exec(stub, vars(module))
    vars(module).pop(entry, None)
    linecache.cache["solution.py"] = (len(code), None, code.splitlines(keepends=True), "solution.py")
    exec(compile(code, "solution.py", "exec"), vars(module))
    return module


def trace(error: BaseException, file: str) -> tuple[str, str]:
    """(frames of `file`, the line or lines that name the error), as Python prints them."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return "".join(traceback.format_list(frames))[-8000:], "".join(traceback.format_exception_only(error))[-4000:]


def plain(x: Any) -> Any:
    """x in builtin types alone (a Counter becomes a dict, a numpy number a number); TypeError where that cannot be."""
    if type(x).__module__ == "numpy" and not getattr(x, "shape", None) and hasattr(x, "item"):
        x = x.item()
    if x is None:
        return None
    if isinstance(x, dict):
        return {plain(key): plain(value) for key, value in x.items()}
    for base in SCALARS:
        if isinstance(x, base):
            return base(x)
    for base in COLLECTIONS:
        if isinstance(x, base):
            return base(map(plain, x))
    raise TypeError(f"the function returned a {type(x).__name__}, which is not plain data")


def serve(requests, answers) -> None:
    """The solution's process: the first request defines it, each further one is a call. Ends when it is killed."""
    solve = None
    while True:
        request = pickle.load(requests)  # noqa: S301 (from the judge, which the solution cannot write to)
        try:
            if solve is None:
                stub, code, entry = request
                solve, answer = getattr(define(stub, code, entry), entry), (True, None)
            else:
                answer = (True, plain(solve(*request[0], **request[1])))
        except BaseException as error:
            names = [c.__name__ for c in type(error).__mro__]
            answer = (False, (names, str(error)[:1000], trace(error, "solution.py")))
        pickle.dump(answer, answers)
        answers.flush()


class Plain(pickle.Unpickler):
    """Reads builtin data and looks up no class or function: nothing of the solution's making enters the judge."""

    def find_class(self, module_name: str, global_name: str):
        if (module_name, global_name) == ("builtins", "complex"):
            return complex
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not plain data")


class Unsupported(Exception):
    """The tests want to pass what another process cannot be given."""


def ask(child: int, requests, answers, question: tuple):
    """The answer of the solution's process. What it raised is raised here; a signal that ended it ends us too."""
    try:
        data = pickle.dumps(question)
    except RecursionError:  # no test has such data, but a solution's answer may be handed back to it
        raise ValueError("a value is nested too deeply to be passed on") from None
    except Exception as error:
        raise Unsupported(f"a test passes what is not plain data ({error})") from None
    try:
        requests.write(data)
        requests.flush()
        good, answer = Plain(answers).load()
    except (EOFError, BrokenPipeError):
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):  # its CPU limit, say: the sandbox is to see that
            os.kill(os.getpid(), os.WTERMSIG(status))
        raise SystemExit(f"the solution ended its process with exit code {os.waitstatus_to_exitcode(status)}") from None
    if good:
        return answer
    names, message, seen = answer
    base = next(c for name in names if isinstance(c := getattr(builtins, name, None), type))
    error = type(names[0], (base,), {"__init__": lambda _: None, "__str__": lambda _: message})()
    error.seen = seen  # type: ignore[attr-defined]
    raise error  # of the nearest builtin class, so that a test can expect it


def judge(child: int, requests, answers, job: dict) -> str:
    """The verdict; the traceback goes to stderr. What fails before the solution is loaded is not its fault."""
    tests: dict = {"__name__": "tests"}
    linecache.cache["tests.py"] = (len(job["test"]), None, job["test"].splitlines(keepends=True), "tests.py")
    verdict = "infra_error"
    try:
        exec(job["stub"], tests)
        tests[job["entry"]] = lambda *args, **kwargs: ask(child, requests, answers, (args, kwargs))
        exec(compile(job["test"], "tests.py", "exec"), tests)
        verdict = "fail"
        ask(child, requests, answers, (job["stub"], job["code"], job["entry"]))
        tests["check"](tests[job["entry"]])
        return "pass"
    except BaseException as error:
        frames, last = trace(error, "tests.py")
        inner, last = getattr(error, "seen", ("", last))
        print(f"Traceback (most recent call last):\n{frames}{inner}{last}", end="", file=sys.stderr)
        return "infra_error" if isinstance(error, Unsupported) else verdict


def run_tests() -> None:
    """Fork the solution's process before anything is read, judge, kill it, and only then write the word."""
    (there_in, requests), (answers, there_out) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.close(requests)
        os.close(answers)
        serve(os.fdopen(there_in, "rb"), os.fdopen(there_out, "wb"))
    os.close(there_in)
    os.close(there_out)
    if sys.platform == "linux":
        # PR_SET_DUMPABLE: no process of the same user can read our memory or our files
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    job = json.load(sys.stdin)
    verdict = judge(child, os.fdopen(requests, "wb"), os.fdopen(answers, "rb"), job)
    os.kill(child, signal.SIGKILL)
    with open("result.json", "w", encoding="utf-8") as file:
        file.write(job["words"][verdict])


def run_examples() -> None:
    """Write what each example printed, one by one, so that the one that hangs is known; {"error"} if nothing loads.

    Solution and examples share a process here: the examples are public and decide nothing.
    """
    job, printed = json.load(sys.stdin), []

    def save(data) -> None:
        with open("result.json", "w", encoding="utf-8") as file:
            json.dump(data, file)

    try:
        names = vars(define(job["stub"], job["code"], job["entry"]))
    except BaseException as error:
        save({"error": "".join(trace(error, "solution.py"))})
        return
    save(printed)
    for source in job["examples"]:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                exec(compile(source, "example", "single"), names)
            except BaseException as error:
                out.write("".join(trace(error, "solution.py")))
        printed.append(out.getvalue()[:4000])
        save(printed)
