"""What a timeline means, in sentences: one finding each, with figures and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotune.exact import rounded
from autotune.timeline.phases import COMMUNICATION, Phase
from autotune.timeline.report import RankSums, TimelineReport

LATE_SHARE = 0.1
"""A rank is worth a sentence when it makes the others wait for this share of communication."""
SLOW_SHARE = 1.5
"""It is the slow one when it is late for so many times what a rank is on average."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One conclusion.

    Attributes:
        key: Its kind, for programs.
        text: What is so, with figures.
        advice: What to do about it; "" for nothing.
    """

    key: str
    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.advice}".strip()


def findings(report: TimelineReport) -> list[Finding]:
    """Return what ``report`` shows, the most general first."""
    return [finding for find in _FINDERS for finding in find(report)]


def duration(us: float) -> str:
    """Return ``us`` microseconds as people write them."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{rounded(us / size, 3)} {unit}"
    return f"{us:.0f} us"


def size(count: float) -> str:
    """Return ``count`` bytes as people write them."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{rounded(count, 3)} {unit}"
        count /= 1024
    return f"{rounded(count, 3)} GiB"


def share(part: float, whole: float) -> float:
    """Return ``part`` in percent of ``whole``; 0 of nothing."""
    return 100 * part / whole if whole > 0 else 0.0


def _file(report: TimelineReport) -> Iterator[Finding]:
    if report.headless or not report.whole or report.skipped_bytes:
        where = "was cut" if not report.whole else "is damaged"
        if report.headless:
            where = "has lost its beginning" + ("" if report.whole else " and its end")
        yield Finding(
            key="cut",
            text=f"The file {where}: all {report.events} whole events were used, "
            f"{report.skipped_bytes} bytes were not.",
        )
    if report.dropped or report.odd_events:
        yield Finding(
            key="incomplete",
            text=f"The recording has gaps: {report.dropped} events dropped by the recorder, "
            f"{report.odd_events} that fit nowhere (ends without a begin, times going back).",
        )


def _unanswered(report: TimelineReport) -> Iterator[Finding]:
    if not report.unanswered:
        return
    name, ranks = next(iter(report.unanswered.items()))
    more = len(report.unanswered) - 1
    others = f" (and {more} more tensors)" if more else ""
    yield Finding(
        key="unanswered",
        text=f"At the end {name}{others} still waits for rank {', '.join(map(str, ranks))}.",
        advice="Where the job hung: does that rank skip the tensor, or has it ended?",
    )


def _total(report: TimelineReport) -> Iterator[Finding]:
    total, whole = report.communication_us, report.duration_us
    steps = ""
    if len(report.steps):
        in_steps = sum(sum(report.steps.phases[phase]) for phase in COMMUNICATION)
        steps = f", {duration(in_steps / len(report.steps))} in a step"
    yield Finding(
        key="total",
        text=f"Communication is under way for {duration(total)} of {duration(whole)} "
        f"({share(total, whole):.0f} %){steps}.",
    )


def _start(report: TimelineReport) -> Iterator[Finding]:
    first = report.first_collective_us
    if first is None:
        yield Finding(key="first_collective", text="No collective was performed.")
        return
    init = "" if report.init_us is None else f", of which hvd.init() is {duration(report.init_us)}"
    long = first > 0.25 * report.duration_us
    yield Finding(
        key="first_collective",
        text=f"The first collective begins after {duration(first)}{init}.",
        advice="That is a large part of this recording: look at loading and start-up, or record "
        "for longer."
        if long
        else "",
    )


def _negotiation(report: TimelineReport) -> Iterator[Finding]:
    total, time = report.communication_us, report.negotiation_us
    last, protocol, unknown = (
        report.phase_us[p] for p in (Phase.LAST_RANK, Phase.PROTOCOL, Phase.NEGOTIATION)
    )
    parts = f"{duration(last)} waiting for the last rank, {duration(protocol)} protocol"
    if unknown:
        parts += f", {duration(unknown)} of cached tensors, which the file does not divide"
    advice = ""
    if share(protocol + unknown, total) > 30 and report.operations - {"BROADCAST"}:
        advice = "Try a shorter cycle time and a cache that holds all tensors (HOROVOD_AUTOTUNE=1)."
    elif share(last, total) > 30:
        advice = "Settings do not help against a late rank: balance data loading and compute."
    yield Finding(
        key="negotiation",
        text=f"Negotiation is {duration(time)}, {share(time, total):.0f} % of communication: "
        f"{parts}.",
        advice=advice,
    )


def _cache(report: TimelineReport) -> Iterator[Finding]:
    """Say where more tensors come again than the response cache holds."""
    capacity = report.cache_capacity
    repeated = sum(sums.count > 1 for sums in report.tensors.values())
    if capacity and repeated > capacity:
        yield Finding(
            key="cache",
            text=f"The response cache holds {capacity:,} of {repeated:,} tensors that come again.",
            advice=f"Set HOROVOD_CACHE_CAPACITY >= {1 << (repeated - 1).bit_length()}.",
        )


def _late_rank(report: TimelineReport) -> Iterator[Finding]:
    if not report.late:
        yield Finding(
            key="late_rank", text="Who is late is unknown: the file has no ticks of several ranks."
        )
        return
    rank, sums = max(report.late.items(), key=lambda item: item[1].late_us)
    if sums.late_us < LATE_SHARE * report.communication_us:
        yield Finding(key="late_rank", text="No rank is notably late.")
        return
    all_us = sum(one.late_us for one in report.late.values())
    if sums.late_us < SLOW_SHARE * all_us / max(report.ranks, len(report.late), 2):
        yield Finding(
            key="late_rank",
            text=f"No rank is slower than the others: they are late in turns, rank {rank} most, in "
            f"{share(sums.late_us, all_us):.0f} % of {duration(all_us)}.",
        )
        return
    yield Finding(
        key="late_rank",
        text=f"Rank {rank} is the slow one: last in {_how_often(report, sums)}, "
        f"{duration(sums.late_us)} in all, at worst {duration(sums.worst_us)}.",
        advice=f"Look at rank {rank}'s data loading, its share of the work and its machine.",
    )


def _how_often(report: TimelineReport, sums: RankSums) -> str:
    if len(report.steps):
        mean = duration(sums.late_us / max(sums.steps, 1))
        return f"{sums.steps} of {_steps(report)}, by {mean} on average"
    return f"{sums.negotiations} negotiations"


def _steps(report: TimelineReport) -> str:
    return "1 step" if len(report.steps) == 1 else f"{len(report.steps)} steps"


def _idle(report: TimelineReport) -> Iterator[Finding]:
    steps = report.steps
    if not len(steps):
        yield Finding(key="idle", text="Idle gaps within steps are unknown: no steps were found.")
        return
    idle, time = sum(steps.phases[Phase.IDLE]), sum(steps.duration_us)
    those = "the step's" if len(steps) == 1 else f"the {len(steps)} steps'"
    yield Finding(
        key="idle",
        text=f"In {share(idle, time):.0f} % of {those} time nothing communicates "
        f"({duration(idle / len(steps))} a step; steps by {steps.source}).",
    )


def _backends(report: TimelineReport) -> Iterator[Finding]:
    for name, sums in sorted(report.backends.items(), key=lambda item: -item[1].transfer_us):
        rate = ""
        if sums.payload_bytes and sums.transfer_us:
            rate = f", {rounded(sums.payload_bytes / sums.transfer_us, 3)} bytes/us"
        yield Finding(
            key="backend",
            text=f"{name} moves {sums.tensors} tensors in {sums.operations} operations, "
            f"{duration(sums.transfer_us)}{rate}.",
        )


def _overlap(report: TimelineReport) -> Iterator[Finding]:
    union, total = report.operation_union_us, report.operation_sum_us
    among = (
        "one at a time" if total <= 1.01 * union else f"{total / union:.2g} at a time on average"
    )
    overlap = report.compute_overlap_us
    if overlap is None:
        text = "with compute is unknown, as the file has no BACKWARD events"
    else:
        text = f"{share(overlap, union):.0f} % of their time is hidden behind the backward pass"
    yield Finding(key="overlap", text=f"Operations run {among}; {text}.")


def _fusion(report: TimelineReport) -> Iterator[Finding]:
    fused, threshold = report.fused, report.threshold_bytes
    if not fused.operations:
        return
    each = fused.payload_bytes / fused.operations
    text = f"Fusion joins {fused.tensors / fused.operations:.1f} tensors, {size(each)} an operation"
    if threshold is None:
        yield Finding(key="fusion", text=f"{text}; the file does not say the threshold.")
        return
    filled = share(each, threshold)
    advice = ""
    if threshold and filled < 10 and fused.tensors < 4 * fused.operations:
        advice = "Few tensors are ready together: a longer cycle time would join more."
    limit = (
        f"{filled:.0f} % of the threshold of {size(threshold)}" if threshold else "fusion is off"
    )
    yield Finding(key="fusion", text=f"{text}, {limit}.", advice=advice)


_FINDERS: tuple[Callable[[TimelineReport], Iterator[Finding]], ...] = (
    _file,
    _unanswered,
    _total,
    _start,
    _negotiation,
    _cache,
    _late_rank,
    _idle,
    _backends,
    _overlap,
    _fusion,
)
