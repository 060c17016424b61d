"""CodeRescue: the calibration against theory, brute force and published numbers; the router; the pipeline."""

import argparse
import ast
import contextlib
import itertools
import json
import math
import re
import subprocess
import sys
import time
import types
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import coderescue
import common
import make_rescue_table
import mutants
from fake_server import FakeServer

OPTIONS = {"bound": "crc", "c_min": 0.0, "delta": 0.05}
CASES = {case["id"]: case for case in map(json.loads, (Path(__file__).parent / "cases.jsonl").open(encoding="utf-8"))}


def calibrate(s, c, r, budgets, c_max, **options):
    s, c, r = (np.array(x, float) for x in (s, c, r))
    return list(coderescue.coderescue(s, c, r, list(budgets), **OPTIONS | options | {"c_max": c_max}))


def run_script(argv, folder):
    """The script as a user runs it, in this folder."""
    command = [sys.executable, str(Path(coderescue.__file__).resolve()), *argv]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def exact_choice(s, c, lam):
    return min(range(len(s)), key=lambda a: (-(s[a] - lam * c[a]), c[a], a))


def brute_force(s, c, r, budget, c_max):
    """(lambda, actions) in fractions: all pairwise breakpoints, supremum over larger lambdas, ties to the cheaper."""
    s, c, r = ([[Fraction(x) for x in row] for row in table] for table in (s, c, r))
    n = len(s)
    lambdas = {Fraction(0)}
    for x, y in zip(s, c, strict=True):
        pairs = itertools.permutations(range(len(x)), 2)
        lambdas |= {(x[i] - x[j]) / (y[i] - y[j]) for i, j in pairs if y[i] > y[j] and x[i] > x[j]}
    lambdas = sorted(lambdas)
    best, worst = None, [Fraction(-(10**9))] * n
    for lam in reversed(lambdas):
        worst = [max(w, z[exact_choice(x, y, lam)]) for w, x, y, z in zip(worst, s, c, r, strict=True)]
        if (sum(worst) + Fraction(c_max)) / (n + 1) <= Fraction(budget):
            best = lam
    return best, None if best is None else [exact_choice(x, y, best) for x, y in zip(s, c, strict=True)]


def test_crc_agrees_with_brute_force_over_all_breakpoints():
    rng = np.random.default_rng(0)
    mismatches, feasible = 0, 0
    for _ in range(1000):
        n = int(rng.integers(1, 7))
        s = rng.integers(0, 6, (n, 3)) / 8  # ties and duplicates everywhere
        c = rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0, 2.0, 6.0], (n, 3))
        r = c if rng.random() < 0.5 else rng.choice([0.0, 1.0, 3.0], (n, 3))
        budget = float(rng.integers(-2, 30)) / 4
        (found,) = calibrate(s, c, r, [budget], 6.0)
        lam, actions = brute_force(s, c, r, budget, 6.0)
        feasible += lam is not None
        if lam is None or found["lambda_hat"] is None:
            mismatches += not (lam is None and found["status"] == "infeasible")
        else:
            mismatches += not (
                math.isclose(found["lambda_hat"], lam, abs_tol=1e-15)
                and coderescue.choose(s, c, found["lambda_hat"]).tolist() == actions
            )
    assert (mismatches, 300 < feasible < 950) == (0, True)


def sound_calibration(core) -> bool:
    """Whether this module's calibration gives the right lambdas, costs, actions and refusals on small exact tables."""
    rng = np.random.default_rng(7)
    for _ in range(30):
        n = int(rng.integers(1, 6))
        s, c = rng.integers(0, 5, (n, 3)) / 8, rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0, 2.0, 6.0], (n, 3))
        r = c if rng.random() < 0.5 else rng.choice([0.0, 1.0, 3.0], (n, 3))
        budgets = [float(b) / 4 for b in range(-2, 28, 3)]
        options = {"c_min": -1.0, "c_max": 6.0, "delta": 0.05}
        cheapest = r[np.arange(n), core.choose(s, c, math.inf)]
        for found in core.coderescue(s, c, r, budgets, bound="crc", **options):
            if found["min_budget_musd"] != pytest.approx((cheapest.sum() + 6) / (n + 1), rel=1e-12):
                return False
            lam, actions = brute_force(s, c, r, found["budget_musd"], 6.0)
            if (lam is None) != (found["status"] == "infeasible"):
                return False
            if lam is None:
                continue
            chosen = core.choose(s, c, found["lambda_hat"])
            if found["lambda_hat"] != float(lam) or chosen.tolist() != actions:
                return False
        (first,) = core.coderescue(s, c, c, [99.0], bound="hoeffding", **options)
        eps = 7.0 * math.sqrt(math.log(20.0) / (2 * n))
        if first["certified_musd"] != pytest.approx(first["calibration_musd"] + eps, rel=1e-12):
            return False
    c = rng.integers(1, 9, (4000, 3)) / 1.0
    t, a = core.envelope(rng.random((4000, 1)) * c, c)  # one breakpoint each, but for rounding
    never = t[:, :-1] == t[:, 1:]
    return bool((t[:, :-1] <= t[:, 1:]).all() and (a[:, :-1] == a[:, 1:])[never].all()) and refuses(core)


def refuses(core) -> bool:
    """Whether it refuses scores and costs that are not there, and costs beyond their bounds; and nothing else."""
    ok, nan = [[0.1, 0.2, 0.7]], [[0.1, math.nan, 0.7]]
    cost = [[1.0, 2.0, 7.0]]
    settings = [(nan, cost, cost, "crc", 0.0, 7.0), (ok, nan, cost, "crc", 0.0, 7.0), (ok, cost, nan, "crc", 0.0, 7.0)]
    settings += [(ok, cost, cost, "crc", 0.0, 6.9), (ok, cost, cost, "hoeffding", 1.1, 7.0)]
    settings += [(ok, cost, cost, "crc", 0.0, math.nan), ([], [], [], "crc", 0.0, 7.0)]
    for s, c, r, bound, c_min, c_max in settings:
        s, c, r = (np.array(x, float).reshape(-1, 3) for x in (s, c, r))
        with contextlib.suppress(ValueError):
            list(core.coderescue(s, c, r, [9.0], bound=bound, c_min=c_min, c_max=c_max, delta=0.05))
            return False
    s, c = np.array(ok), np.array(cost)
    found = core.coderescue(s, c, c, [9.0], bound="crc", c_min=1.0, c_max=7.0, delta=0.05)
    return [x["status"] for x in found] == ["ok"]


def test_crc_mutants_of_the_calibration_are_caught():
    """Each single edit of the three functions (a comparison, an operator, a constant) gives a wrong result."""
    source = Path(coderescue.__file__).read_text("utf-8")
    assert sound_calibration(coderescue)
    alive, killed = [], 0
    for name in ("envelope", "choose", "coderescue"):
        functions = {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)}
        for k in range(len(mutants.edits(functions[name]))):
            tree = ast.parse(source)
            tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
            (function,) = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == name]
            node, field, value = mutants.edits(function)[k]
            before = ast.unparse(node)
            setattr(node, field, value)
            module = types.ModuleType("mutant")
            module.__file__ = coderescue.__file__
            exec(compile(ast.fix_missing_locations(tree), "mutant", "exec"), module.__dict__)
            edit = f"{name} line {getattr(node, 'lineno', 0) - function.lineno}: {before} -> {ast.unparse(node)}"
            try:
                with np.errstate(all="ignore"):
                    right = sound_calibration(module)
            except coderescue.BAD:
                right = False
            alive += [edit] if right else []
            killed += not right
    assert alive == []
    assert killed > 30


