"""extract_code: published shapes of replies (cases.jsonl), shapes of our own, and hostile text."""

import json
import random
import time
from pathlib import Path

import pytest

from common import MAX_CODE, extract_code

CASES = [json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text("utf-8").splitlines()]
GOOD = "import math\n\ndef run(n):\n    return math.sqrt(n)"
DRAFT = GOOD.replace("sqrt", "cbrt")
BLOCK = f"# EDIT-START\n{GOOD}\n# EDIT-END"
MB = 1_000_000


def stripped(code):
    return code and code.strip("\n")


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "extract"], ids=lambda c: f"case-{c['id']}")
def test_extract_code_handles(case):
    asked, expected = case["input"], case["expected"]
    code, status = extract_code(asked["reply"], asked["entry"], asked["finish_reason"])
    assert stripped(code) == stripped(expected["code"])
    assert status in expected.get("status_any_of", ["ok"])


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "diff"], ids=lambda c: f"case-{c['id']}")
def test_extract_code_refuses_diffs_by_name(case):
    code, status = extract_code(case["input"]["reply"], "run", "stop")
    assert code is None
    assert status in case["expected"]["or_status_any_of"]


FENCED = {
    "plain": f"```\n{GOOD}\n```",
    "info string": f"```Python 3.11 title='x'\n{GOOD}\n```",
    "long fence": f"``````py\n{GOOD}\n``````",
    "tildes": f"~~~python\n{GOOD}\n~~~",
    "no closing fence": f"Here:\n```python\n{GOOD}\n",
    "half closing fence": f"```python\n{GOOD}\n``",
    "closing fence glued on": f"```python\n{GOOD}```",
    "closing fence of another length": f"````python\n{GOOD}\n```\nThat is all, really.",
    "no fence": GOOD,
    "prompt had opened the fence": f"{GOOD}\n```\nIt takes the root.",
    "prompt had opened it, tag in the reply": f"python\n{GOOD}\n```\n",
    "prompt had opened it, corrected later": f"{DRAFT}\n```\nWrong, so:\n```python\n{GOOD}\n```",
    "list item": "1. So:\n   ```python\n" + "\n".join(f"   {line}" for line in GOOD.split("\n")) + "\n   ```",
    "list item with the fence in its first line": f"- ```python\n  {GOOD.replace(chr(10), chr(10) + '  ')}\n  ```",
    "all indented": "```python\n    " + GOOD.replace("\n", "\n    ") + "\n```",
    "carriage returns": f"Yes.\n```python\n{GOOD}\n```\n".replace("\n", "\r\n"),
    "byte order mark": f"\ufeff```python\n\ufeff{GOOD}\n```",
    "thinking": f"<think>\n```python\n{DRAFT}\n```\n</think>\n```python\n{GOOD}\n```",
    "lone end of thinking": f"```python\n{DRAFT}\n```\n</think>\n{GOOD}",
    "last of two": f"```python\n{DRAFT}\n```\nno:\n```python\n{GOOD}\n```",
    "shell after it": f"```python\n{GOOD}\n```\n```bash\npython run.py\n```",
    "an example without the function after it": f"```python\n{GOOD}\n```\n```python\nprint(run(4))\n```",
    "a broken one after it": f"```python\n{GOOD}\n```\n```python\ndef run(n:\n```",
    "no-break spaces": f"```python\n{GOOD.replace('    ', chr(0xA0) * 4)}\n```",
    "zero width": f"```python\n\u200b{GOOD}\n```",
}


@pytest.mark.parametrize("reply", FENCED.values(), ids=FENCED)
def test_extract_code_finds_the_program_with(reply):
    code, status = extract_code(reply, "run", "stop")
    assert (stripped(code), status) == (GOOD, "ok")


MARKED = {
    "bare": BLOCK,
    "in a fence, with the verifier copied below": f"```python\n{BLOCK}\n\nassert run(4) == 2\n```",
    "last of two": f"{BLOCK.replace('sqrt', 'cbrt')}\nBetter:\n{BLOCK}\n",
    "a fenced draft after it": f"{BLOCK}\n```python\n{DRAFT}\n```",
    "indented": "  " + BLOCK.replace("\n", "\n  "),
    "the markers named after it": f"{BLOCK}\nIt stands between `# EDIT-START` and `# EDIT-END`.\n# EDIT-START\n...",
    "an empty pair after it": f"{BLOCK}\n# EDIT-START\n...\n# EDIT-END",
}


@pytest.mark.parametrize("reply", MARKED.values(), ids=MARKED)
@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_extract_code_prefers_a_complete_marked_block(reply, finish_reason):
    assert extract_code(reply, "run", finish_reason) == (BLOCK, "ok")


def test_extract_code_takes_the_fence_inside_the_markers():
    assert extract_code(f"# EDIT-START\n```python\n{GOOD}\n```\n# EDIT-END", "run", "stop") == (GOOD, "ok")


