"""Draw the median regret against readings, by policy: plot-light.svg and plot-dark.svg.

python experiments/search_proof/plot.py        # reads runs.csv beside it; needs matplotlib
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).resolve().parent
AT = (5, 10, 15, 20)
STYLES = {
    "ours": ("o", "#0969da", "#58a6ff"),
    "optuna-gp": ("s", "#cf222e", "#ff7b72"),
    "gp_minimize": ("^", "#8250df", "#bc8cff"),
    "smac": ("D", "#1a7f37", "#3fb950"),
    "optuna-tpe": ("P", "#9a6700", "#d29922"),
    "random": ("v", "#6e7781", "#8b949e"),
}
THEMES = {"light": ("#ffffff", "#1f2328", "#d0d7de"), "dark": ("#0d1117", "#e6edf3", "#30363d")}


def draw(rows: list[dict[str, str]], theme: str) -> None:
    """Write one plot."""
    paper, ink, faint = THEMES[theme]
    figure, axes = plt.subplots(figsize=(6.4, 4.0), facecolor=paper)
    axes.set_facecolor(paper)
    for name, (marker, *colours) in STYLES.items():
        mine = [row for row in rows if row["policy"] == name]
        if mine:
            medians = [np.median([float(row[f"regret_{k}"]) for row in mine]) for k in AT]
            colour = colours[list(THEMES).index(theme)]
            axes.plot(AT, medians, marker=marker, color=colour, label=name)
    axes.set_yscale("log")
    axes.set_xticks(AT)
    axes.set_xlabel("readings, the default's included", color=ink)
    axes.set_ylabel("regret of what would be kept, median\n(0: best, 1: median setting)", color=ink)
    axes.tick_params(which="both", colors=ink)
    axes.grid(color=faint, linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_color(faint)
    axes.legend(facecolor=paper, edgecolor=faint, labelcolor=ink, fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE / f"plot-{theme}.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    with (HERE / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for theme in THEMES:
        draw(rows, theme)


if __name__ == "__main__":
    main()