def population(name: str, rng: np.random.Generator, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
    """m rows (s, c, r, c_max, B) of one population; B lies between the cheapest and the best-scored actions' mean."""
    s = rng.random((m, 3))
    c = rng.exponential([1, 2, 7], (m, 3)).clip(0, 12)
    if name == "realised":
        return s, c, c, 12.0, 2.0
    if name == "ties":
        c = np.tile([1.0, 2.0, 7.0], (m, 1))
        return rng.integers(0, 3, (m, 3)) / 2, c, c, 7.0, 2.0
    if name == "zero costs":
        c = rng.choice([0.0, 0.0, 3.0], (m, 3))
        return s, c, c, 3.0, 0.5
    if name == "negative costs":
        c = rng.choice([-2.0, 0.0, 5.0], (m, 3))
        return s, c, c, 5.0, 0.4
    if name == "rare huge":
        c = np.where(rng.random((m, 3)) < 0.005, 100.0, rng.random((m, 3)))
        return s, c, c, 100.0, 0.6
    return s, np.tile([1.0, 2.0, 7.0], (m, 1)), c[:, [1, 0, 2]], 12.0, 3.0  # what is paid is not what was planned with


POPULATIONS = ["realised", "ties", "zero costs", "negative costs", "rare huge", "mean against realised"]


def paid(
    name: str, n: int, *, bound: str = "crc", own_c_max: bool = False, draws: int = 2000
) -> tuple[float, float, float]:
    """(mean cost of fresh rows under the calibrated policy, its s.e., B); infeasible draws pay 0."""
    rng = np.random.default_rng([n, POPULATIONS.index(name)])
    fresh = 50
    s, c, r, c_max, B = population(name, rng, draws * (n + fresh))
    B += 0 if own_c_max or name != "rare huge" else c_max / (n + 1)  # below that nothing can be certified
    costs, certified = [], 0
    for k in range(draws):
        start, end = k * (n + fresh), (k + 1) * (n + fresh)
        rows, new = slice(start, start + n), slice(start + n, end)
        (found,) = calibrate(s[rows], c[rows], r[rows], [B], r[rows].max() if own_c_max else c_max, bound=bound)
        ok = found["status"] == "ok"
        certified += ok
        costs.append(
            r[new][np.arange(fresh), coderescue.choose(s[new], c[new], found["lambda_hat"])].mean() if ok else 0
        )
    assert certified > (0.3 if own_c_max else 0.7) * draws  # else the mean would be low for want of a policy
    return float(np.mean(costs)), float(np.std(costs) / draws**0.5), B


@pytest.mark.parametrize("n", [20, 50, 360])
@pytest.mark.parametrize("name", POPULATIONS)
def test_crc_mean_cost_stays_within_the_budget(name, n):
    mean, se, B = paid(name, n)
    assert mean - 3 * se <= B


def test_crc_uncorrected_rule_exceeds_the_budget():
    mean, se, B = paid("realised", 20, bound="none")
    assert mean - 3 * se > B


def test_crc_largest_observed_cost_is_no_c_max():
    mean, se, B = paid("rare huge", 20, own_c_max=True)
    assert mean - 3 * se > B


def test_crc_first_feasible_lambda_without_the_supremum_would_exceed_the_budget():
    """Paid costs fall, then rise with lambda: a row charged at lambda alone would be certified too low."""
    s, c, r = [[0.0, 0.5, 1.0]] * 4, [[1.0, 2.0, 3.0]] * 4, [[9.0, 0.0, 5.0]] * 4
    (found,) = calibrate(s, c, r, [6.0], 9.0)
    assert found["status"] == "infeasible"
    assert found["min_budget_musd"] == 9.0


def test_case_80_budgets_lambdas_and_ties():
    case = CASES[80]["input"]
    s = np.array([[row["p"][a] for a in coderescue.ACTIONS] for row in case["calibration"]])
    c = np.tile([case["action_cost"][a] for a in coderescue.ACTIONS], (len(s), 1))
    for found in calibrate(s, c, c, case["budgets"], 7.0, bound="none"):
        want = CASES[80]["expected"][str(found["budget_musd"])]
        if found["status"] == "infeasible":
            assert want == {"feasible": False}
            continue
        low, high = want.get("lambda_between") or [want["lambda"]] * 2
        assert low <= found["lambda_hat"] <= high
        assert found["calibration_musd"] == want["mean_cost"]
        chosen = coderescue.choose(s, c, found["lambda_hat"])
        assert [coderescue.ACTIONS[k] for k in chosen] == want.get("actions", ["escalate"] * 4)
        (corrected,) = calibrate(s, c, c, [found["budget_musd"]], 7.0)
        assert corrected["lambda_hat"] is None or corrected["lambda_hat"] >= found["lambda_hat"]
    costs = [c[np.arange(4), coderescue.choose(s, c, lam)].mean() for lam in np.linspace(0, 0.2, 400)]
    assert costs == sorted(costs, reverse=True)


def test_envelope_ties_go_to_the_cheaper_action_at_every_breakpoint():
    rng = np.random.default_rng(1)
    s, c = rng.random((2000, 3)), rng.random((2000, 3)) * 9
    t, a = coderescue.envelope(s, c)
    dear = plain = 0
    for i in range(len(s)):
        for k in (1, 2):
            if np.isfinite(t[i, k]):
                dear += coderescue.choose(s[i : i + 1], c[i : i + 1], t[i, k])[0] != a[i, k]
                plain += (s[i] - t[i, k] * c[i]).argmax() != a[i, k]
    assert dear == 0
    assert plain > 100  # what a plain argmax gets wrong by rounding


def test_crc_budget_equal_to_the_least_certifiable_one_is_feasible():
    rng = np.random.default_rng(2)
    s, c = rng.random((37, 3)), rng.random((37, 3))
    (found,) = calibrate(s, c, c, [0.0], 1.0)
    assert found["status"] == "infeasible"
    (again,) = calibrate(s, c, c, [found["min_budget_musd"]], 1.0)
    assert again["status"] == "ok"


@pytest.mark.parametrize(
    ("s", "c", "c_max", "message"),
    [
        ([[0.1, 0.2, 0.3]], [[1.0, 2.0, 7.0]], 6.0, "c_max"),
        ([[0.1, 0.2, 0.3]], [[1.0, math.nan, 7.0]], 7.0, "finite"),
        (np.empty((0, 3)), np.empty((0, 3)), 7.0, "0 calibration rows"),
    ],
)
def test_crc_refuses_what_breaks_its_conditions(s, c, c_max, message):
    with pytest.raises(ValueError, match=message):
        calibrate(s, c, c, [3.0], c_max)


def test_crc_100_000_rows_take_under_two_seconds():
    rng = np.random.default_rng(3)
    s, c = rng.random((100_000, 3)), rng.exponential([1, 2, 7], (100_000, 3)).clip(0, 60)
    start = time.process_time()
    found = calibrate(s, c, c, [1.5, 2.0, 2.5, 3.0, 4.0], 60.0)
    assert time.process_time() - start < 2
    assert [row["status"] for row in found] == ["ok"] * 5


@pytest.fixture(scope="module")
def published():
    folder = Path(__file__).resolve().parents[2] / "shared" / "data" / "coderescue"
    if not folder.exists():
        pytest.skip("published data not at shared/ beside the checkout")
    return folder


def tables(folder, out, **options):
    """Paths of the calibration and the test table, and their arrays."""
    made = make_rescue_table.convert(folder, **{"scores": "router", "fill_apps": False, "unit_costs": False} | options)
    for name, rows in made.items():
        coderescue.write_lines(out / f"{name}.jsonl", rows)
    paths = ["--calibration", str(out / "calibration.jsonl"), "--test", str(out / "test.jsonl")]
    return paths, {name: coderescue.arrays(rows) for name, rows in made.items()}


def result(argv, run, code=0):
    """(the budget lines by contender, the result line) of a calibrate run."""
    assert coderescue.main(["calibrate", *argv, "--run", str(run)]) == code
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").strip().split("\n")]
    return {(x["unit"][0], x["budget_musd"]): x for x in lines if x["event"] == "budget"}, lines[-1]


def test_published_unit_cost_fixtures_are_reproduced(published, tmp_path):
    fixtures = json.loads((published / "fixtures.json").read_text("utf-8"))["unit_cost_hoeffding"]
    paths, _ = tables(published, tmp_path, unit_costs=True)
    options = ["--c-max-musd", "13", "--c-min-musd", "2", "--bound", "hoeffding", "--cost", "realised"]
    budgets = [str(fixture["B"]) for fixture in fixtures]
    lines, _ = result([*paths, *options, "--budget-musd", *budgets], tmp_path / "run")
    for fixture in fixtures:
        line = lines["router", fixture["B"]]
        got = [line[k] for k in ("lambda_hat", "calibration_musd", "mean_cost_musd", "solve_rate_ungraded_failed")]
        want = [fixture[k] for k in ("lam", "calib_cost", "test_cost", "test_solve")]
        assert got == pytest.approx(want, abs=1e-12)


def test_published_usd_fixtures_are_reproduced(published, tmp_path):
    fixtures = json.loads((published / "fixtures.json").read_text("utf-8"))["usd"]
    paths, _ = tables(published, tmp_path)
    budgets = [str(fixture["B_musd"]) for fixture in fixtures]
    options = ["--cost", "realised", "--c-max-musd", "38.785", "--budget-musd", *budgets]
    lines, _ = result([*paths, *options], tmp_path / "run")
    for fixture in fixtures:
        line = lines["router", fixture["B_musd"]]
        got = [line["calibration_musd"], line["mean_cost_musd"], line["solve_rate_ungraded_failed"]]
        want = [fixture["calib_cost_usd"] * 1e3, fixture["test_cost_usd"] * 1e3, fixture["test_solve"]]
        assert got == pytest.approx(want, abs=1e-12)
        # at B = 2 rounding makes the published scan miss an exact tie and take the next breakpoint, at the same cost
        assert line["lambda_hat"] <= fixture["lam"] / 1e3 + 1e-12
        assert fixture["B_musd"] == 2 or line["lambda_hat"] == pytest.approx(fixture["lam"] / 1e3, abs=1e-12)


ALWAYS = [(True, [1.2359, 1.5894, 7.2238]), (False, [1.2338, 1.5869, 7.2201])]  # three rows have no cost


@pytest.mark.parametrize(("fill", "costs"), ALWAYS)
def test_published_always_rows_are_reproduced(published, tmp_path, capsys, fill, costs):
    _, arrays = tables(published, tmp_path, fill_apps=fill)
    rows = coderescue.fixed_policies(arrays["test"])
    assert round(rows["always reflect"]["solve_rate"] * 360) == 99
    assert round(rows["always replan"]["solve_rate"] * 360) == 163
    assert [round(rows[f"always {a}"]["mean_cost_musd"], 4) for a in coderescue.ACTIONS] == costs
    coderescue.show(rows)
    assert ("cost over 357 of 360" in capsys.readouterr().out) is not fill


LEAK = {  # (scores, --cost): (solve rate as failed, m$); the facts' table is within one standard error, .026
    ("router", "realised"): (0.717, 2.61),
    ("shares", "realised"): (0.605, 2.65),
    ("router", "mean"): (0.622, 2.40),
    ("shares", "mean"): (0.453, 1.59),
}


@pytest.mark.parametrize(("scores", "cost"), LEAK)
def test_published_leak_is_reproduced_and_said(published, tmp_path, capsys, scores, cost):
    """On the column "as failed": where escalate was not run its published outcome is "not run", here null."""
    paths, _ = tables(published, tmp_path, scores=scores)
    options = ["--cost", cost, "--c-max-musd", "38.785", "--budget-musd", "2.56"]
    lines, _ = result([*paths, *options], tmp_path / "run")
    line = lines["router", 2.56]
    assert (round(line["solve_rate_ungraded_failed"], 3), round(line["mean_cost_musd"], 2)) == LEAK[scores, cost]
    said = capsys.readouterr().out
    assert "escalate is imputed in 191 of 355 rows" in said
    assert "another action solves 100 % of the rows, elsewhere 0 %" in said
    assert ("LEAK" in said) == (cost == "realised")
    assert "guaranteed approximately: the mean cost of each ok line of the router" in said
    # the constant scores of the router's own means, printed beside: far above always-replan only where costs are seen
    assert (lines["constant scores", 2.56]["solve_rate_ungraded_failed"] > 0.54) == (cost == "realised")


def test_published_always_escalate_lacks_the_passes_that_were_not_shipped(published, tmp_path):
    _, arrays = tables(published, tmp_path)
    found = coderescue.fixed_policies(arrays["test"])["always escalate"]
    run = 360 - found["ungraded"]
    assert round(found["solve_rate_ungraded_failed"] * 360) == 185  # .514: as the rows were shipped
    assert (found["solve_rate"], run) == (1.0, 185)  # where it is known to have been run it passed: a selection
    assert round((185 + 62) / 360, 3) == 0.686  # the paper's number has 62 passes more
    sets = coderescue.success_sets(arrays["test"]["solved"])
    assert sets == "S(x) of 360 rows: both 0.078, escalate only 0.436, cheap, escalate not known 0.486"


def test_published_problems_in_both_splits_are_refused(published, tmp_path):
    made = make_rescue_table.convert(published, scores="router", fill_apps=True, unit_costs=False)
    for name, rows in made.items():
        by_id = {row["id"].split("@")[0]: row for row in rows}
        coderescue.write_lines(tmp_path / name, [row | {"id": i} for i, row in by_id.items()])
    argv = ["calibrate", "--calibration", str(tmp_path / "calibration"), "--test", str(tmp_path / "test")]
    with pytest.raises(common.UserError, match="2 ids are in both tables"):
        coderescue.main([*argv, "--budget-musd", "3", "--c-max-musd", "40"])


def toy_table(n: int, seed: int, **more) -> list[dict]:
    """Failures whose stderr tells what rescues them."""
    rng = np.random.default_rng(seed)
    rows = []
    for k in range(n):
        kind = int(rng.integers(3))
        words = ["name 'math' is not defined", "assert f(3) == 4 wrong answer", "time limit recursion depth"][kind]
        solved = {a: bool(j == kind or j == 2) for j, a in enumerate(coderescue.ACTIONS)}
        row = {"id": f"p{seed}/{k}", "problem": f"problem {seed} number {k}", "source": "toy", "difficulty": str(k % 2)}
        row |= {"verdict": "fail", "stderr": words, "scores": {}, "imputed": [], "solved": solved, "c_max_musd": 20.0}
        costs = (rng.random(3) * [1, 1, 4] + [1, 1.5, 6]).tolist()
        rows.append(row | {"cost_musd": dict(zip(coderescue.ACTIONS, costs, strict=True))} | more)
    return rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    coderescue.write_lines(folder / "table.jsonl", toy_table(400, 0))
    assert coderescue.main(["train", "--table", str(folder / "table.jsonl"), "--out", str(folder)]) == 0
    return folder


def argv_of(folder):
    return ["--calibration", str(folder / "calibration.jsonl"), "--test", str(folder / "test.jsonl")]


@pytest.mark.parametrize(
    ("choice", "code", "status", "cost"),
    [("exit", 3, "infeasible", None), ("abstain", 0, "abstain", 0.0), ("cheapest", 0, "no guarantee", 1.5)],
)
def test_calibrate_infeasible_budget_is_said_after_all_lines(trained, tmp_path, capsys, choice, code, status, cost):
    argv = [*argv_of(trained), "--budget-musd", "0.5", "3", "--on-infeasible", choice]
    _, last = result(argv, tmp_path, code)
    assert [row["status"] for row in last["rows"]] == [status, "ok"]
    assert last["rows"][0]["lambda_hat"] is None
    assert last["rows"][0]["mean_cost_musd"] == (cost if not cost else pytest.approx(cost, abs=0.2))
    assert list(last["rows"][1]) == ["budget_musd", "status", "lambda_hat", "solve_rate", "mean_cost_musd"]
    out = capsys.readouterr().out
    assert "the least budget that can be certified here is" in out
    assert out.count("guaranteed: the mean cost of each ok line of the router is at most its B, in expectation") == 1
    assert "warning" not in out


def test_calibrate_replay_recomputes_and_names_what_was_changed(trained, tmp_path):
    with contextlib.chdir(trained):  # the log knows tables by relative paths
        result([*argv_of(Path()), "--budget-musd", "3", "--plot"], tmp_path)
        assert (tmp_path / "figure.png").stat().st_size > 5000
        assert coderescue.main(["calibrate", "--run", str(tmp_path), "--replay"]) == 0
    log = tmp_path / "log.jsonl"
    log.write_text(
        log.read_text("utf-8").replace('"status": "ok", "lambda_hat": 0.', '"status": "ok", "lambda_hat": 1.')
    )
    with contextlib.chdir(trained):
        assert coderescue.main(["calibrate", "--run", str(tmp_path), "--replay"]) == 1


def test_calibrate_means_of_the_calibration_rows_are_called_approximate(tmp_path, capsys):
    rows = toy_table(60, 1, scores={"reflect": 0.3, "replan": 0.3, "escalate": 0.4})
    for name, part in (("calibration", rows[:30]), ("test", rows[30:])):
        coderescue.write_lines(tmp_path / f"{name}.jsonl", part)
    result([*argv_of(tmp_path), "--budget-musd", "4"], tmp_path / "run")
    out = capsys.readouterr().out
    assert "warning: no mean_cost_musd from training rows" in out
    assert "guaranteed approximately: the mean cost" in out
    result([*argv_of(tmp_path), "--budget-musd", "4", "--bound", "none"], tmp_path / "none")
    assert "guaranteed: nothing;" in capsys.readouterr().out


def test_calibrate_imputed_costs_make_the_guarantee_approximate(trained, tmp_path, capsys):
    for name in ("calibration", "test"):
        rows = coderescue.read_table(str(trained / f"{name}.jsonl"))
        coderescue.write_lines(tmp_path / f"{name}.jsonl", [rows[0] | {"imputed": ["escalate"]}, *rows[1:]])
    result([*argv_of(tmp_path), "--budget-musd", "4"], tmp_path / "run")
    assert "guaranteed approximately: the mean cost" in capsys.readouterr().out


def test_calibrate_success_sets_count_rows_without_a_cost(trained, tmp_path, capsys):
    coderescue.write_lines(tmp_path / "calibration.jsonl", coderescue.read_table(str(trained / "calibration.jsonl")))
    rows = coderescue.read_table(str(trained / "test.jsonl"))
    none = dict.fromkeys(coderescue.ACTIONS)
    solved = dict.fromkeys(coderescue.ACTIONS, False)
    rows = [
        rows[0] | {"cost_musd": none, "solved": solved},
        *[row | {"solved": solved | {"escalate": True}} for row in rows[1:4]],
    ]
    coderescue.write_lines(tmp_path / "test.jsonl", rows)
    result([*argv_of(tmp_path), "--budget-musd", "9", "--cost", "realised"], tmp_path / "run")
    assert "S(x) of 4 rows: escalate only 0.750, none 0.250\n" in capsys.readouterr().out


def test_calibrate_success_sets_tell_what_is_not_known():
    nan = math.nan
    solved = np.array(
        [[1, 0, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0], [1, nan, nan], [nan, 0, 1], [0, 0, nan], [1, nan, 0]]
    )
    assert coderescue.success_sets(solved) == (
        "S(x) of 8 rows: cheap only 0.250, both 0.125, escalate only 0.125, none 0.125, "
        "cheap, escalate not known 0.125, not known 0.250"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"c_max_musd": None}, "--c-max-musd"),
        ({"c_max_musd": 2.0}, "above c_max"),
        ({"scores": {}}, "no scores"),
        ({"scores": {"reflect": math.nan}}, "line 1: .*scores has nan"),
        ({"solved": {"pray": True}}, "solved has other keys"),
        ({"cost_musd": {"reflect": None}}, "has the costs of all three"),
    ],
)
def test_calibrate_refuses_tables_that_cannot_carry_a_guarantee(tmp_path, change, message):
    scores = {"reflect": 0.3, "replan": 0.3, "escalate": 0.4}
    rows = [row | {"scores": scores} | change for row in toy_table(20, 2)]
    for name, part in (("calibration", rows[:10]), ("test", rows[10:])):
        coderescue.write_lines(tmp_path / f"{name}.jsonl", part)
    with pytest.raises(common.UserError, match=message):
        coderescue.main(["calibrate", *argv_of(tmp_path), "--budget-musd", "4"])


