"""The sums that a timeline gives: plain values, times in microseconds."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from autotune.timeline.phases import COMMUNICATION, Phase


@dataclass
class TensorSums:
    """One tensor (all unnamed ones of an operation together)."""

    count: int = 0
    payload_bytes: int = 0
    negotiation_us: float = 0.0
    operation_us: float = 0.0


@dataclass
class BackendSums:
    """What went through one backend: fused operations, their tensors, bytes and time."""

    operations: int = 0
    tensors: int = 0
    payload_bytes: int = 0
    transfer_us: float = 0.0


@dataclass
class RankSums:
    """How often a rank was the last one, and for how long half of the others were there already."""

    negotiations: int = 0
    steps: int = 0
    late_us: float = 0.0
    worst_us: float = 0.0


@dataclass
class StepTable:
    """One row per step, by column; rows are only added.

    Attributes:
        source: "STEP events", "repetition of tensor names", or "" without any step.
        phases: By phase, the time spent in it.
        late_rank: The rank that was late most; -1 for none.
    """

    source: str = ""
    start_us: array[float] = field(default_factory=lambda: array("d"))
    duration_us: array[float] = field(default_factory=lambda: array("d"))
    phases: tuple[array[float], ...] = field(
        default_factory=lambda: tuple(array("d") for _ in Phase)
    )
    late_rank: array[int] = field(default_factory=lambda: array("i"))
    late_us: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.start_us)


@dataclass
class TimelineReport:
    """What one file says.

    Attributes:
        headless: The file's beginning is missing; all whole events were used.
        whole: The file has an end; else it was cut and all whole events were used.
        skipped_bytes: Bytes that were no part of any event.
        odd_events: Events that do not fit: ends without a begin, times that go backwards.
        ranks: Number of ranks seen, 0 if the file does not say.
        operations: Names of the operations, e.g. "ALLREDUCE".
        first_collective_us: From the start of the recording to the first operation; None: none.
        phase_us: By phase; sums to ``duration_us``.
        operation_sum_us: Of fused operations, each in full; with ``operation_union_us``, the time
            in which at least one was under way, this shows overlap among operations.
        compute_overlap_us: The part of the union inside BACKWARD; None: the file has none.
        fused: Operations performed, tensors in them and their bytes (0: the file has no shapes).
        parameters: The settings in force, in order of appearance.
        dropped: Events that the recorder itself left out.
        unanswered: Tensors still in negotiation at the end: the ranks that did not announce them.
    """

    path: str
    headless: bool = False
    whole: bool = True
    skipped_bytes: int = 0
    events: int = 0
    odd_events: int = 0
    dropped: int = 0
    unanswered: dict[str, list[int]] = field(default_factory=dict)
    ranks: int = 0
    duration_us: float = 0.0
    init_us: float | None = None
    operations: set[str] = field(default_factory=set)
    first_collective_us: float | None = None
    phase_us: list[float] = field(default_factory=lambda: [0.0] * len(Phase))
    steps: StepTable = field(default_factory=StepTable)
    tensors: dict[str, TensorSums] = field(default_factory=dict)
    backends: dict[str, BackendSums] = field(default_factory=dict)
    late: dict[int, RankSums] = field(default_factory=dict)
    fused: BackendSums = field(default_factory=BackendSums)
    operation_sum_us: float = 0.0
    operation_union_us: float = 0.0
    compute_overlap_us: float | None = None
    parameters: list[dict[str, Any]] = field(default_factory=list)

    @property
    def communication_us(self) -> float:
        """Return the time in which any tensor was on its way."""
        return sum(self.phase_us[phase] for phase in COMMUNICATION)

    @property
    def negotiation_us(self) -> float:
        """Return the time until ranks agreed: waiting for the last one, and protocol."""
        return sum(
            self.phase_us[phase] for phase in (Phase.LAST_RANK, Phase.NEGOTIATION, Phase.PROTOCOL)
        )

    @property
    def threshold_bytes(self) -> int | None:
        """Return the fusion threshold in force at the end, None if the file does not say."""
        return self._in_force("fusion_threshold_bytes")

    @property
    def cache_capacity(self) -> int | None:
        """Return the cache's capacity in force at the end, None if the file does not say."""
        return self._in_force("cache_capacity")

    def _in_force(self, name: str) -> int | None:
        value = self.parameters[-1].get(name) if self.parameters else None
        return value if isinstance(value, int) else None

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the single steps, for JSON; times in microseconds."""
        return {
            "path": self.path,
            "headless": self.headless,
            "whole": self.whole,
            "skipped_bytes": self.skipped_bytes,
            "events": self.events,
            "odd_events": self.odd_events,
            "dropped_events": self.dropped,
            "unanswered": self.unanswered,
            "ranks": self.ranks or None,
            "duration_us": round(self.duration_us, 3),
            "init_us": self.init_us,
            "operations": sorted(self.operations),
            "first_collective_us": self.first_collective_us,
            "communication_us": round(self.communication_us, 3),
            "negotiation_us": round(self.negotiation_us, 3),
            "phases_us": {phase.key: round(self.phase_us[phase], 3) for phase in Phase},
            "steps": {"count": len(self.steps), "source": self.steps.source or None},
            "tensors": {name: vars(sums) for name, sums in self.tensors.items()},
            "backends": {name: vars(sums) for name, sums in self.backends.items()},
            "late_ranks": {str(rank): vars(sums) for rank, sums in sorted(self.late.items())},
            "fusion": {**vars(self.fused), "threshold_bytes": self.threshold_bytes},
            "overlap": {
                "operations_sum_us": round(self.operation_sum_us, 3),
                "operations_union_us": round(self.operation_union_us, 3),
                "with_compute_us": self.compute_overlap_us,
            },
            "parameters": self.parameters,
        }
