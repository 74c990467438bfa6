"""The report's pictures, drawn by matplotlib: for a page, where style sheets colour them, or not.

Each function returns a ``Figure``. Everything that is drawn is in a table of the page, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from autotune.exact import rounded_shown
from autotune.report.explain import Explanation, Slice
from autotune.report.several import Comparison, Scaling
from autotune.report.story import Story
from autotune.report.verdict import Kind
from autotune.trial import Gain, TrialState

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.4
"""Inches; text of 9 points is then readable at the width of a page."""
FONT = 9.0
MOST_ERROR_BARS = 120
"""Trials that get an interval each; of more only the points are drawn."""
CUT = 3.0
"""Gains are drawn up to so many times the largest interval of a complete trial."""


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Colours, also for the colour-blind (after Okabe and Ito)."""

    ink: str = "#1f2328"
    faint: str = "#6e7781"
    grid: str = "#d0d7de"
    paper: str = "#ffffff"
    default: str = "#57606a"
    tuned: str = "#0969da"
    good: str = "#1a7f37"
    bad: str = "#bc4c00"
    band: str = "#b6d4fb"
    wait: str = "#bc4c00"


PLAIN = Palette()


def new(height: float, *, width: float = WIDTH) -> Figure:
    """Return an empty figure; its height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def draw_pairs(story: Story, palette: Palette = PLAIN) -> Figure | None:
    """Draw every pair of the comparison; None: there was none."""
    if not story.pairs:
        return None
    figure = new(2.7)
    axes = figure.subplots()
    numbers = [pair.number for pair in story.pairs]
    gains = [100 * pair.gain for pair in story.pairs]
    gain = story.verdict.gain
    if gain is not None and story.verdict.compared:
        axes.axhspan(100 * gain.low, 100 * gain.high, color=palette.band, alpha=0.45, lw=0)
        axes.axhline(100 * gain.estimate, color=palette.tuned, lw=1.4)
        axes.annotate(
            "gain and interval",
            (1, 100 * gain.estimate),
            (4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=palette.tuned,
            fontsize=FONT,
            va="bottom" if gain.estimate >= 0 else "top",
        )
    axes.axhline(0, color=palette.default, lw=1.2, ls=(0, (4, 3)))
    axes.plot(numbers, gains, "o", ms=6, color=palette.tuned, mec=palette.paper, mew=0.8)
    axes.set_xticks(numbers if len(numbers) <= 16 else numbers[:: math.ceil(len(numbers) / 16)])
    axes.set_xlim(0.4, len(numbers) + 0.6)
    axes.set_xlabel("pair of windows, in the order in which they were read")
    axes.set_ylabel("gain over the default, %")
    axes.annotate(
        "as the default",
        (1, 0),
        (4, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        color=palette.default,
        fontsize=FONT,
        va="center" if gain is None else "top" if gain.estimate >= 0 else "bottom",
    )
    finish([axes], palette)
    return figure


def draw_changes(explanation: Explanation, palette: Palette = PLAIN) -> Figure | None:
    """Draw the way from the default to a setting; None: there is no way."""
    changes = explanation.changes
    if not changes:
        return None
    figure = new(0.9 + 0.42 * (len(changes) + 1))
    axes = figure.subplots()
    labels, start = ["default"], 0.0
    axes.plot([0], [0], "D", ms=6, color=palette.default, clip_on=False, zorder=3)
    for row, change in enumerate(changes, 1):
        end = 100 * change.total.estimate
        colour = palette.good if end >= start else palette.bad
        axes.barh(row, end - start, 0.5, start, color=colour, alpha=0.85)
        low, high = 100 * change.total.low, 100 * change.total.high
        axes.plot([low, high], [row, row], color=palette.ink, lw=1.1)
        axes.plot([low, high], [row, row], "|", color=palette.ink, ms=7)
        axes.plot([start, start], [row - 1, row + 0.25], color=palette.faint, lw=0.7)
        labels.append(change.after_text)
        start = end
    axes.axvline(0, color=palette.default, lw=1.2, ls=(0, (4, 3)))
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("gain over the default, all changes so far (line: 90 % interval), %")
    finish([axes], palette, grid="x")
    return figure


def draw_slices(explanation: Explanation, palette: Palette = PLAIN, *, story: Story) -> Figure:
    """Draw how each parameter acts around the setting, with the trials."""
    columns = 2 if len(explanation.slices) > 1 else 1
    rows = math.ceil(len(explanation.slices) / columns)
    figure = new(2.5 * rows + 0.1)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    panels = [panel for line in grid for panel in line]
    low, high = _limits(story)
    told = [100 * gain.estimate for gain in explanation.told.values()]
    low, high = min([low, *told]), max([high, *told])
    margin = 0.03 * (high - low)
    low, high = low - margin, high + margin
    for panel, one in zip(panels, explanation.slices, strict=False):
        _draw_slice(panel, one, explanation, story, palette)
        panel.set_ylim(low, high)
    for panel in panels[len(explanation.slices) :]:
        panel.remove()
    for line in grid:
        line[0].set_ylabel("gain, %")
    finish(panels[: len(explanation.slices)], palette)
    return figure


def _draw_slice(
    axes: Axes, one: Slice, explanation: Explanation, story: Story, palette: Palette
) -> None:
    places = np.arange(len(one.places))
    values = [place.value for place in one.places]
    gains = [place.over_default for place in one.places]
    low, mean, high = (
        100 * np.array([getattr(gain, name) for gain in gains])
        for name in ("low", "estimate", "high")
    )
    axes.fill_between(places, low, high, color=palette.band, alpha=0.45, lw=0)
    axes.plot(places, mean, color=palette.tuned, lw=1.6)
    axes.axhline(0, color=palette.default, lw=1.0, ls=(0, (4, 3)))
    axes.axvline(values.index(one.at), color=palette.tuned, lw=1.0, ls=":")
    wanted = explanation.around.as_dict()
    for attempt in story.attempts:
        trial = attempt.trial
        own = trial.params.as_dict()
        told = explanation.told.get(trial.params)
        gain = 0.0 if trial.trial_id == 0 else told.estimate if told is not None else None
        if gain is None or own[one.parameter.name] not in values:
            continue
        rest = {name: value for name, value in own.items() if name != one.parameter.name}
        is_on = all(wanted[name] == value for name, value in rest.items())
        place = values.index(own[one.parameter.name])
        face = palette.ink if is_on else "none"
        edge = palette.ink if is_on else palette.faint
        axes.plot([place], [100 * gain], "o", ms=4.5, mfc=face, mec=edge, mew=0.9)
    step = math.ceil(len(values) / 7)
    shown = [k for k in range(len(values)) if k % step == 0]
    axes.set_xticks(shown, [_short(one, values[k]) for k in shown])
    unit = one.parameter.shown_unit
    axes.set_title(f"{one.parameter.word}{f', {unit}' if unit else ''}", loc="left", fontsize=FONT)


def _short(one: Slice, value: float) -> str:
    if one.parameter.type is bool:
        return "on" if value else "off"
    if one.parameter.zero_is_special and not value:
        return "off" if one.parameter.zero_word == "off" else "0"
    return rounded_shown(one.parameter, value, 2)


def draw_waiting(story: Story, palette: Palette = PLAIN) -> Figure | None:
    """Draw what a step waits, under the default and the other setting; None: not known."""
    bars = [(label, one) for label, one in waiting_rows(story) if one is not None]
    if not bars:
        return None
    figure = new(0.9 + 0.42 * len(bars))
    axes = figure.subplots()
    for row, (_, one) in enumerate(bars):
        hidden = (one.step_us - one.exposed_us) / 1000
        wait = one.exposed_us / 1000
        first = row == 0
        axes.barh(row, hidden, 0.55, color=palette.default, label="computes" if first else None)
        axes.barh(row, wait, 0.55, hidden, color=palette.wait, label="waits" if first else None)
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    axes.set_xlabel("ms a step")
    finish([axes], palette, grid="x")
    _legend(axes, palette, columns=2)
    return figure


def waiting_rows(story: Story) -> list[tuple[str, Any]]:
    """Return (what is in force, its ``Waiting``) of the default and the other setting."""
    is_kept = story.verdict.kind in (Kind.FASTER, Kind.BEYOND_DOUBT)
    return [("default", story.default), ("tuned" if is_kept else "other setting", story.tuned)]


def draw_history(story: Story, palette: Palette = PLAIN) -> Figure | None:
    """Draw the trials' gains against time, with the default's step time under it."""
    shown = [one for one in story.attempts if one.at_s is not None and one.trial.gain is not None]
    if story.drift is None:
        return None
    figure = new(4.3)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(5, 3))
    scale, unit = (60.0, "min") if _end_s(story) >= 180 else (1.0, "s")
    low, high = _limits(story)
    for state, marker, colour in (
        (TrialState.COMPLETE, "o", palette.tuned),
        (TrialState.ABANDONED, "X", palette.bad),
    ):
        own = [one for one in shown if one.trial.state is state]
        if own:
            _draw_attempts(upper, own, scale, marker, colour, label=str(state))
    rejected = [one for one in story.attempts if one.trial.state is TrialState.REJECTED]
    at = [one.at_s / scale for one in rejected if one.at_s is not None]
    if at:
        upper.plot(at, [low] * len(at), "x", color=palette.bad, label="rejected", clip_on=False)
    upper.axhline(0, color=palette.default, lw=1.2, ls=(0, (4, 3)))
    upper.set_ylim(low, high)
    upper.set_ylabel("gain over the default, %")
    curve = story.drift
    times = curve.at_s / scale
    if curve.windows > 1:
        lower.fill_between(
            times, curve.low_us / 1000, curve.high_us / 1000, color=palette.grid, lw=0
        )
    lower.plot(times, curve.step_us / 1000, ".-", ms=3, lw=1.0, color=palette.default)
    lower.set_ylabel("default, ms a step")
    lower.set_xlabel(f"{unit} since the first reading")
    lower.set_ylim(bottom=0)
    finish([upper, lower], palette)
    if shown:
        _legend(upper, palette, columns=3)
    return figure


def _draw_attempts(
    axes: Axes, own: Sequence[Any], scale: float, marker: str, colour: str, *, label: str
) -> None:
    times = np.array([one.at_s for one in own]) / scale
    gains = 100 * np.array([one.trial.gain.estimate for one in own])
    if len(own) <= MOST_ERROR_BARS:
        ends = 100 * np.array([[one.trial.gain.low, one.trial.gain.high] for one in own])
        lines = np.array(
            [[[t, low], [t, high]] for t, (low, high) in zip(times, ends, strict=True)]
        )
        from matplotlib.collections import LineCollection

        axes.add_collection(LineCollection(list(lines), colors=colour, linewidths=1.0, alpha=0.7))
    axes.plot(times, gains, marker, ls="", ms=5, color=colour, label=label)


def _end_s(story: Story) -> float:
    return float(story.drift.at_s.max()) if story.drift is not None else 0.0


def _limits(story: Story) -> tuple[float, float]:
    """Return the scale of gains in per cent: what is absurdly wide is cut."""
    gains: list[Gain] = [one.trial.gain for one in story.attempts if one.trial.gain is not None]
    if not gains:
        return -10.0, 10.0
    estimates = [gain.estimate for gain in gains]
    width = float(np.median([gain.high - gain.low for gain in gains]))
    low = max(min(gain.low for gain in gains), min(estimates) - CUT * width, -1.0)
    high = min(max(gain.high for gain in gains), max(estimates) + CUT * width)
    low, high = min(low, -0.02), max(high, 0.02)
    margin = 0.06 * (high - low)
    return 100 * (low - margin), 100 * (high + margin)


def draw_gains(comparison: Comparison, palette: Palette = PLAIN) -> Figure:
    """Draw the gain of each log with its interval."""
    figure = new(1.0 + 0.42 * len(comparison.stories))
    axes = figure.subplots()
    for row, story in enumerate(comparison.stories):
        gain, is_compared = story.verdict.gain, story.verdict.compared
        if gain is None:
            axes.annotate(
                _no_gain(story),
                (0, row),
                (5, 0),
                textcoords="offset points",
                va="center",
                fontsize=FONT,
                color=palette.faint,
            )
            continue
        colour = palette.tuned if is_compared else palette.faint
        axes.plot([100 * gain.low, 100 * gain.high], [row, row], color=colour, lw=2)
        face = colour if is_compared else "none"
        axes.plot([100 * gain.estimate], [row], "o", ms=7, mfc=face, mec=colour)
    axes.axvline(0, color=palette.default, lw=1.2, ls=(0, (4, 3)))
    axes.set_yticks(range(len(comparison.names)), list(comparison.names))
    axes.set_ylim(len(comparison.names) - 0.5, -0.5)
    axes.set_xlabel("gain over the default of the same job, % (hollow: not certified yet)")
    finish([axes], palette, grid="x")
    return figure


def _no_gain(story: Story) -> str:
    if story.verdict.kind is Kind.NOTHING_COMPARED:
        return "nothing worth a comparison: the default stays"
    return "not known"


def draw_scaling(scaling: Scaling, palette: Palette = PLAIN) -> Figure:
    """Draw step time and efficiency against the number of ranks."""
    figure = new(2.9)
    left, right = figure.subplots(1, 2)
    places = range(len(scaling.points))
    labels = [str(point.ranks) for point in scaling.points]
    work = [point.model_us / 1000 for point in scaling.points]
    rest = [max(0.0, point.communication_us / 1000) for point in scaling.points]
    name = "G / W" if scaling.is_shared else "G"
    left.bar(places, work, 0.55, color=palette.default, label=name)
    left.bar(places, rest, 0.55, work, color=palette.wait, label="C(W)")
    times = [point.step_us / 1000 for point in scaling.points]
    left.plot(places, times, "o", ms=5, color=palette.ink, label="measured")
    left.set_ylabel("ms a step")
    right.axhline(100, color=palette.default, lw=1.0, ls=(0, (4, 3)))
    for place, point in zip(places, scaling.points, strict=True):
        ends = [100 * point.efficiency_low, 100 * point.efficiency_high]
        if place:  # the first is what the others are measured by
            right.plot([place, place], ends, color=palette.tuned, lw=1.0, alpha=0.7)
    right.plot(
        places, [100 * point.efficiency for point in scaling.points], "o-", color=palette.tuned
    )
    right.set_ylim(0, 1.05 * max(100.0, *(100 * one.efficiency_high for one in scaling.points[1:])))
    right.set_ylabel("efficiency, %")
    for axes in (left, right):
        axes.set_xticks(places, labels)
        axes.set_xlabel("ranks")
        axes.set_xlim(-0.6, len(labels) - 0.4)
    finish([left, right], palette)
    _legend(left, palette, columns=3)
    return figure


def _legend(axes: Axes, palette: Palette, *, columns: int) -> None:
    legend = axes.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        fontsize=FONT,
        frameon=False,
        borderaxespad=0.2,
        handletextpad=0.5,
    )
    for text in legend.get_texts():
        text.set_color(palette.ink)


def finish(axes: Sequence[Axes], palette: Palette, *, grid: Literal["x", "y"] = "y") -> None:
    """Give finished axes the palette's colours, and no frame."""
    for one in axes:
        one.figure.set_facecolor("none")
        one.set_facecolor("none")
        one.tick_params(colors=palette.ink, labelsize=FONT, length=3)
        one.xaxis.label.set(color=palette.ink, fontsize=FONT)
        one.yaxis.label.set(color=palette.ink, fontsize=FONT)
        one.title.set_color(palette.ink)
        one._left_title.set_color(palette.ink)  # type: ignore[attr-defined]
        for side, spine in one.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(palette.faint)
        one.grid(axis=grid, color=palette.grid, linewidth=0.6)
        one.set_axisbelow(True)