def test_calibrate_refuses_one_problem_under_two_ids(tmp_path):
    rows = [row | {"scores": {"reflect": 0.3, "replan": 0.3, "escalate": 0.4}} for row in toy_table(20, 2)]
    rows[15]["problem"] = rows[3]["problem"] = "the same"
    for name, part in (("calibration", rows[:10]), ("test", rows[10:])):
        coderescue.write_lines(tmp_path / f"{name}.jsonl", part)
    with pytest.raises(common.UserError, match="1 problem texts are in both tables, as 'the same'"):
        coderescue.main(["calibrate", *argv_of(tmp_path), "--budget-musd", "4"])


def test_calibrate_counts_ungraded_cells_both_ways():
    rows = [
        row | {"solved": {"reflect": k % 2 == 0 or None, "replan": False, "escalate": True}}
        for k, row in enumerate(toy_table(10, 3))
    ]
    found = coderescue.fixed_policies(coderescue.arrays(rows))["always reflect"]
    assert (found["solve_rate"], found["solve_rate_ungraded_failed"], found["ungraded"]) == (1.0, 0.5, 5)


def refused(argv, capsys):
    """What the script says in one line, with exit code 2, as `common.entry` runs it."""
    with pytest.raises(SystemExit) as e:
        common.entry(lambda: coderescue.main([str(a) for a in argv]))
    said = capsys.readouterr().err
    assert (e.value.code, said.count("\n")) == (2, 1), said
    return said


