"""Where a step's time goes by timelines: phases, overlap, the slowest rank; before and after."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.report.figures import PLAIN, Palette, finish, new
from autotune.report.tables import Table
from autotune.timeline import TimelineReport, analyse
from autotune.timeline.compare import compare
from autotune.timeline.findings import duration, findings, share
from autotune.timeline.phases import COMMUNICATION, Phase
from autotune.timeline.plot import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Timelines:
    """One timeline, or two: before and after.

    Attributes:
        reports: What each says.
        names: What they are called.
    """

    reports: tuple[TimelineReport, ...]
    names: tuple[str, ...]

    @property
    def per_step(self) -> bool:
        """Whether times are per step; else they are of whole recordings."""
        return all(len(report.steps) for report in self.reports)


def read_timelines(paths: Sequence[str]) -> Timelines:
    """Return what timelines say.

    Raises:
        TimelineError: One cannot be read, is no timeline, or holds no collective.
    """
    reports = tuple(analyse(path) for path in paths)
    names = ("before", "after") if len(reports) == 2 else tuple(map(os.path.basename, paths))
    return Timelines(reports=reports, names=names)


def phase_times(report: TimelineReport, *, per_step: bool) -> list[float]:
    """Return microseconds by phase: of a step, or of the whole recording."""
    if not per_step:
        return list(report.phase_us)
    return [sum(column) / len(report.steps) for column in report.steps.phases]


def phases(lines: Timelines) -> Table:
    """Return the phases."""
    what = "a step" if lines.per_step else "in all"
    if len(lines.reports) == 2:
        shown = [(row.label, row.before_us, row.after_us) for row in compare(*lines.reports)]
        before_us, after_us = (phase_times(one, per_step=lines.per_step) for one in lines.reports)
        shown.insert(-1, (Phase.IDLE.label, before_us[Phase.IDLE], after_us[Phase.IDLE]))
        rows = tuple(
            (label, duration(before), duration(after), _factor(before, after))
            for label, before, after in shown
        )
        return Table(caption=f"Phases, {what}", header=("phase", *lines.names, "factor"), rows=rows)
    times = phase_times(lines.reports[0], per_step=lines.per_step)
    whole = sum(times[phase] for phase in COMMUNICATION)
    found = [
        (phase.label, duration(times[phase]), f"{share(times[phase], whole):.1f} %")
        for phase in COMMUNICATION
        if times[phase]
    ]
    found.append((Phase.IDLE.label, duration(times[Phase.IDLE]), "-"))
    return Table(
        caption=f"Phases, {what}",
        header=("phase", lines.names[0], "of communication"),
        rows=tuple(found),
    )


def _factor(before_us: float, after_us: float) -> str:
    return f"{before_us / after_us:.2f}x" if before_us and after_us else "-"


def facts(lines: Timelines) -> Table:
    """Return overlap and the slowest rank."""
    rows = [
        ("steps", *(str(len(report.steps)) for report in lines.reports)),
        ("hidden behind the backward pass", *map(_hidden, lines.reports)),
        ("operations at a time", *map(_at_a_time, lines.reports)),
        ("slowest rank", *map(_slowest, lines.reports)),
    ]
    return Table(caption="Overlap and ranks", header=("what", *lines.names), rows=tuple(rows))


def _hidden(report: TimelineReport) -> str:
    overlap = report.compute_overlap_us
    if overlap is None:
        return "not known: the file has no STEP or BACKWARD events"
    return f"{share(overlap, report.operation_union_us):.0f} % of communication"


def _at_a_time(report: TimelineReport) -> str:
    union = report.operation_union_us
    return f"{report.operation_sum_us / union:.2g}" if union > 0 else "-"


def _slowest(report: TimelineReport) -> str:
    if not report.late:
        return "not known"
    rank, sums = max(report.late.items(), key=lambda item: item[1].late_us)
    return f"rank {rank}: {duration(sums.late_us)} late in all, at worst {duration(sums.worst_us)}"


def texts(lines: Timelines) -> list[tuple[str, list[str]]]:
    """Return what each timeline means, in sentences."""
    return [
        (name, [str(finding) for finding in findings(report)])
        for name, report in zip(lines.names, lines.reports, strict=True)
    ]


def draw(lines: Timelines, palette: Palette = PLAIN) -> Figure:
    """Draw the phases as one bar per timeline."""
    figure = new(1.5 + 0.5 * len(lines.reports))
    axes = figure.subplots()
    all_times = [phase_times(report, per_step=lines.per_step) for report in lines.reports]
    starts = [0.0] * len(all_times)
    for phase in Phase:
        widths = [times[phase] / 1000 for times in all_times]
        if not any(widths):
            continue
        axes.barh(
            range(len(widths)),
            widths,
            0.6,
            starts,
            color=COLOURS[phase],
            edgecolor=palette.faint,
            linewidth=0.5,
            label=phase.label,
        )
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_yticks(range(len(lines.names)), list(lines.names))
    axes.invert_yaxis()
    axes.set_xlabel("ms a step" if lines.per_step else "ms, whole recording")
    finish([axes], palette, grid="x")
    legend = axes.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=8, frameon=False
    )
    for text in legend.get_texts():
        text.set_color(palette.ink)
    return figure
