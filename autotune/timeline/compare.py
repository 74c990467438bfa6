"""Before and after, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.timeline.phases import COMMUNICATION, Phase
from autotune.timeline.report import TimelineReport


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the comparison.

    Attributes:
        key, label: What is compared.
        before_us, after_us: Time per step where both files have steps, else in all.
        factor: before / after, so more than 1 is faster; None where either is 0.
    """

    key: str
    label: str
    before_us: float
    after_us: float
    factor: float | None


def compare(before: TimelineReport, after: TimelineReport) -> list[Row]:
    """Return a row per phase that either file has, then negotiation, communication and all."""
    per_step = bool(len(before.steps) and len(after.steps))
    old, new = (_times(report, per_step) for report in (before, after))
    rows = [_row(phase.key, phase.label, old[phase], new[phase]) for phase in COMMUNICATION]
    rows = [row for row in rows if row.before_us or row.after_us]
    negotiation = (Phase.PROTOCOL, Phase.NEGOTIATION, Phase.LAST_RANK)
    for key, label, phases in (
        ("negotiation", "all negotiation", negotiation),
        ("communication", "all communication", COMMUNICATION),
        ("all", "step" if per_step else "recording", tuple(Phase)),
    ):
        sums = (sum(times[phase] for phase in phases) for times in (old, new))
        rows.append(_row(key, label, *sums))
    return rows


def _times(report: TimelineReport, per_step: bool) -> list[float]:
    if not per_step:
        return report.phase_us
    return [sum(column) / len(report.steps) for column in report.steps.phases]


def _row(key: str, label: str, before_us: float, after_us: float) -> Row:
    factor = before_us / after_us if before_us and after_us else None
    return Row(key=key, label=label, before_us=before_us, after_us=after_us, factor=factor)
