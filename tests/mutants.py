"""One-edit mutants of the HumanEval solutions: real wrong programs, with the stderr that they really leave.

Run      python tests/mutants.py [humaneval:n] > mutants.jsonl      one line each: id, edit, code, verdict, stderr
Edits    a comparison, an arithmetic operator, a boolean operator, a constant, a condition or a return value changes;
         which one is drawn by the problem's id, so that the same line comes out everywhere
"""

import ast
import json
import random
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def edits(function: ast.FunctionDef) -> list[tuple[ast.AST, str, object]]:
    """(node, field, new value) of each single edit in the body, in source order."""
    found: list[tuple[ast.AST, str, object]] = []
    for statement in function.body[1:] if ast.get_docstring(function) is not None else function.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
                found.append((node, "op", SWAPS[type(node.op)]()))
            elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
                found.append((node, "ops", [SWAPS[type(node.ops[0])](), *node.ops[1:]]))
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                found.append((node, "value", node.value + 1))
            elif isinstance(node, ast.If | ast.While | ast.IfExp):
                found.append((node, "test", ast.UnaryOp(ast.Not(), node.test)))
            elif isinstance(node, ast.Return) and node.value is not None:
                found.append((node, "value", ast.Tuple([node.value], ast.Load())))
    return found


def mutant(problem: dict) -> tuple[str, str]:
    """(program, what was edited)."""
    tree = ast.parse(problem["canonical"])
    bodies = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == problem["entry_point"]]
    node, field, value = random.Random(problem["id"]).choice(edits(bodies[-1]))
    before = ast.unparse(node)
    setattr(node, field, value)
    return ast.unparse(ast.fix_missing_locations(tree)), f"{before} -> {ast.unparse(node)}"


def main(spec: str) -> None:
    import common
    from evaluators import functions

    problems = functions.load_problems(spec)
    made = [mutant(problem) for problem in problems]
    done = common.parallel(
        lambda i: functions.run_tests(problems[i], made[i][0], common.run_program, timeout_s=5),
        ((i, i) for i in range(len(problems))),
    )
    for problem, (code, edit), (verdict, stderr) in zip(problems, made, done.values(), strict=True):
        line = {"id": problem["id"], "edit": edit, "code": code, "verdict": verdict, "stderr": stderr}
        print(json.dumps(line, ensure_ascii=False))
    print(dict(Counter(verdict for verdict, _ in done.values())), file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "humaneval")