GOOD = {"id": "x", "problem": "p", "source": "s", "verdict": "fail", "stderr": "", "imputed": [], "c_max_musd": 9.0}
GOOD |= {
    key: dict.fromkeys(coderescue.ACTIONS, v) for key, v in (("scores", 0.3), ("cost_musd", 1.0), ("solved", True))
}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "'list' object"),
        ("3", "'int' object"),
        ({"id": None}, "id is no text"),
        ({"id": 7}, "id is no text"),
        ({"stderr": None}, "stderr is no text"),
        (
            {"cost_musd": {"reflect": "1.0"}},
            "cost_musd has '1.0'",
        ),
        ({"cost_musd": {"reflect": True}}, "cost_musd has True"),
        ({"cost_musd": {"reflect": 1e999}}, "cost_musd has inf"),
        ({"cost_musd": {"reflect": 10**400}}, "OverflowError"),
        ({"scores": [0.1, 0.2, 0.7]}, "'list' object"),
        ({"scores": {"pray": 1.0}}, "scores has other keys"),
        ({"solved": {"reflect": 0.5}}, "solved has 0.5"),
        ({"mean_cost_musd": {"reflect": "a"}}, "TypeError"),
        ({"c_max_musd": "9"}, "TypeError"),
        ({"c_max_musd": math.nan}, "not finite"),
        ({"mean_cost_musd": {"reflect": math.inf}}, "not finite"),
        ({"imputed": None}, "TypeError"),
        ({"imputed": ["pray"]}, "imputed names others"),
        (GOOD | {"id": "first"}, "more than one row has the id 'first'"),
    ],
)
@pytest.mark.parametrize("command", ["calibrate", "train"])
def test_tables_bad_row_is_named_before_anything_is_written(tmp_path, capsys, line, message, command):
    table, run = tmp_path / "table.jsonl", tmp_path / "run"
    text = line if isinstance(line, str) else json.dumps(GOOD | line)
    table.write_text(json.dumps(GOOD | {"id": "first"}) + "\n\n" + text + "\n", "utf-8")
    argv = {"calibrate": ["--calibration", table, "--test", table, "--budget-musd", 3, "--run", run]}
    argv["train"] = ["--table", table, "--out", run]
    said = refused([command, *argv[command]], capsys)
    assert message in said
    assert "table.jsonl, line 3: " in said or "more than one" in message
    assert not run.exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--budget-musd", "nan"], "--budget-musd"),
        (["--budget-musd", "inf"], "--budget-musd"),
        (["--budget-musd", "3", "-1"], "--budget-musd"),
        (["--budget-musd", "3", "--c-max-musd", "nan"], "--c-max-musd nan"),
        (["--budget-musd", "3", "--c-min-musd", "nan"], "--c-min-musd nan"),
        (["--budget-musd", "3", "--delta", "0"], "--delta 0.0"),
        (["--budget-musd", "3", "--delta", "1"], "--delta 1.0"),
        (["--budget-musd", "3", "--delta", "nan"], "--delta nan"),
        (["--budget-musd", "x"], "invalid float value"),
        ([], "calibrate needs"),
        (["--budget-musd", "3", "--plot"], "--plot needs --run"),
        (["--budget-musd", "3", "--test", "absent.jsonl"], "absent.jsonl"),
        (["--budget-musd", "3", "--test", "."], "not a row|directory"),
    ],
)
def test_calibrate_bad_option_is_one_line(trained, tmp_path, capsys, argv, message):
    run = [] if "--plot" in argv else ["--run", tmp_path / "run"]
    assert re.search(message, refused(["calibrate", *argv_of(trained), *argv, *run], capsys))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--train-split", "nan"], "--train-split nan"),
        (["--train-split", "0"], "--train-split 0.0"),
        (["--train-split", "1.5"], "--train-split 1.5"),
        (["--calibration-split", "-0.1"], "--calibration-split -0.1"),
        (["--train-split", "0.5", "--calibration-split", "0.5"], "leave a share"),
        (["--router", "lm", "--labels", "soft"], "--labels soft"),
        (["--router", "zero-shot", "--labels", "soft"], "--labels soft"),
        (["--router", "zero-shot"], "no model"),
        (["--table", "absent.jsonl"], "absent.jsonl"),
    ],
)
def test_train_bad_option_is_one_line(trained, tmp_path, capsys, argv, message):
    argv = ["train", "--table", trained / "table.jsonl", "--out", tmp_path / "out", *argv]
    assert message in refused(argv, capsys)
    assert not list(tmp_path.glob("out/*.jsonl"))


