"""One tensor's place in its sequence: negotiation, operation, activities inside it."""

from __future__ import annotations

from functools import cache

from autotune.timeline.phases import (
    NEGOTIATE,
    NO_OPERATION_FOLLOWS,
    Phase,
    activity_phase,
    is_operation,
)
from autotune.timeline.report import TensorSums

_IDLE = Phase.IDLE.value


@cache
def kind_of(name: str) -> str:
    """Return "negotiation", "operation" or "activity"."""
    if name.startswith(NEGOTIATE):
        return "negotiation"
    return "operation" if is_operation(name) else "activity"


class Track:
    """The events of one tensor so far."""

    __slots__ = ("backends", "open", "phase", "put_on_gpu", "step", "sums", "ticks")

    def __init__(self, sums: TensorSums) -> None:
        self.sums = sums
        self.open: list[tuple[str, float]] = []
        self.phase: int = _IDLE
        self.ticks: list[tuple[float, int]] = []
        self.step = -1
        self.backends: list[str] = []  # that this operation has used
        self.put_on_gpu = False  # this operation's bytes move on the GPU's track

    def begin(self, name: str, now: float) -> str:
        """Open ``name``; return its kind."""
        self.open.append((name, now))
        kind = kind_of(name)
        if kind == "negotiation":
            self.phase = Phase.NEGOTIATION
            self.ticks = []
        elif kind == "operation":
            self.phase = Phase.QUEUE
            self.backends = []
        else:
            self.phase = _activity(name)
        return kind

    def tick(self, rank: int, now: float, ranks: int) -> None:
        """Rank ``rank`` reported in the negotiation that is open."""
        self.ticks.append((now, rank))
        complete = len(self.ticks) >= ranks > 0
        self.phase = Phase.PROTOCOL if complete else Phase.LAST_RANK

    def end(self) -> tuple[str, float] | None:
        """Close what is open innermost; return its name and begin, None if nothing is."""
        if not self.open:
            return None
        closed = self.open.pop()
        if self.open:
            name = self.open[-1][0]
            self.phase = Phase.QUEUE if kind_of(name) == "operation" else _activity(name)
        elif kind_of(closed[0]) == "negotiation" and closed[0] not in NO_OPERATION_FOLLOWS:
            self.phase = Phase.PROTOCOL  # agreed, and not begun yet
        else:
            self.phase = _IDLE
        return closed


@cache
def _activity(name: str) -> int:
    return activity_phase(name).value if kind_of(name) == "activity" else Phase.NEGOTIATION.value
