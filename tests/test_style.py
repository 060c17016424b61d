"""What erodes unguarded: line budgets, docstring fields, commands, imports without effects, cores that copy out."""

import ast
import builtins
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
METHODS = {
    "rtv": "rtv",
    "pdr": "pdr",
    "hill_sampling": "hill_sampling",
    "coderescue": "coderescue",
}  # file: core function
# Lines as formatted. Where a number is above what was planned, the reason stands beside it.
BUDGETS = {
    "common.py": 1225,  # what two methods share: chat 430, log 300, sandbox 340, extraction 90; plan: 450
    "rtv.py": 380,
    "pdr.py": 320,
    "hill_sampling.py": 525,  # the paper's eight baselines (110) and `compare` (50) stand beside the loop; plan: 380
    "coderescue.py": 885,  # four subcommands in one file, routers (150) and collection (130) among them; plan: 580
    "weight_search.py": 210,
    "evaluators/__init__.py": 160,  # running a candidate and parsing what it wrote, once for the three tasks
    "evaluators/circles.py": 220,
    "evaluators/sets.py": 220,
    "evaluators/erdos.py": 200,
    "evaluators/functions.py": 280,
    "evaluators/function_runner.py": 190,  # what runs inside the sandbox, apart from what judges outside
    "evaluators/agent.py": 150,
    "evaluators/outcomes.py": 230,  # rates, reports and figures of rtv.py and pdr.py
    "evaluators/swe_bench.py": 240,
    "evaluators/terminal_bench.py": 240,
    "evaluators/harnesses.py": 300,  # subprocess, lock, check and command line of both adapters
    "evaluators/trajectories.py": 225,  # what mini-SWE-agent, Harbor and swebench leave, read strictly, in one place
}
SOURCES = [f for f in BUDGETS if (ROOT / f).exists()]


def functions(path: str) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))) if isinstance(n, ast.FunctionDef)]


def test_style_every_source_file_has_a_budget():
    found = {str(p.relative_to(ROOT)) for folder in (ROOT, ROOT / "evaluators") for p in folder.glob("*.py")}
    assert found == set(BUDGETS)


@pytest.mark.parametrize("path", SOURCES)
def test_style_files_stay_within_their_budget(path):
    assert len((ROOT / path).read_text("utf-8").splitlines()) <= BUDGETS[path]


@pytest.mark.parametrize("path", SOURCES)
def test_style_functions_stay_short(path):
    limits = {"main": 60, METHODS.get(Path(path).stem, ""): 40}
    long = {f.name: (f.end_lineno or 0) - f.lineno + 1 for f in functions(path)}
    assert {name: n for name, n in long.items() if n > limits.get(name, 30)} == {}


@pytest.mark.parametrize("method", METHODS)
def test_style_docstring_has_its_fields(method):
    doc = ast.get_docstring(ast.parse((ROOT / f"{method}.py").read_text("utf-8"))) or ""
    fields = [m[1] for m in re.finditer(r"^([A-Z][a-z]+) {1,}\S", doc, re.M)]
    assert [f for f in ("Paper", "Loop", "Run", "Expect", "Differs") if f not in fields] == []


def copied_out(path: Path, name: str) -> set[str]:
    """Names that stay free once the core, what it calls in its file, its constants and its imports are taken along."""
    tree = ast.parse(path.read_text("utf-8"))
    own: dict[str, ast.AST] = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    for node in tree.body:
        for target in getattr(node, "targets", []) or [getattr(node, "target", None)]:
            if isinstance(target, ast.Name) and target.id.isupper():
                own[target.id] = node
    imported = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None) or ""
            imported |= {
                (a.asname or a.name).split(".")[0] for a in node.names if module != "common" and a.name != "common"
            }
    known, todo, free = set(dir(builtins)) | imported, [name], set()
    while todo:
        current = todo.pop()
        known.add(current)
        node = own[current]
        bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del))}
        bound |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        bound |= {n.name for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.ExceptHandler)) and n.name}
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and n.id not in known | bound:
                todo.append(n.id) if n.id in own else free.add(n.id)
    return free


