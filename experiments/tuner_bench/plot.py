"""Draw the bench's results: regret and lost time against steps, all policies.

    python experiments/tuner_bench/plot.py [--results DIR]

Reads curves.json; writes plot-light.svg and plot-dark.svg beside it. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

HERE = Path(__file__).resolve().parent
LABELS = {
    "ours": "ours",
    "horovod": "Horovod",
    "gp_minimize": "gp_minimize",
    "bo15": "BO, 15 points",
    "random": "random",
}
THEMES: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#ffffff",
        "ink": "#1f2328",
        "faint": "#d0d7de",
        "ours": "#0969da",
        "horovod": "#cf222e",
        "gp_minimize": "#8250df",
        "bo15": "#9a6700",
        "random": "#6e7781",
    },
    "dark": {
        "paper": "#0d1117",
        "ink": "#e6edf3",
        "faint": "#30363d",
        "ours": "#58a6ff",
        "horovod": "#ff7b72",
        "gp_minimize": "#bc8cff",
        "bo15": "#d29922",
        "random": "#8b949e",
    },
}
MARKERS = {"ours": "o", "horovod": "s", "gp_minimize": "^", "bo15": "D", "random": "v"}
BOUNDS = {"regret": 2.0, "lost": 5.0}
TITLES = {
    "regret": "slower than the best setting (%),\nif the job kept what is found by then",
    "lost": "time lost so far against the default (%);\nnine of ten jobs lost less",
}
QUANTILES = {"regret": "p50", "lost": "p90"}
LIMITS = {"regret": (0.2, 200.0), "lost": (-60.0, 60.0)}


def spread_labels(values: list[float], low: float, high: float, gap: float) -> list[float]:
    """Return places near ``values`` (axis fractions) that are at least ``gap`` apart."""
    order = sorted(range(len(values)), key=lambda k: values[k])
    places = list(values)
    for before, after in itertools.pairwise(order):
        places[after] = max(places[after], places[before] + gap)
    excess = max(0.0, places[order[-1]] - high) if order else 0.0
    places = [place - excess for place in places]
    for after, before in zip(order[::-1], order[-2::-1], strict=False):
        places[before] = min(places[before], places[after] - gap)
    return [max(place, low) for place in places]


def draw(axes: Axes, curves: dict[str, Any], kind: str, what: str, theme: dict[str, str]) -> None:
    """Draw one panel."""
    steps, ends = curves["steps"], []
    shown = [policy for policy in LABELS if f"{kind} {policy}" in curves]
    low, high = LIMITS[what]
    for policy in reversed(shown):
        values = [100 * v for v in curves[f"{kind} {policy}"][what][QUANTILES[what]]]
        inside = [min(max(value, low), high) for value in values]
        width = 2.6 if policy == "ours" else 1.4
        axes.plot(
            steps,
            inside,
            color=theme[policy],
            linewidth=width,
            marker=MARKERS[policy],
            markevery=8,
            markersize=4,
            zorder=4 if policy == "ours" else 3,
        )
        ends.append((policy, inside[-1]))
    axes.set_xscale("log")
    axes.set_xlim(steps[0], steps[-1])
    if what == "regret":
        axes.set_yscale("log")
        axes.set_yticks([0.5, 1, 2, 5, 10, 20, 50, 100], labels="0.5 1 2 5 10 20 50 100".split())
        axes.minorticks_off()
    axes.set_ylim(low, high)
    axes.axhline(BOUNDS[what], color=theme["ink"], linewidth=1, linestyle=(0, (4, 3)), zorder=2)
    if what == "lost":
        axes.axhline(0, color=theme["faint"], linewidth=1, zorder=1)
    places = [axes.transLimits.transform(axes.transScale.transform((1, v)))[1] for _, v in ends]
    for (policy, _), place in zip(ends, spread_labels(places, 0.02, 0.98, 0.07), strict=True):
        axes.text(
            1.02,
            place,
            LABELS[policy],
            color=theme[policy],
            transform=axes.transAxes,
            va="center",
            fontsize=9,
            fontweight="bold" if policy == "ours" else "normal",
        )


def style(axes: Axes, theme: dict[str, str]) -> None:
    axes.set_facecolor(theme["paper"])
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme["faint"])
    axes.tick_params(colors=theme["ink"], which="both", labelsize=8)
    axes.grid(axis="y", color=theme["faint"], linewidth=0.5, alpha=0.6)
    axes.title.set_color(theme["ink"])
    axes.xaxis.label.set_color(theme["ink"])


def plot(curves: dict[str, Any], theme_name: str, path: Path) -> None:
    """Write one SVG: a row per kind of surface, a column per quantity."""
    theme = THEMES[theme_name]
    kinds = [k for k in ("simulated", "measured") if any(name.startswith(k) for name in curves)]
    figure, grid = plt.subplots(
        len(kinds), 2, figsize=(10, 3.6 * len(kinds)), squeeze=False, facecolor=theme["paper"]
    )
    for row, kind in zip(grid, kinds, strict=True):
        for axes, what in zip(row, ("regret", "lost"), strict=True):
            draw(axes, curves, kind, what, theme)
            axes.set_title(f"{kind} jobs: {TITLES[what]}", fontsize=9, loc="left")
            axes.set_xlabel("training steps since the start", fontsize=9)
            style(axes, theme)
    figure.subplots_adjust(left=0.06, right=0.9, wspace=0.42, hspace=0.5, top=0.88, bottom=0.1)
    figure.savefig(path, facecolor=theme["paper"], metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    plt.rcParams["svg.fonttype"] = "none"
    plt.rcParams["svg.hashsalt"] = "tuner_bench"
    curves = json.loads((arguments.results / "curves.json").read_text())
    for theme in THEMES:
        plot(curves, theme, arguments.results / f"plot-{theme}.svg")


if __name__ == "__main__":
    main()
