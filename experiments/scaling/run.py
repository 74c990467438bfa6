"""Strong and weak scaling of the digits job on 1, 2 and 4 ranks, with T = S + G / P + C(W) fitted.

python experiments/scaling/run.py [--seconds 20] [--report]

Writes results.json (every sample) and scaling.svg, and prints the tables of the README.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit import Fit, Point, fit
from harness import machine, machine_line, run_ranks, spread

HERE = Path(__file__).resolve().parent
SIZES = (1, 2, 4)
BATCHES = (32, 64, 128)

Row = dict[str, Any]


def measure(seconds: float, passes: int) -> list[Row]:
    """Run every size, the sizes in turns, and join the samples of equal workloads."""
    joined: dict[Any, Row] = {}
    for number in range(passes):
        for ranks in SIZES if number % 2 == 0 else SIZES[::-1]:
            print(f"{ranks} ranks", file=sys.stderr, flush=True)
            words = [HERE / "rank.py", "--seconds", str(seconds)]
            for row in run_ranks(ranks, words, 4 * seconds + 120):
                key = tuple(row[name] for name in ("ranks", "depth", "batch", "together"))
                joined.setdefault(key, {**row, "step_ms": []})["step_ms"] += row["step_ms"]
    return list(joined.values())


def points(rows: list[Row], *, together: bool = True) -> list[Point]:
    """Return the medians."""
    names = ("ranks", "depth", "batch")
    return [
        Point(**{n: row[n] for n in names}, step_ms=statistics.median(row["step_ms"]))
        for row in rows
        if row["together"] == together
    ]


def select(rows: list[Row], ranks: int, *, weak: bool, batch: int, together: bool = True) -> Row:
    """Return the row of a scaling curve: its depth is 1 (strong) or the number of ranks (weak)."""
    key = (ranks, ranks if weak else 1, batch, together)
    names = ("ranks", "depth", "batch", "together")
    return next(row for row in rows if tuple(row[name] for name in names) == key)


def scaling_table(rows: list[Row], model: Fit, *, weak: bool) -> str:
    """Return times, model and efficiency by batch and ranks."""
    ideal = "T(1) / T(W)" if weak else "T(1) / (W T(W))"
    lines = [f"| batch | ranks | tensors | alone, ms | T, ms | model, ms | {ideal} |"]
    lines.append("|" + " --- |" * 7)
    for batch in BATCHES:
        first = statistics.median(select(rows, 1, weak=weak, batch=batch)["step_ms"])
        for ranks in SIZES:
            row = select(rows, ranks, weak=weak, batch=batch)
            alone = select(rows, ranks, weak=weak, batch=batch, together=False)
            time = statistics.median(row["step_ms"])
            efficiency = first / time / (1 if weak else ranks)
            cells = [batch, ranks, row["tensors"], spread(alone["step_ms"]), spread(row["step_ms"])]
            cells += [f"{model.predict(ranks, row['depth'], batch):.1f}", f"{efficiency:.2f}"]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def model_lines(model: Fit) -> str:
    """Return the constants of the fit."""
    costs = [f"c({ranks}) = {cost:.2f} ms" for ranks, cost in model.communication_ms.items()]
    return (
        f"s = {model.fixed_ms:.2f} ms, g = {model.image_ms * 1e3:.0f} us an image, "
        f"{', '.join(costs)}; R^2 = {model.r_squared:.3f}, largest error of a point "
        f"{model.largest_error:.0%}"
    )


def draw(rows: list[Row], model: Fit, path: Path) -> None:
    """Draw measured times and the model, strong and weak scaling side by side."""
    from drawing import LIGHT, save, style
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True)
    for axis, weak in zip(axes, (False, True), strict=True):
        for batch, color in zip(BATCHES, LIGHT.colours, strict=False):
            for ranks in SIZES:
                values = select(rows, ranks, weak=weak, batch=batch)["step_ms"]
                low, middle, high = statistics.quantiles(values, n=4)
                bars = [[middle - low], [high - middle]]
                axis.errorbar([ranks], [middle], yerr=bars, fmt="o", color=color, capsize=3)
            curve = [model.predict(ranks, ranks if weak else 1, batch) for ranks in SIZES]
            axis.plot(SIZES, curve, color=color, label=f"batch {batch}")
        axis.set_xscale("log", base=2)
        axis.set_xticks(SIZES, [str(size) for size in SIZES])
        axis.set_xlabel(f"ranks (on {model.cores} cores)")
        axis.set_ylim(bottom=0)
        axis.set_title("weak: layers grow with the ranks" if weak else "strong: one network")
    axes[0].set_ylabel("ms a step")
    axes[0].legend(title="points: median, quartiles; lines: model", fontsize=8, title_fontsize=8)
    style(axes, LIGHT)
    save(figure, path, LIGHT)


def report(path: Path) -> str:
    """Return the tables of the stored results and draw them."""
    content = json.loads(path.read_text())
    rows = content["rows"]
    model = fit(points(rows), content["machine"]["cores"])
    draw(rows, model, path.with_name("scaling.svg"))
    parts = [machine_line(content["machine"]), model_lines(model)]
    parts += ["Strong scaling:", scaling_table(rows, model, weak=False)]
    parts += ["Weak scaling:", scaling_table(rows, model, weak=True)]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20, help="time for each job")
    parser.add_argument("--passes", type=int, default=2, help="jobs of each number of ranks")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument("--report", action="store_true", help="print and draw the stored results")
    arguments = parser.parse_args()
    if not arguments.report:
        content = {"machine": machine(), "rows": measure(arguments.seconds, arguments.passes)}
        arguments.output.write_text(json.dumps(content, indent=1) + "\n")
    print(report(arguments.output))


if __name__ == "__main__":
    main()