def test_train_out_that_is_a_file_is_one_line(trained, tmp_path, capsys):
    (tmp_path / "out").write_text("mine")
    assert "out" in refused(["train", "--table", trained / "table.jsonl", "--out", tmp_path / "out"], capsys)
    assert (tmp_path / "out").read_text() == "mine"


def test_route_bad_input_is_one_line(trained, collected, tmp_path, capsys):
    result([*argv_of(trained), "--budget-musd", "3"], tmp_path / "run")
    log = (tmp_path / "run" / "log.jsonl").read_text("utf-8")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "log.jsonl").write_text("".join(log.splitlines(keepends=True)[:-1]), "utf-8")
    files = {"bad": "{", "list": "[1]", "text": '"x"', "empty": "{}", "number": json.dumps(GOOD | {"stderr": 3})}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    np.save(tmp_path / "array.npy", np.ones(3))
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    good = {"--failure": tmp_path / "good", "--router-file": trained / "router.npz", "--calibrated": tmp_path / "run"}
    (tmp_path / "good").write_text(json.dumps(GOOD))
    wrong = [("--failure", tmp_path / name) for name in ("absent", *files)]
    wrong += [("--router-file", tmp_path / name) for name in ("absent", "bad", "array.npy", "other.npz")]
    wrong += [("--calibrated", folder) for folder in (tmp_path / "absent", tmp_path / "half", collected / "all")]
    wrong += [("--budget-musd", "2"), ("--budget-musd", "nan")]
    for option, value in wrong:
        argv = itertools.chain(*(good | {option: value}).items())
        capsys.readouterr()
        assert option in refused(["route", *argv], capsys)
    assert coderescue.main(["route", *map(str, itertools.chain(*good.items()))]) == 0


