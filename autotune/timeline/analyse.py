"""From a file to its report."""

from __future__ import annotations

import re

from autotune.errors import TimelineError
from autotune.timeline.events import Event, EventReader
from autotune.timeline.report import TimelineReport
from autotune.timeline.sweep import Sweep

_RANK = re.compile(r"\d{1,6}")


def analyse(path: str) -> TimelineReport:
    """Return what the timeline at ``path`` says.

    Raises:
        TimelineError: It cannot be read, is no timeline, or holds no collective.
    """
    reader = EventReader(path)
    report = TimelineReport(path)
    sweep: Sweep | None = None
    for batch in reader.batches():
        if sweep is None:
            sweep = Sweep(report, _ranks_in(batch))
        sweep.feed(batch)
    report.headless, report.whole = reader.headless, reader.whole
    report.skipped_bytes = reader.skipped_bytes
    if sweep is not None:
        sweep.finish()
    if not report.tensors:
        raise TimelineError(f"{path}: {_why_nothing(report)}")
    return report


def _ranks_in(events: list[Event]) -> int:
    """Return the number of ranks that report in ``events``, 0 if none does."""
    names = (event.get("name") for event in events if event.get("ph") == "X")
    ranks = [int(name) for name in names if isinstance(name, str) and _RANK.fullmatch(name)]
    return max(ranks, default=-1) + 1


def _why_nothing(report: TimelineReport) -> str:
    if report.skipped_bytes and not report.events:
        return "not a timeline: no event could be read"
    return "no collective in it: nothing to analyse"
