"""Run the optimizer and its peers on bbob-mixint.

    pip install -r experiments/search_proof/requirements.txt
    python experiments/search_proof/run.py [--seeds 3] [--jobs 2]    # writes runs.csv, results.json
    python experiments/search_proof/run.py --report                  # prints the tables again

Policies whose package is missing are left out, and the report says so.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np

HERE = Path(__file__).resolve().parent
READINGS = 20
AT = (5, 10, 15, 20)
PACKAGES = {
    "optuna-gp": "optuna",
    "optuna-tpe": "optuna",
    "smac": "smac",
    "gp_minimize": "skopt",
    "random": "numpy",
}
"""The peers, and what each needs."""
GROUPS = {
    "separable": range(1, 6),
    "moderately conditioned": range(6, 10),
    "ill-conditioned": range(10, 15),
    "multimodal": range(15, 20),
    "multimodal, weakly structured": range(20, 25),
}
"""COCO's groups of functions; 3 and 4, which are separable, are multimodal, too."""
VERSIONS = (
    "coco-experiment", "numpy", "scipy", "scikit-learn", "scikit-optimize", "optuna", "smac",
    "torch",
)  # fmt: skip
Row = dict[str, Any]


def run_one(policy: str, function: int, seed: int) -> Row:
    """Make one run and return the regret of what would be kept after each reading."""
    from policies import POLICIES, quietly
    from problems import Problem

    problem = Problem(function, seed)
    with quietly():
        start = time.process_time()
        kept = POLICIES[policy](problem, READINGS, seed)
        seconds = time.process_time() - start
    regrets = [problem.regret(x) for x in kept]
    row: Row = {"policy": policy, "function": function, "seed": seed}
    row |= {f"regret_{k}": float(f"{regrets[k - 1]:.6g}") for k in AT}
    return row | {"cpu_s": round(seconds, 2)}


def ranks(rows: list[Row], at: int = READINGS) -> dict[str, list[float]]:
    """Return each policy's ranks (1 is the best; equal regrets share the mean of their ranks)."""
    from scipy.stats import rankdata

    cells: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows:
        key = (int(row["function"]), int(row["seed"]))
        cells.setdefault(key, {})[row["policy"]] = float(row[f"regret_{at}"])
    names = list(dict.fromkeys(row["policy"] for row in rows))
    result: dict[str, list[float]] = {name: [] for name in names}
    for cell in cells.values():
        if len(cell) == len(names):
            for name, rank in zip(names, rankdata([cell[n] for n in names]), strict=True):
                result[name].append(float(rank))
    return result


def tables(rows: list[Row]) -> str:
    """Return the tables of the report."""
    ranked = ranks(rows)
    head = "| policy | runs | median rank | mean rank | regret, median | 90 % | CPU s per run |"
    lines = [head, "|" + " --- |" * 7]
    for name in sorted(ranked, key=lambda name: (np.median(ranked[name]), np.mean(ranked[name]))):
        mine = [row for row in rows if row["policy"] == name]
        regret = [float(row[f"regret_{READINGS}"]) for row in mine]
        cpu = np.median([float(row["cpu_s"]) for row in mine])
        lines.append(
            f"| {name} | {len(mine)} | {np.median(ranked[name]):.1f} | {np.mean(ranked[name]):.2f} "
            f"| {np.median(regret):.3f} | {np.quantile(regret, 0.9):.3f} | {cpu:.1f} |"
        )
    names = list(ranked)
    lines += ["", "| function | " + " | ".join(names) + " |", "|" + " --- |" * (len(names) + 1)]
    for function in sorted({int(row["function"]) for row in rows}):
        cells = []
        for name in names:
            mine = [
                float(row[f"regret_{READINGS}"])
                for row in rows
                if row["policy"] == name and int(row["function"]) == function
            ]
            cells.append(f"{np.median(mine):.3f}" if mine else "")
        lines.append(f"| {function} | " + " | ".join(cells) + " |")
    missing = [name for name in PACKAGES if name not in ranked]
    if missing:
        lines += ["", f"Left out: {', '.join(missing)}."]
    others = [name for name in names if name != "ours"]
    if "ours" in names and others:
        lines += ["", behind(rows, min(others, key=lambda name: float(np.mean(ranked[name]))))]
    return "\n".join(lines)


def behind(rows: list[Row], peer: str) -> str:
    """Return where ours has more regret than ``peer``, most first, and what that adds up to."""
    found: dict[str, dict[int, list[float]]] = {"ours": {}, peer: {}}
    for row in rows:
        if row["policy"] in found:
            regrets = found[row["policy"]].setdefault(int(row["function"]), [])
            regrets.append(float(row[f"regret_{READINGS}"]))
    both = [k for k in found["ours"] if k in found[peer]]
    more = {k: np.median(found["ours"][k]) - np.median(found[peer][k]) for k in both}
    lost = {k: float(gap) for k, gap in more.items() if gap > 0}
    most = sorted(lost, key=lambda k: -lost[k])
    listed = ", ".join(f"{k} (+{lost[k]:.3f})" for k in most)
    lines = [f"Ours has more regret than {peer} on {len(lost)} of {len(more)} functions: {listed}."]
    lines += [
        "",
        f"| group | functions | more regret than {peer} on | its sum | less regret, sum |",
    ]
    lines.append("|" + " --- |" * 5)
    for group, functions in GROUPS.items():
        mine = [float(more[k]) for k in functions if k in more]
        worse, better = [gap for gap in mine if gap > 0], [gap for gap in mine if gap < 0]
        lines.append(
            f"| {group} | {functions[0]}-{functions[-1]} | {len(worse)} | {sum(worse):.2f} "
            f"| {abs(sum(better)):.2f} |"
        )
    return "\n".join(lines)


def about(arguments: argparse.Namespace, policies: list[str]) -> dict[str, Any]:
    """Return what the results were made with."""
    versions = {}
    for name in VERSIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
    return {
        "processor": model,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "seeds": arguments.seeds,
        "readings": READINGS,
        "policies": policies,
        "versions": versions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--policies", nargs="+")
    parser.add_argument("--output", type=Path, default=HERE)
    parser.add_argument("--report", action="store_true", help="print the stored results only")
    arguments = parser.parse_args()
    if not arguments.report:
        measure(arguments)
    with (arguments.output / "runs.csv").open(newline="") as file:
        print(tables(list(csv.DictReader(file))))


def measure(arguments: argparse.Namespace) -> None:
    """Make all runs and store them."""
    from joblib import Parallel, delayed
    from policies import POLICIES
    from problems import FUNCTIONS

    policies = [
        name
        for name in arguments.policies or POLICIES
        if importlib.util.find_spec(PACKAGES.get(name, "skopt")) is not None
    ]
    results = Parallel(n_jobs=arguments.jobs, batch_size=1, return_as="generator_unordered")(
        delayed(run_one)(policy, function, seed)
        for seed in range(arguments.seeds)
        for function in FUNCTIONS
        for policy in policies
    )
    rows: list[Row] = []
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (arguments.output / "runs.csv").open("w", newline="") as file:
        for row in results:
            if not rows:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            rows.append(row)
    found = ranks(rows)
    content = about(arguments, policies) | {
        "median_rank": {name: float(np.median(found[name])) for name in policies},
        "mean_rank": {name: round(float(np.mean(found[name])), 3) for name in policies},
    }
    (arguments.output / "results.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
