"""Two hosts of 2 ranks at 50, 200 and 1,000 Mbit/s: the whole grid, default against optimum.

python experiments/two_hosts/run.py [--seconds 130] [--report]

Needs root and iproute2. Writes grid.csv (one row per rate and setting, with every sample) and
results.json (machine, workload), and prints the tables of the README.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from harness import collect, machine, machine_line, size_name, spread

from cluster.hosts import TwoHosts

HERE = Path(__file__).resolve().parent
RATES_MBIT = (50, 200, 1000)
RANKS = (2, 2)
PARAMETERS = (
    "fusion_threshold_bytes",
    "cycle_time_ms",
    "cache_capacity",
    "hierarchical_allreduce",
    "hierarchical_allgather",
)

Cell = dict[str, Any]


def measure(rate_mbit: int, seconds: float) -> dict[str, Any]:
    """Run the grid at one rate."""
    print(f"{rate_mbit} Mbit/s, {seconds:.0f} s", file=sys.stderr, flush=True)
    with TwoHosts(rate_mbit=rate_mbit) as hosts:
        words = [sys.executable, HERE / "rank.py", "--seconds", str(seconds)]
        result: dict[str, Any] = collect(hosts.start(RANKS, words), 2 * seconds + 120)
    return result


def write_grid(path: Path, results: dict[int, dict[str, Any]]) -> None:
    """Write one row per rate and setting; samples are separated by spaces."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["rate_mbit", *PARAMETERS, "step_ms"])
        for rate, result in results.items():
            for cell in result["cells"]:
                values = [f"{cell[name]:g}" for name in PARAMETERS[1:]]
                samples = " ".join(f"{value:.3f}" for value in cell["step_ms"])
                writer.writerow([rate, cell[PARAMETERS[0]], *values, samples])


def read_grid(path: Path) -> dict[int, list[Cell]]:
    """Return {rate: cells}; a cell holds its parameters and its samples in ms."""
    grid: dict[int, list[Cell]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            cell: Cell = {name: float(row[name]) for name in PARAMETERS}
            cell["step_ms"] = [float(word) for word in row["step_ms"].split()]
            grid.setdefault(int(row["rate_mbit"]), []).append(cell)
    return grid


def median(cell: Cell) -> float:
    return statistics.median(cell["step_ms"])


def name(cell: Cell) -> str:
    """Return a setting for people."""
    levels = "two levels" if cell["hierarchical_allreduce"] else "one level"
    size = size_name(int(cell["fusion_threshold_bytes"]))
    return f"{size}, {cell['cycle_time_ms']:g} ms, {levels}"


def summary_table(grid: dict[int, list[Cell]], jobs: dict[str, dict[str, Any]]) -> str:
    """Return per rate default and optimum, in turns after the grid, and the grid's worst."""
    lines = ["| Mbit/s | default, ms | optimum, ms | optimum is | default / optimum | worst, ms |"]
    lines.append("|" + " --- |" * 6)
    for rate, cells in grid.items():
        default, best = (jobs[str(rate)]["in_turns"][which] for which in ("default", "optimum"))
        worst = max(cells, key=median)
        lines.append(
            f"| {rate} | {spread(default['step_ms'])} | {spread(best['step_ms'])} | {name(best)} "
            f"| {median(default) / median(best):.2f} | {median(worst):.1f} ({name(worst)}) |"
        )
    return "\n".join(lines)


def effect_table(grid: dict[int, list[Cell]]) -> str:
    """Return, per rate and parameter, worst over best value, the others at the optimum."""
    shown = ("fusion_threshold_bytes", "cycle_time_ms", "hierarchical_allreduce")
    lines = [f"| Mbit/s | {' | '.join(shown)} |", "|" + " --- |" * 4]
    for rate, cells in grid.items():
        best = min(cells, key=median)
        ratios = []
        for parameter in shown:
            others = [p for p in PARAMETERS if p != parameter]
            line = [median(c) for c in cells if all(c[p] == best[p] for p in others)]
            ratios.append(f"{max(line) / min(line):.2f}")
        lines.append(f"| {rate} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def grid_table(cells: list[Cell]) -> str:
    """Return the medians in ms, "one level / two levels"."""
    thresholds = sorted({c["fusion_threshold_bytes"] for c in cells})
    cycles = sorted({c["cycle_time_ms"] for c in cells})
    at = {(*(c[p] for p in PARAMETERS[:2]), c[PARAMETERS[3]]): median(c) for c in cells}
    lines = [f"| ms a step | {' | '.join(f'{c:g} ms' for c in cycles)} |"]
    lines.append("|" + " --- |" * (len(cycles) + 1))
    for t in thresholds:
        row = [f"{at[t, c, 0.0]:.0f} / {at[t, c, 1.0]:.0f}" for c in cycles]
        lines.append(f"| {size_name(int(t))} | {' | '.join(row)} |")
    return "\n".join(lines)


def report() -> str:
    """Return the tables of the stored results."""
    about = json.loads((HERE / "results.json").read_text())
    grid = read_grid(HERE / "grid.csv")
    parts = [machine_line(about["machine"]), summary_table(grid, about["jobs"])]
    parts += ["Worst over best value of one parameter, the others at the optimum:"]
    parts += [effect_table(grid)]
    for rate, cells in grid.items():
        parts += [f"{rate} Mbit/s, medians, one level / two levels:", grid_table(cells)]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=130, help="time for each rate")
    parser.add_argument("--report", action="store_true", help="print the stored results only")
    arguments = parser.parse_args()
    if not arguments.report:
        about = {"machine": machine(), "layout": "2 hosts x 2 ranks, tbf on both ends"}
        results = {rate: measure(rate, arguments.seconds) for rate in RATES_MBIT}
        keys = ("tensors", "payload_bytes", "passes", "ranks", "in_turns")
        jobs = {rate: {key: result[key] for key in keys} for rate, result in results.items()}
        (HERE / "results.json").write_text(json.dumps({**about, "jobs": jobs}, indent=1) + "\n")
        write_grid(HERE / "grid.csv", results)
    print(report())


if __name__ == "__main__":
    main()