def test_command_line_that_nobody_reads_on_ends_without_a_traceback(trained):
    argv = [sys.executable, coderescue.__file__, "calibrate", *argv_of(trained), "--budget-musd", "3"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""


def test_command_line_takes_no_abbreviations(capsys):
    with pytest.raises(SystemExit):
        coderescue.parse(["calibrate", "--calibration", "a", "--test", "b", "--budget-musd", "3", "--c-max", "40"])
    assert "unrecognized arguments: --c-max 40" in capsys.readouterr().err


def test_router_learns_what_stderr_tells(trained):
    rows = coderescue.read_table(str(trained / "test.jsonl"))
    s = coderescue.arrays(rows)["s"]
    best = [min(a for a in range(3) if row["solved"][coderescue.ACTIONS[a]]) for row in rows]
    assert (s.argmax(1) == best).mean() > 0.95
    assert np.allclose(s.sum(1), 1)


def test_router_splits_by_problem_whatever_the_ids():
    rows = toy_table(300, 4)
    again = [row | {"id": f"copy of {row['id']}", "problem": row["problem"] + "\n"} for row in rows]
    parts = coderescue.split(rows + again, {"train": 0.5, "calibration": 0.25, "test": 0.25}, 0)
    texts = [{row["problem"].strip() for row in part} for part in parts.values()]
    assert sum(map(len, texts)) == len(set().union(*texts)) == 300
    assert [round(len(text) / 300, 1) for text in texts] == [0.5, 0.2, 0.2] or len(texts[0]) in range(120, 181)
    assert parts == coderescue.split(rows + again, {"train": 0.5, "calibration": 0.25, "test": 0.25}, 0)


def test_router_labels_are_the_cheapest_passing_action():
    solved = np.array([[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0], [np.nan, 1, 0]])
    hard = coderescue.targets(solved, np.array([2.0, 2.0, 13.0]), "hard")
    assert hard.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 1, 0]]
    unknown = coderescue.targets(np.array([[0, 0, 1], [0, 1, 1]]), np.array([1.0, 2.0, np.nan]), "hard")
    assert unknown.tolist() == [
        [0, 0, 1],
        [0, 1, 0],
    ]  # what has no known price comes last, and nothing else wins for it
    soft = coderescue.targets(solved, np.array([2.0, 2.0, 13.0]), "soft")
    assert soft[0].tolist() == [1 / 3] * 3
    assert soft[3].tolist() == [0, 0, 0]


def test_router_text_keeps_to_the_papers_limits_and_never_shows_the_program():
    row = {"problem": "x" * 9000, "verdict": "fail", "stderr": "a" * 2000 + "END", "source": "apps", "code": "SECRET"}
    text = coderescue.text_of(row, metadata=True)
    assert text.startswith("[source=apps | len=9000]\nProblem:\nxxx")
    assert (text.count("x"), text.count("a" * 797 + "END"), "SECRET" in text) == (6000, 1, False)
    assert coderescue.text_of(row | {"verdict": "timeout"}, metadata=False).count("a" * 398) == 0


def test_router_scores_do_not_depend_on_the_process(trained):
    row = coderescue.read_table(str(trained / "test.jsonl"))[0]
    router = dict(np.load(trained / "router.npz"))
    assert coderescue.predict(router, [row], argparse.Namespace()).tolist() == [list(row["scores"].values())]
    cells, _ = coderescue.weighted(["a b"], np.ones(coderescue.BUCKETS))
    assert cells[1].tolist() == sorted(cells[1].tolist())
    assert set(cells[1].tolist()) >= {0xE8B7BE43 % 2**15, 0x71BEEFF9 % 2**15}  # crc32 of "a" and of "b"


def test_router_fits_5_000_rows_in_seconds():
    rng = np.random.default_rng(5)
    words = [f"w{k}" for k in range(20_000)]
    texts = [" ".join(rng.choice(words, 150)) for _ in range(5000)]
    start = time.process_time()
    coderescue.fit(texts, np.eye(3)[rng.integers(0, 3, 5000)])
    assert time.process_time() - start < 30  # about 8 s on one core


def test_router_zero_shot_reads_the_last_action_named():
    scores = coderescue.named_scores(
        ["Not reflect: ESCALATE.", "hm"],
    )
    assert scores.tolist() == [[0, 0, 1], [1 / 3] * 3]


def test_router_zero_shot_asks_the_model_about_every_failure(trained, tmp_path):
    argv = ["train", "--table", str(trained / "table.jsonl"), "--router", "zero-shot", "--out", str(tmp_path)]
    with FakeServer(lambda messages, _: "reflect" if "'math'" in messages[-1]["content"] else "escalate") as server:
        assert coderescue.main([*argv, "--url", server.url]) == 0
        assert len(server.requests) == 400
    for row in coderescue.read_table(str(tmp_path / "calibration.jsonl")):
        assert row["scores"]["reflect"] == float("'math'" in row["stderr"])


def test_router_constant_gives_every_failure_the_label_shares(trained, tmp_path):
    argv = ["train", "--table", str(trained / "table.jsonl"), "--router", "constant", "--out", str(tmp_path)]
    assert coderescue.main(argv) == 0
    assert len({json.dumps(row["scores"]) for row in coderescue.read_table(str(tmp_path / "test.jsonl"))}) == 1


def test_router_lm_writes_chats_then_reads_label_probabilities(trained, tmp_path):
    argv = ["train", "--table", str(trained / "table.jsonl"), "--router", "lm", "--out", str(tmp_path)]
    assert coderescue.main(argv) == 0
    chats = [json.loads(line)["messages"] for line in (tmp_path / "chat.jsonl").read_text().strip().split("\n")]
    assert [m["role"] for m in chats[0]] == ["system", "user", "assistant"]
    assert {chat[-1]["content"] for chat in chats} == set(coderescue.ACTIONS)
    asked = []

    def post(path: str, **body) -> dict:
        """A model whose log-probability of a label token is minus the token."""
        asked.append(path)
        if path == "/tokenize":
            return {
                "tokens": {"reflect": [1, 3], "replan": [1], "escalate": [4, 4]}.get(str(body.get("prompt")), [9, 9])
            }
        cells = [None, *({str(token): {"logprob": -float(token)}} for token in body["prompt"][1:])]
        return {"choices": [{"index": 0, "prompt_logprobs": cells}]}

    expected = np.exp([-2, -1, -4]) / np.exp([-2, -1, -4]).sum()
    assert coderescue.lm_scores(["text"], post)[0] == pytest.approx(expected)
    with FakeServer(other=post) as server:  # the same over HTTP, as a vLLM server answers
        assert coderescue.main([*argv, "--url", server.url, "--model", "tuned"]) == 0
    for part in ("train", "calibration", "test"):
        for row in coderescue.read_table(str(tmp_path / f"{part}.jsonl")):
            assert [row["scores"][a] for a in coderescue.ACTIONS] == pytest.approx(expected)


