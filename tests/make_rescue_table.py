"""Rescue tables from the published CodeRescue holdout: its rows and its leak come out of the product's own command.

Run     python tests/make_rescue_table.py ../shared/data/coderescue OUT
        python coderescue.py calibrate --calibration OUT/calibration.jsonl --test OUT/test.jsonl --budget-musd 2.56 \
            --cost realised --c-max-musd 38.785
Output  OUT/calibration.jsonl, OUT/test.jsonl, 360 rows each. Problem texts and stderr were not published: empty
Column  escalate was run only where both cheap actions had failed (its cost is imputed elsewhere), and later in other
        rows, of which passes alone are known: 26 were shipped, 62 were not. A published success of 0 with an imputed
        cost so means "not run", and is null here ("ungraded"). The published numbers are those of the column "as
        failed": always-escalate .514 = 185/360, where the paper has .686 = 247/360, the 62 included. The solve column
        beside it is over the rows in which the chosen action was run, a selection: 1.000
Ids     two problems stand in both published splits, and one twice in one of them; calibrate refuses both, so ids here
        carry the split's name and the row's number
"""

import argparse
import csv
import json
from collections import Counter
from pathlib import Path

ACTIONS: tuple[str, ...] = ("reflect", "replan", "escalate")


def convert(folder: Path, *, scores: str, fill_apps: bool, unit_costs: bool) -> dict[str, list[dict]]:
    """{"calibration": rows, "test": rows}. Scores: the June router's, or the test rows' label shares for every row."""
    with (folder / "coderescue_holdout_facts_2026-06-03.csv").open(encoding="utf-8") as file:
        published = list(csv.DictReader(file))
    means = json.loads((folder / "coderescue_costs_means.json").read_text("utf-8"))["dataset_means_usd"]["apps"]
    labels = Counter(next(a for a in ACTIONS if p[f"s_{a}"] == "1") for p in published if p["split"] == "test")
    imputed: list[str]
    tables: dict[str, list[dict]] = {"calibration": [], "test": []}
    for p in published:
        part = {"calib": "calibration", "test": "test"}[p["split"]]
        costs = {a: float(p[f"c_{a}_nusd"]) / 1e6 if p[f"c_{a}_nusd"] else None for a in ACTIONS}
        imputed = ["escalate"] if p["c_escalate_imputed"] == "1" else []
        if fill_apps and None in costs.values():
            costs, imputed = {a: means[a] * 1e3 for a in ACTIONS}, list(ACTIONS)
        if unit_costs:
            costs, imputed = dict(zip(ACTIONS, (2.0, 2.0, 13.0), strict=True)), []
        s = {a: float(p[f"p_{a}"]) if scores == "router" else labels[a] / labels.total() for a in ACTIONS}
        row: dict = {"id": f"{p['problem_id']}@{part}/{p['idx']}", "problem": "", "source": p["dataset"] or "unknown"}
        row |= {"verdict": p["initial_verdict"], "stderr": "", "scores": s, "cost_musd": costs, "imputed": imputed}
        solved: dict[str, bool | None] = {a: p[f"s_{a}"] == "1" for a in ACTIONS}
        if p["c_escalate_imputed"] == "1" and not solved["escalate"]:  # 0 stands for "not run" there
            solved["escalate"] = None
        tables[part].append(row | {"solved": solved})
    return tables


def main(argv: list[str] | None = None) -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--scores", choices=["router", "shares"], default="router", help="shares: constant, no information"
    )
    parser.add_argument(
        "--fill-apps", action="store_true", help="rows without a cost get the apps means, marked as imputed"
    )
    parser.add_argument("--unit-costs", action="store_true", help="costs 2, 2, 13")
    args = parser.parse_args(argv)
    if not (args.folder / "fixtures.json").exists():
        parser.error(f"{args.folder} has no fixtures.json: not the folder of the published rows")
    args.out.mkdir(parents=True, exist_ok=True)
    options = {"scores": args.scores, "fill_apps": args.fill_apps, "unit_costs": args.unit_costs}
    for name, rows in convert(args.folder, **options).items():
        (args.out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        print(f"{len(rows)} rows in {args.out / name}.jsonl")


if __name__ == "__main__":
    main()
