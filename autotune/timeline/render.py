"""Shows reports in a terminal (rich) and as JSON."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from autotune.timeline.compare import compare
from autotune.timeline.findings import duration, findings, share, size
from autotune.timeline.phases import Phase
from autotune.timeline.report import TimelineReport

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TENSORS_SHOWN = 10
_PLAIN_WIDTH = 100


def as_json(reports: list[TimelineReport]) -> str:
    """Return the reports with their findings; of two also the comparison, as JSON text."""
    shown = [
        {**report.as_dict(), "findings": [vars(finding) for finding in findings(report)]}
        for report in reports
    ]
    if len(reports) == 1:
        return json.dumps(shown[0], indent=2)
    content: dict[str, object] = {"files": shown}
    if len(reports) == 2:
        content["comparison"] = [vars(row) for row in compare(*reports)]
    return json.dumps(content, indent=2)


def show(reports: list[TimelineReport]) -> None:
    """Print the reports; two files are compared phase by phase."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    for report in reports:
        _show_one(console, report)
    if len(reports) == 2:
        console.print(_comparison(*reports))


def _show_one(console: Console, report: TimelineReport) -> None:
    number = "1 rank" if report.ranks == 1 else f"{report.ranks} ranks"
    ranks = number if report.ranks else "number of ranks unknown"
    head = f"\n{report.path}: {report.events} events, {ranks}"
    console.print(head, markup=False, soft_wrap=True)
    console.print(_phases(report))
    console.print(_tensors(report))
    if report.late:
        console.print(_ranks(report))
    for finding in findings(report):
        console.print(f"* {finding}", markup=False, soft_wrap=True)  # one line, also in a pipe


def _table(*columns: str, title: str = "") -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    table.add_column(columns[0], overflow="fold")
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def _phases(report: TimelineReport) -> Table:
    table = _table("phase", "time", "of communication", "in a step")
    total, steps = report.communication_us, report.steps
    for phase in Phase:
        time = report.phase_us[phase]
        if not time:
            continue
        of_all = "" if phase is Phase.IDLE else f"{share(time, total):.1f} %"
        each = duration(sum(steps.phases[phase]) / len(steps)) if len(steps) else "-"
        table.add_row(phase.label, duration(time), of_all, each)
    table.add_row("communication", duration(total), "100 %", "")
    return table


def _tensors(report: TimelineReport) -> Table:
    from rich.text import Text

    table = _table("tensor", "times", "bytes", "negotiation", "operation")
    ordered = sorted(
        report.tensors.items(), key=lambda item: -(item[1].negotiation_us + item[1].operation_us)
    )
    for name, sums in ordered[:TENSORS_SHOWN]:
        table.add_row(
            Text(name),
            str(sums.count),
            size(sums.payload_bytes),
            duration(sums.negotiation_us),
            duration(sums.operation_us),
        )
    if len(ordered) > TENSORS_SHOWN:
        table.add_row(f"and {len(ordered) - TENSORS_SHOWN} more", "", "", "", "")
    return table


def _ranks(report: TimelineReport) -> Table:
    table = _table("rank", "last in negotiations", "in steps", "late in all", "at worst")
    ordered = sorted(report.late.items(), key=lambda item: -item[1].late_us)
    for rank, sums in ordered[:TENSORS_SHOWN]:
        table.add_row(
            str(rank),
            str(sums.negotiations),
            str(sums.steps),
            duration(sums.late_us),
            duration(sums.worst_us),
        )
    return table


def _comparison(before: TimelineReport, after: TimelineReport) -> Table:
    per_step = bool(len(before.steps) and len(after.steps))
    what = "a step" if per_step else "in all"
    table = _table(f"phase, {what}", "before", "after", "factor")
    for row in compare(before, after):
        factor = "-" if row.factor is None else f"{row.factor:.2f}x"
        table.add_row(row.label, duration(row.before_us), duration(row.after_us), factor)
    return table