PROBLEMS = [
    {
        "task_id": f"t/{k}",
        "prompt": f'def f{k}(x):\n    """x plus {k}"""\n',
        "entry_point": f"f{k}",
        "test": f"def check(c):\n    assert c(1) == 1 + {k}\n",
    }
    for k in range(6)
]


def solver(right: set[str]):
    """reply(messages, seed): a right program for these (role, problem), else a wrong one; t/5 forgets it at first.

    A function of what it is asked, as a seeded engine is: asked again after a kill it forgets it again.
    """
    first = {common.seed_of(0, role, "t/5", 0, 0) for role in ("first", *coderescue.ACTIONS)}

    def reply(messages: list[dict], seed: int) -> str:
        text = messages[-1]["content"]
        k = next(k for k in range(6) if f"def f{k}(" in text)
        role = "reflect" if coderescue.REFLECT in text else "replan" if coderescue.REPLAN in text else "blind"
        if seed in first:
            return "I would rather not."
        plus = k if f"{role} {k}" in right else k + 1
        return f"```python\ndef f{k}(x):\n    return x + {plus}\n```"

    return reply


def collecting(folder: Path, cheap: FakeServer, strong: FakeServer) -> list[str]:
    """The command that collects on folder/problems.jsonl, but for its --run."""
    asks = ["--cheap", "c", "--cheap-url", cheap.url, "--strong", "s", "--strong-url", strong.url]
    asks += ["--price-cheap", "0.2", "1.25", "--price-strong", "2.5", "15", "--max-tokens", "64"]
    return [sys.executable, coderescue.__file__, "collect", "--problems", str(folder / "problems.jsonl"), *asks]


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collected")
    (folder / "problems.jsonl").write_text("".join(json.dumps(p) + "\n" for p in PROBLEMS))
    with (
        FakeServer(solver({"blind 0", "reflect 1", "replan 2"})) as cheap,
        FakeServer(solver({"blind 1", "blind 3"})) as strong,
    ):
        command = collecting(folder, cheap, strong)
        subprocess.run([*command, "--run", str(folder / "all")], check=True)
        calls = len(cheap.requests) + len(strong.requests)
        subprocess.run([*command, "--run", str(folder / "all")], check=True)  # resumed: nothing is asked again
        assert len(cheap.requests) + len(strong.requests) == calls
        subprocess.run([*command, "--run", str(folder / "short"), "--short-circuit"], check=True)
    return folder


@pytest.mark.parametrize("after", [3, 9])
def test_collect_killed_goes_on_and_ends_with_the_same_table(collected, tmp_path, after):
    with (
        FakeServer(solver({"blind 0", "reflect 1", "replan 2"}), latency_s=lambda _: 0.05) as cheap,
        FakeServer(solver({"blind 1", "blind 3"})) as strong,
    ):
        command = [*collecting(collected, cheap, strong), "--run", str(tmp_path)]
        with subprocess.Popen(command) as run:
            while len(cheap.requests) < after and run.poll() is None:
                time.sleep(0.001)
            run.kill()
        assert run.returncode == -9
        subprocess.run(command, check=True)
    assert (tmp_path / "rescue.jsonl").read_text() == (collected / "all" / "rescue.jsonl").read_text()


def test_collect_runs_three_actions_on_every_failure_and_bills_tokens(collected):
    rows = {row["id"]: row for row in coderescue.read_table(str(collected / "all" / "rescue.jsonl"))}
    assert set(rows) == {"t/1", "t/2", "t/3", "t/4", "t/5"}
    assert rows["t/1"]["solved"] == {"reflect": True, "replan": False, "escalate": True}
    assert rows["t/3"]["solved"] == {"reflect": False, "replan": False, "escalate": True}
    assert rows["t/4"]["verdict"] == "fail"
    assert "AssertionError" in rows["t/4"]["stderr"]
    for row in rows.values():
        assert row["imputed"] == []
        for a, (prompt, completion) in row["tokens"].items():
            price = (2.5, 15) if a == "escalate" else (0.2, 1.25)
            assert row["cost_musd"][a] == pytest.approx((prompt * price[0] + completion * price[1]) / 1e3)
            assert row["cost_musd"][a] < row["c_max_musd"]


def test_collect_retries_once_where_there_is_no_def_and_bills_both(collected):
    lines = [json.loads(line) for line in (collected / "all" / "log.jsonl").read_text().strip().split("\n")]
    calls = {tuple(line["unit"]): line for line in lines if line["event"] == "call"}
    again = [unit for unit in calls if unit[3] == 1]
    assert again
    assert {unit[1] for unit in again} == {"t/5"}
    (row,) = [line for line in lines if line["event"] == "row" and line["id"] == "t/5"]
    for role, _, _, _ in again:
        if role in coderescue.ACTIONS:
            both = [calls[role, "t/5", 0, k]["prompt_tokens"] for k in (0, 1)]
            assert row["tokens"][role][0] == sum(both)


def test_collect_short_circuit_imputes_and_marks(collected):
    rows = {row["id"]: row for row in coderescue.read_table(str(collected / "short" / "rescue.jsonl"))}
    assert {i for i, row in rows.items() if row["imputed"]} == {"t/1", "t/2"}
    assert rows["t/1"]["solved"]["escalate"] is None
    measured = [row["cost_musd"]["escalate"] for i, row in rows.items() if not row["imputed"]]
    assert rows["t/1"]["cost_musd"]["escalate"] == pytest.approx(np.mean(measured))


def test_collect_replay_needs_no_server_and_finds_a_changed_verdict(collected, tmp_path):
    def replay(run: Path, *more: str) -> int:
        with contextlib.chdir(collected):  # the log knows the problems by a relative path
            return coderescue.main(["collect", "--run", str(run), "--replay", *more])

    assert replay(collected / "all") == 0
    assert replay(collected / "all", "--execute") == 0
    text = (collected / "all" / "log.jsonl").read_text()
    (tmp_path / "log.jsonl").write_text('"verdict": "fail"'.join(text.rsplit('"verdict": "pass"', 1)))
    assert replay(tmp_path) == 1


@pytest.mark.parametrize("escalate", ["blind", "with-feedback"])
@pytest.mark.parametrize("prices", [((0.2, 1.25), (2.5, 15.0)), ((3.0, 0.5), (0.25, 0.5))])
def test_collect_c_max_holds_where_every_byte_is_a_token(escalate, prices):
    """Programs, errors and problems of four-byte characters, a template of 512 tokens, two calls at --max-tokens."""
    options = ["--escalate", escalate, "--max-tokens", "100"]
    options += ["--price-cheap", *map(str, prices[0]), "--price-strong", *map(str, prices[1])]
    args = coderescue.parse(["collect", "--cheap", "c", "--strong", "s", *options])
    problems = {k: {"prompt": "\U0001f40d" * n} for k, n in enumerate((5, 700, 31))}
    failed = {"verdict": "compile_error", "stderr": "\U0001f4a5" * 2000, "code": "\U0001f40d" * 9000}
    worst = 0.0
    for problem in problems.values():
        for action, prompt in coderescue.recovery_prompts(problem, failed, escalate).items():
            tokens = [2 * (len(prompt.encode()) + 512), 2 * 100]
            worst = max(worst, float(np.array(prices[action == "escalate"]) @ tokens) / 1e3)
    assert coderescue.largest_cost(problems, args) == worst
    # the longest problem, and as much of the failed attempt as a prompt shows, at four bytes a character
    shown = 0 if escalate == "blind" and prices[1][0] > 1 else 4 * (4000 + 1500)
    assert worst > 2 * (4 * 700 + shown) * max(prices)[0] / 1e3


