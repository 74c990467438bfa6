"""A picture of the steps: phases as stacked bars, and by how much which rank was late."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any

from autotune.errors import TimelineError
from autotune.timeline.phases import Phase
from autotune.timeline.report import TimelineReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS = 60
"""Neighbouring steps share a bar when there are more."""
NEEDS = "needs matplotlib: pip install 'hvd-autotune[report]'"

# Colour-blind safe (Okabe and Ito).
COLOURS = {
    Phase.TRANSFER: "#0072b2",
    Phase.COPIES: "#56b4e9",
    Phase.QUEUE: "#009e73",
    Phase.DATA: "#f0e442",
    Phase.PROTOCOL: "#cc79a7",
    Phase.NEGOTIATION: "#e69f00",
    Phase.LAST_RANK: "#d55e00",
    Phase.IDLE: "#d9d9d9",
}
"""By phase."""
_RANK_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_RANKS_NAMED = 6
_TITLE_LENGTH = 70
_SIZE = (9.0, 4.6)
"""Inches of one file's panel."""


def save(reports: list[TimelineReport], path: str) -> None:
    """Write the picture of ``reports``, one panel each; the file's ending says the format.

    Raises:
        TimelineError: No file has steps, ``path`` cannot be written or has an ending that is no
            picture's, or matplotlib is missing.
    """
    for report in reports:
        if not len(report.steps):
            raise TimelineError(f"{report.path}: no steps to draw")
    try:
        import matplotlib
    except ImportError:
        raise TimelineError(f"--plot {NEEDS}") from None
    fixed: Any = {"svg.hashsalt": "timeline", "svg.fonttype": "none", "text.parse_math": False}
    try:
        with matplotlib.rc_context(fixed):
            draw(reports).savefig(path, metadata=_without_date(path))
    except OSError as error:
        raise TimelineError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise TimelineError(f"{path}: cannot be drawn ({error})") from None


def draw(reports: list[TimelineReport]) -> Figure:
    """Return the picture; panels share their scales."""
    from matplotlib.figure import Figure

    bars = [_bars(report) for report in reports]
    top_us = max(_top([sum(bar[0]) for bar in all_of_one]) for all_of_one in bars)
    late_us = max(_top([bar[2] for bar in all_of_one if bar[2] > 0]) for all_of_one in bars)
    width, height = _SIZE
    figure = Figure(figsize=(width, height * len(reports)), layout="constrained")
    panels = figure.subfigures(len(reports), 1, squeeze=False)[:, 0]
    for panel, report, all_of_one in zip(panels, reports, bars, strict=True):
        panel.suptitle(f"{_short(report.path)}: where each step's time goes", fontsize=11)
        above, below = panel.subplots(2, 1, sharex=True, height_ratios=(5, 2))
        _draw_phases(above, report, all_of_one, top_us)
        _draw_late(below, all_of_one, late_us)
        below.set_xticks([])
        below.set_xlim(0.4, len(all_of_one) + 0.6)
        below.set_xlabel(_unit(report, all_of_one, top_us))
    return figure


_Bar = tuple[list[float], int, float]  # phases, rank that was late most, by how much


def _bars(report: TimelineReport) -> list[_Bar]:
    """Return the mean of neighbouring steps, at most ``BARS`` of them."""
    steps, bars = report.steps, []
    each = max(1, math.ceil(len(steps) / BARS))
    for start in range(0, len(steps), each):
        rows = range(start, min(start + each, len(steps)))
        phases = [sum(column[i] for i in rows) / len(rows) for column in steps.phases]
        late: dict[int, float] = {}
        for i in rows:
            late[steps.late_rank[i]] = late.get(steps.late_rank[i], 0.0) + steps.late_us[i]
        rank = max(late, key=late.__getitem__)
        bars.append((phases, rank, late[rank] / len(rows)))
    return bars


def _top(lengths: list[float]) -> float:
    """Return the scale's end: an odd bar, much longer than most, is cut rather than obeyed."""
    return min(max(lengths), 3 * median(lengths)) if lengths else 0.0


def _unit(report: TimelineReport, bars: list[_Bar], top_us: float) -> str:
    each = math.ceil(len(report.steps) / BARS)
    unit = "step" if each == 1 else f"{each} steps (mean)"
    cut = sum(sum(phases) > top_us for phases, _, _ in bars)
    note = f"; longer than shown: {cut}" if cut else ""
    return f"one bar: one {unit}, from left to right{note}"


def _short(path: str) -> str:
    """Return the end of a path that is longer than the picture is wide."""
    return path if len(path) <= _TITLE_LENGTH else "..." + path[-_TITLE_LENGTH:]


def _draw_phases(axes: Axes, report: TimelineReport, bars: list[_Bar], top_us: float) -> None:
    places, floor = range(1, len(bars) + 1), [0.0] * len(bars)
    for phase in Phase:
        if not any(report.steps.phases[phase]):
            continue
        heights = [phases[phase] / 1000 for phases, _, _ in bars]
        axes.bar(places, heights, 0.86, floor, color=COLOURS[phase], label=phase.label)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_ylabel("ms")
    _finish(axes, top_us)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, fontsize=8, frameon=False)


def _draw_late(axes: Axes, bars: list[_Bar], late_us: float) -> None:
    axes.set_title("the last rank of each step, and how late it was", fontsize=9, loc="left")
    if late_us <= 0:
        axes.text(0.5, 0.5, "unknown, or none", transform=axes.transAxes, ha="center", va="center")
        axes.set_yticks([])
        return
    ranks = sorted({bar[1] for bar in bars if bar[1] >= 0})
    for rank in ranks:
        shown = [(n, late / 1000) for n, (_, last, late) in enumerate(bars, 1) if last == rank]
        places, heights = zip(*shown, strict=True)
        label = f"rank {rank}" if rank in ranks[:_RANKS_NAMED] else None
        axes.bar(places, heights, 0.86, color=_RANK_COLOURS[rank % 6], label=label)
    axes.set_ylabel("ms late")
    _finish(axes, late_us)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=6, fontsize=8, frameon=False)


def _finish(axes: Axes, top_us: float) -> None:
    axes.set_ylim(0, top_us / 1000 or 1)
    axes.grid(axis="y", linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _without_date(path: str) -> dict[str, Any] | None:
    """Return what makes equal pictures equal files."""
    return {"Date": None} if path.lower().endswith(".svg") else None
