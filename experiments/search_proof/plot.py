"""Draw the median regret against readings, by policy: plot-light.svg and plot-dark.svg.

python experiments/search_proof/plot.py        # reads runs.csv beside it; needs matplotlib
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from drawing import THEMES, Theme, save, style

HERE = Path(__file__).resolve().parent
AT = (5, 10, 15, 20)
POLICIES = ("ours", "optuna-gp", "gp_minimize", "smac", "optuna-tpe", "random")
"""In the order of the themes' colours."""
MARKERS = "os^DPv"


def draw(rows: list[dict[str, str]], theme: Theme) -> None:
    """Write one plot."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for name, marker, colour in zip(POLICIES, MARKERS, theme.colours, strict=True):
        mine = [row for row in rows if row["policy"] == name]
        if mine:
            medians = [np.median([float(row[f"regret_{k}"]) for row in mine]) for k in AT]
            axes.plot(AT, medians, marker=marker, color=colour, label=name)
    axes.set_yscale("log")
    axes.set_yticks([0.07, 0.1, 0.15, 0.2, 0.3, 0.4], labels="0.07 0.1 0.15 0.2 0.3 0.4".split())
    axes.minorticks_off()
    axes.set_xticks(AT)
    axes.set_xlabel("readings, the default's included")
    axes.set_ylabel("regret of what would be kept, median\n(0: best, 1: median setting)")
    axes.legend(fontsize=8)
    style([axes], theme)
    save(figure, HERE / f"plot-{theme.name}.svg", theme)


def main() -> None:
    with (HERE / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for theme in THEMES:
        draw(rows, theme)


if __name__ == "__main__":
    main()
