"""Draw the bench's results.

    python experiments/tuner_bench/plot.py [--results DIR]

Regret and lost time against steps, all policies, on machines of the same speed all the time:
plot-light.svg and plot-dark.svg. Ours where the speed changes, regret against steps and what is
claimed on the way against trials: time-light.svg and time-dark.svg. Reads curves.json, writes
beside it. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from kinds import KINDS, STATIONARY
from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from drawing import THEMES, Theme, save, style

HERE = Path(__file__).resolve().parent
LABELS = {
    "ours": "ours",
    "horovod": "Horovod",
    "gp_minimize": "gp_minimize",
    "bo15": "BO, 15 points",
    "random": "random",
}
COLOURS = {"ours": 0, "horovod": 1, "gp_minimize": 2, "bo15": 4, "random": 5}
"""{policy: which of the themes' colours}"""
MARKERS = {"ours": "o", "horovod": "s", "gp_minimize": "^", "bo15": "D", "random": "v"}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One column: what is drawn of the curves.

    Attributes:
        curve, quantile: Names in curves.json.
        title: For people; %.
        bound: What is required, in %.
        low, high: Of the axis, in %; ``low`` above 0: logarithmic.
    """

    curve: str
    quantile: str
    title: str
    bound: float
    low: float
    high: float


PANELS = (
    Panel(
        curve="regret",
        quantile="p50",
        title="slower than the best setting (%),\nmedian job, if it kept what is found by then",
        bound=2.0,
        low=0.2,
        high=200.0,
    ),
    Panel(
        curve="regret",
        quantile="p90",
        title="slower than the best setting (%),\nnine of ten jobs are below",
        bound=5.0,
        low=0.2,
        high=400.0,
    ),
    Panel(
        curve="lost",
        quantile="p90",
        title="time lost so far against the default (%),\nnine of ten jobs are below",
        bound=5.0,
        low=-10.0,
        high=30.0,
    ),
)


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


def draw(axes: Axes, curves: dict[str, Any], kind: str, panel: Panel, theme: Theme) -> None:
    """Draw one panel."""
    steps, ends = curves["steps"], []
    shown = [policy for policy in LABELS if f"{kind} {policy}" in curves]
    low, high = panel.low, panel.high
    for policy in reversed(shown):
        values = [100 * v for v in curves[f"{kind} {policy}"][panel.curve][panel.quantile]]
        inside = [min(max(value, low), high) for value in values]
        width = 2.6 if policy == "ours" else 1.4
        axes.plot(
            steps,
            inside,
            color=colour(theme, policy),
            linewidth=width,
            marker=MARKERS[policy],
            markevery=8,
            markersize=4,
            zorder=4 if policy == "ours" else 3,
        )
        ends.append((policy, inside[-1]))
    axes.set_xscale("log")
    axes.set_xlim(steps[0], steps[-1])
    axes.set_xticks([10, 100, 1000, 10000], labels=["10", "100", "1,000", "10,000"])
    if low > 0:
        axes.set_yscale("log")
        axes.set_yticks([0.5, 1, 2, 5, 10, 20, 50, 100], labels="0.5 1 2 5 10 20 50 100".split())
    axes.minorticks_off()
    axes.set_ylim(low, high)
    axes.axhline(panel.bound, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)), zorder=2)
    axes.text(11, panel.bound, "required", color=theme.ink, fontsize=7, va="bottom")
    if low < 0:
        axes.axhline(0, color=theme.faint, linewidth=1, zorder=1)
    places = [axes.transLimits.transform(axes.transScale.transform((1, v)))[1] for _, v in ends]
    for (policy, _), place in zip(ends, spread_labels(places, 0.02, 0.98, 0.07), strict=True):
        axes.text(
            1.02,
            place,
            LABELS[policy],
            color=colour(theme, policy),
            transform=axes.transAxes,
            va="center",
            fontsize=9,
            fontweight="bold" if policy == "ours" else "normal",
        )


def colour(theme: Theme, policy: str) -> str:
    return theme.colours[COLOURS[policy]]


def plot(curves: dict[str, Any], theme: Theme, path: Path) -> None:
    """Write one SVG: a row per kind of surface, a column per quantity."""
    kinds = [k for k in ("simulated", "measured") if any(name.startswith(k) for name in curves)]
    figure = Figure(figsize=(14, 3.7 * len(kinds)))
    grid = figure.subplots(len(kinds), len(PANELS), squeeze=False)
    for row, kind in zip(grid, kinds, strict=True):
        for axes, panel in zip(row, PANELS, strict=True):
            draw(axes, curves, kind, panel, theme)
            title = f"{kind} jobs: {panel.title}"
            axes.set_title(title, fontsize=9, loc="left", color=theme.ink)
            axes.set_xlabel("training steps since the start", fontsize=9)
            style([axes], theme)
    figure.subplots_adjust(left=0.04, right=0.92, wspace=0.42, hspace=0.42, top=0.92, bottom=0.08)
    save(figure, path, theme)


def plot_time(curves: dict[str, Any], before: dict[str, Any], theme: Theme, path: Path) -> None:
    """Write one SVG: a column per kind; regret above, claims below; the tuner before in gray."""
    kinds = [kind for kind in KINDS if kind in curves.get("claims", {})]
    figure = Figure(figsize=(2.1 * len(kinds) + 1, 5.6))
    grid = figure.subplots(2, len(kinds), squeeze=False, sharey="row")
    for (above, below), kind in zip(grid.T, kinds, strict=True):
        for content, color in ((before, colour(theme, "random")), (curves, colour(theme, "ours"))):
            _draw_regret(above, content, kind, color)
            _draw_claims(below, content, kind, color)
        above.set_xscale("log")
        above.set_xlim(10, 5000)
        above.set_yscale("log")
        above.set_ylim(0.2, 200)
        above.set_yticks([1, 5, 20, 100], labels="1 5 20 100".split())
        above.minorticks_off()
        below.set_xlim(1, 21)
        below.set_ylim(-60, 120)
        wanted = KINDS[kind].wanted
        regret, claimed = 100 * wanted.regret_p90, 100 * wanted.claimed_p90
        for axes, bounds in ((above, (regret,)), (below, (-claimed, claimed))):
            for bound in bounds:
                axes.axhline(bound, color=theme.ink, linewidth=0.8, linestyle=(0, (4, 3)))
            style([axes], theme)
        above.set_title(kind, fontsize=9, loc="left", color=theme.ink)
        above.set_xlabel("training steps", fontsize=8)
        below.set_xlabel("trials", fontsize=8)
    labels = (
        "slower than the best (%),\n9 of 10 jobs are below",
        "claimed minus true gain (points)",
    )
    for axes, label in zip(grid[:, 0], labels, strict=True):
        axes.set_ylabel(label, fontsize=8, color=theme.ink)
    figure.text(
        0.06,
        0.965,
        "blue: ours; gray: before; area: 8 of 10 lines, with their median; dashed: wanted",
        fontsize=8,
        color=theme.ink,
    )
    figure.subplots_adjust(left=0.06, right=0.99, wspace=0.12, hspace=0.4, top=0.88, bottom=0.1)
    save(figure, path, theme)


def _draw_regret(axes: Axes, curves: dict[str, Any], kind: str, color: str) -> None:
    for name in (kind, "simulated") if kind == STATIONARY else (kind,):
        found = curves.get(f"{name} ours")
        if found is not None:
            values = [max(100 * value, 0.2) for value in found["regret"]["p90"]]
            axes.plot(curves["steps"], values, color=color, linewidth=1.6)


def _draw_claims(axes: Axes, curves: dict[str, Any], kind: str, color: str) -> None:
    found = curves.get("claims", {}).get(kind)
    if found is not None:
        low, middle, high = ([100 * v for v in found[name]] for name in ("p10", "p50", "p90"))
        axes.fill_between(found["trials"], low, high, color=color, alpha=0.25, linewidth=0)
        axes.plot(found["trials"], middle, color=color, linewidth=1.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    curves = json.loads((arguments.results / "curves.json").read_text())
    stored = HERE / "results" / "before" / "curves.json"
    before = json.loads(stored.read_text()) if stored.exists() else {}
    for theme in THEMES:
        if any(name.startswith("simulated") for name in curves):
            plot(curves, theme, arguments.results / f"plot-{theme.name}.svg")
        if curves.get("claims"):
            plot_time(curves, before, theme, arguments.results / f"time-{theme.name}.svg")


if __name__ == "__main__":
    main()