@pytest.mark.parametrize("method", METHODS)
def test_style_core_copies_out_alone(method):
    assert copied_out(ROOT / f"{method}.py", METHODS[method]) == set()


def test_style_core_check_finds_what_is_free(tmp_path):
    (tmp_path / "x.py").write_text(
        "import common\nfrom math import pi\n\ndef x(a):\n    return common.sha256(a) + pi + stray\n"
    )
    assert copied_out(tmp_path / "x.py", "x") == {"common", "stray"}


@pytest.mark.parametrize("module", ["common", *METHODS])
def test_style_import_does_nothing_and_needs_no_engine(module, tmp_path):
    code = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    code += "for m in ('vllm', 'torch', 'matplotlib', 'requests', 'tqdm'): sys.modules[m] = None\n"
    ran = subprocess.run([sys.executable, "-c", f"{code}import {module}"], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr, list(tmp_path.iterdir())) == (0, "", "", [])


@pytest.mark.parametrize("script", [f"{m}.py" for m in METHODS] + ["evaluators/circles.py", "evaluators/swe_bench.py"])
def test_style_help_answers_at_once_and_is_the_docstring(script):
    ran = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=10)
    doc = ast.get_docstring(ast.parse((ROOT / script).read_text("utf-8"))) or ""
    assert ran.returncode == 0
    assert doc.splitlines()[0] in ran.stdout


def commands(text: str) -> list[list[str]]:
    """argv of every documented `python FILE.py ...` line; continuations joined, substitutions and comments dropped."""
    text = re.sub(r"\\\n\s*", " ", text)
    found = []
    for line in re.findall(
        r"^(?:Run|Input|Source|\s|\||`)*(?:\w+=\S+ )*(?:[\w./]*/)?python ([\w/]+\.py[^\n`|]*)", text, re.M
    ):
        line = re.sub(r'"?\$\([^)]*\)"?', "SUBSTITUTED", re.sub(r"\s+#.*|  +\(.*|   +.*|\s&&.*|\s[>:].*", "", line))
        found.append(shlex.split(line.replace("...", "")))
    return found


def documents() -> list[Path]:
    return [ROOT / "README.md", *[ROOT / f for f in SOURCES], *sorted((ROOT / "tests").glob("*.py"))]


def test_style_every_documented_command_parses():
    total = 0
    for path in documents():
        text = path.read_text("utf-8")
        for argv in commands(text if path.suffix == ".md" else ast.get_docstring(ast.parse(text)) or ""):
            total += 1
            script = ROOT / argv[0]
            assert script.exists(), f"{path.name}: {argv}"
            if script.parent == ROOT:
                try:
                    importlib.import_module(script.stem).parse(
                        [a for a in argv[1:] if not re.fullmatch(r"\[.*\]?|.*\]", a)]
                    )
                except SystemExit:
                    pytest.fail(f"{path.name} documents a command that does not parse: {argv}")
    assert total >= len(METHODS)


def test_readme_examples_to_copy_run():
    """Every python block of the README, as it stands, in a process that has the repository on its path."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    ran = [subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True) for block in blocks]
    assert [r.stderr for r in ran if r.returncode] == []
    said = ["2 3 0", "round 1 keeps {'task-1': [3]}", "iteration 1 priors [0, 1] kept {'task-1': [0]}", "[1 2 2 0 0]"]
    assert [line in r.stdout.split("\n") for line, r in zip(said, ran, strict=True)] == [True] * len(said)


def test_readme_test_commands_select_tests():
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    found = re.findall(r"`python -m pytest (tests/\w+\.py) -k (\w+)`", text)
    names = {path: [f.name for f in functions(path)] for path, _ in found}
    assert len(found) >= 8
    assert [(path, word) for path, word in found if not any(word in name for name in names[path])] == []


def test_readme_names_only_logs_that_are_there():
    named = re.findall(r"`(runs/[\w-]+)` \|$", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert len(named) >= 5
    assert [folder for folder in named if not (ROOT / folder).is_dir()] == []