@pytest.mark.parametrize(
    ("reply", "finish_reason", "status"),
    [
        ("", "stop", "no_code"),
        ("", "error", "no_code"),
        ("I cannot help with run.", "stop", "no_code"),
        ("```python\nprint(1)\n```", "stop", "no_code"),
        (f"```python\n{GOOD.replace('def run', 'def other')}\n```", "stop", "no_code"),
        ("```python\ndef run(n:\n```", "stop", "syntax_error"),
        ("```python\ndef f():\n    def run(): pass\n```", "stop", "no_code"),
        (f"```python\n{GOOD}", "length", "truncated"),  # it parses, but who knows what was to follow
        (GOOD, "length", "truncated"),
        (f"<think>\n```python\n{GOOD}\n```", "length", "truncated"),
        (f"<think>\n```python\n{GOOD}\n```", "stop", "no_code"),
        (f"# EDIT-START\n{GOOD}", "length", "truncated"),
        (f"<<<<<<< SEARCH\n{DRAFT}\n=======\n{GOOD}\n>>>>>>> REPLACE", "stop", "unsupported"),
        (f"```diff\n<<<<<<< SEARCH\n{DRAFT}\n=======\n{GOOD}\n>>>>>>> REPLACE\n```", "length", "unsupported"),
        (
            "```diff\n--- a/x.py\n+++ b/x.py\n@@ -1,3 +1,3 @@\n def run(n):\n-    return 1\n+    return 2\n```",
            "stop",
            "unsupported",
        ),
    ],
)
def test_extract_code_says_why_there_is_none(reply, finish_reason, status):
    assert extract_code(reply, "run", finish_reason) == (None, status)


def test_extract_code_keeps_a_closed_block_of_a_truncated_reply():
    assert extract_code(f"```python\n{GOOD}\n```\nNow a faster one:\n```python\ndef run(", "run", "length") == (
        GOOD,
        "ok",
    )
    assert extract_code(f"{GOOD}\n```\nThis function", "run", "length") == (GOOD, "ok")


@pytest.mark.parametrize(
    "code", ["run = abs", "run: int = 3", "class run: pass", "async def run(): pass", "f = run = len"]
)
def test_extract_code_counts_as_a_definition(code):
    assert extract_code(f"```\n{code}\n```", "run", "stop") == (code, "ok")


def test_extract_code_without_an_entry_point_takes_a_program_but_no_word():
    assert extract_code("```python\nprint(input())\n```\nDone", "", "stop") == ("print(input())", "ok")
    assert extract_code("Done", "", "stop") == (None, "no_code")


def test_extract_code_mends_quotes_only_outside_strings_and_only_if_need_be():
    typed = "def run():\n    s = \u201cit\u2019s\u201d  # \u201ckept\u201d\n    return s + '\u201d' + \u2018a\u2019"
    mended = "def run():\n    s = \"it\u2019s\"  # \u201ckept\u201d\n    return s + '\u201d' + 'a'"
    assert extract_code(f"```\n{typed}\n```", "run", "stop") == (mended, "ok")
    fine = "def run():\n    return '\u00a0\u201c\u201d'  # \u2018\u2019"
    assert extract_code(f"```\n{fine}\n```", "run", "stop") == (fine, "ok")


def test_extract_code_keeps_a_fence_inside_a_docstring():
    code = 'def run():\n    """\n    ```\n    run()\n    ```\n    """\n    return 1'
    assert extract_code(f"````python\n{code}\n````", "run", "stop") == (code, "ok")


HOSTILE = {
    "backticks": "`" * MB,
    "tildes": "~" * MB,
    "empty fences": "```\n" * (MB // 4),
    "open fences": "```python\nrun = (\n" * (MB // 18),
    "blank": " " * MB,
    "blank lines": "\n" * (MB // 4),
    "ends of thinking": "</think>" * (MB // 8),
    "open markers": "# EDIT-START\nrun = (\n" * (MB // 21),
    "marked blocks": "# EDIT-START\nrun = (\n# EDIT-END\n" * (MB // 32),
    "open triple quotes": 'run = "' + '\\"""' * (MAX_CODE // 5),
    "open quotes": "run = '" + "\\'" * (MAX_CODE // 3),
    "typographic quotes": "run = " + "\u201c" * (MAX_CODE - 9),
    "parentheses": "run = " + "(" * (MAX_CODE - 9),
    "minus": "run = " + "-" * (MAX_CODE - 9) + "1",
    "attributes": "run = x" + ".a" * (MAX_CODE // 3),
    "sum": "run = 1" + "+1" * (MAX_CODE // 3),
    "lambdas": "run = " + "lambda: " * (MAX_CODE // 9),
    "dictionaries": "run = " + "{1: " * 150,
    "calls": "run = " + "f(" * 150,
    "f-strings": "run = " + 'f"{' * 150,
    "indentation": "\n".join(" " * i + "if run:" for i in range(500)),
    "digits": "run = " + "9" * (MAX_CODE - 9),
    "null": "run = 1\0",
    "surrogate": "run = '\ud800'",
}


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE)
def test_extract_code_neither_crashes_nor_stalls_on(reply, finish_reason):
    begin = time.process_time()
    code, status = extract_code(reply, "run", finish_reason)
    assert time.process_time() - begin < 5
    assert (code is None) == (status != "ok")


def test_extract_code_never_raises_on_shuffled_pieces():
    pieces = [
        "```",
        "~~~",
        "\n",
        "python",
        GOOD,
        BLOCK,
        "# EDIT-START",
        "# EDIT-END",
        "<think>",
        "</think>",
        "  ",
        "\u201c",
        "\0",
        "- ",
    ]
    pick = random.Random(0)
    for _ in range(2000):
        code, status = extract_code("".join(pick.choices(pieces, k=12)), "run", pick.choice(["stop", "length"]))
        assert (code is None) == (status != "ok")