@pytest.mark.vllm
def test_collect_c_max_allows_for_a_chat_template():
    import jinja2
    import tokenizers

    root = Path(__file__).resolve().parents[1]
    made = subprocess.run([sys.executable, "tests/local_model.py", "smollm2"], cwd=root, capture_output=True, text=True)
    folder = root / made.stdout.strip()
    config, file = json.loads((folder / "tokenizer_config.json").read_text("utf-8")), folder / "chat_template.jinja"
    template = file.read_text("utf-8") if file.exists() else config["chat_template"]
    words = {"messages": [{"role": "user", "content": ""}], "add_generation_prompt": True}
    text = jinja2.Template(template).render(**words)
    tokens = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).tokens
    assert 5 < len(tokens) < coderescue.TEMPLATE_TOKENS / 4


def test_collect_recorded_calls_stay_within_c_max():
    run = Path(__file__).resolve().parents[1] / "runs" / "rescue-humaneval"
    for row in coderescue.read_table(str(run / "rescue.jsonl")):
        assert max(c for c in row["cost_musd"].values() if c is not None) < row["c_max_musd"]


PRICES = ["--price-cheap", "1", "1", "--price-strong", "1", "1"]
MODELS = ["--cheap", "a", "--strong", "b"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (MODELS, "--price-cheap"),
        ([*PRICES, "--strong", "b"], "no cheap model: give --cheap MODEL .* or --cheap-url URL"),
        ([*PRICES, "--cheap", "a"], "no strong model: give --strong MODEL .* or --strong-url URL"),
        (
            [*PRICES, "--cheap", "a", "--strong", "absent/model/x"],
            "--strong, --strong-url: --model absent/model/x cannot be loaded",
        ),
        ([*PRICES, "--cheap", "a", "--strong-url", "ftp://x"], "--strong, --strong-url: --url ftp://x: not an http"),
        ([*PRICES, *MODELS, "--problems", "absent.jsonl"], "problems 'absent.jsonl'"),
        ([*PRICES, *MODELS, "--problems", "humaneval:0"], "0 asked for, 164 there"),
        (
            [*MODELS, "--price-cheap", "nan", "1", "--price-strong", "1", "1"],
            "--price-cheap .nan, 1.0.: must be finite",
        ),
        ([*MODELS, "--price-cheap", "1", "1", "--price-strong", "1", "-1"], "--price-strong .* not negative"),
        ([*PRICES, *MODELS, "--timeout-s", "0"], "--timeout-s 0.0"),
        ([*PRICES, *MODELS, "--max-tokens", "0"], "--max-tokens 0"),
        ([*PRICES, *MODELS, "--temperature", "nan"], "--temperature nan"),
    ],
)
def test_collect_bad_input_is_one_line_and_leaves_no_log(tmp_path, argv, message):
    ran = run_script(["collect", *argv, "--run", str(tmp_path / "run")], tmp_path)
    assert re.search(message, ran.stderr), ran.stderr
    assert (ran.returncode, ran.stderr.count("\n"), list(tmp_path.iterdir())) == (2, 1, [])


def test_collect_model_that_cannot_be_reached_is_named_by_its_own_option(tmp_path):
    urls = ["--cheap-url", "http://127.0.0.1:9", "--strong-url", "http://127.0.0.1:9"]
    ran = run_script(["collect", "--problems", "humaneval:1", *PRICES, *urls], tmp_path)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "no server answers at http://127.0.0.1:9/v1" in ran.stderr
    assert ran.stderr.startswith("coderescue.py: --cheap, --cheap-url: ")


def test_route_says_what_and_why(trained, tmp_path, capsys):
    result([*argv_of(trained), "--budget-musd", "3", "50", "0.5"], tmp_path / "run", 3)
    row = coderescue.read_table(str(trained / "test.jsonl"))[0]
    (tmp_path / "row.json").write_text(json.dumps(row))
    argv = ["route", "--router-file", str(trained / "router.npz"), "--calibrated", str(tmp_path / "run")]
    argv += ["--failure", str(tmp_path / "row.json")]
    capsys.readouterr()
    assert coderescue.main([*argv, "--budget-musd", "50"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["action"] == max(row["scores"], key=row["scores"].get)
    assert said["scores"] == pytest.approx(row["scores"])
    assert (said["lambda"], said["budget_musd"], said["cost_musd"]) == (0.0, 50, row["mean_cost_musd"])
    assert coderescue.main([*argv, "--budget-musd", "0.5"]) == 3
    assert json.loads(capsys.readouterr().out)["action"] is None
    with pytest.raises(common.UserError, match="must be one of"):
        coderescue.main(argv)
    table = ["--table", str(trained / "table.jsonl"), "--out", str(tmp_path / "other"), "--seed", "8"]
    assert coderescue.main(["train", *table]) == 0
    argv[2] = str(tmp_path / "other" / "router.npz")
    with pytest.raises(common.UserError, match="was calibrated on other scores"):
        coderescue.main([*argv, "--budget-musd", "50"])


def test_route_runs_the_whole_loop_on_live_failures(collected, trained, tmp_path):
    result([*argv_of(trained), "--budget-musd", "50"], tmp_path / "run")
    argv = ["route", "--router-file", str(trained / "router.npz"), "--calibrated", str(tmp_path / "run")]
    argv += ["--problems", str(collected / "problems.jsonl"), "--max-tokens", "64", "--run", str(tmp_path / "live")]
    argv += ["--price-cheap", "0.2", "1.25", "--price-strong", "2.5", "15", "--cheap", "c", "--strong", "s"]
    with FakeServer(solver({"blind 0"})) as cheap, FakeServer(solver({f"blind {k}" for k in range(6)})) as strong:
        assert coderescue.main([*argv, "--cheap-url", cheap.url, "--strong-url", strong.url]) == 0
    lines = [json.loads(line) for line in (tmp_path / "live" / "log.jsonl").read_text().strip().split("\n")]
    chosen = {line["unit"][1]: line["action"] for line in lines if line["event"] == "route"}
    assert set(chosen) == {"t/1", "t/2", "t/3", "t/4", "t/5"}
    ran = {
        (line["unit"][1], line["unit"][0]) for line in lines if line["event"] == "call" and line["unit"][0] != "first"
    }
    assert ran == set(chosen.items())
    assert lines[-1]["routed"]["rows"] == 5
    with contextlib.chdir(collected):
        assert coderescue.main([*argv, "--replay"]) == 0
