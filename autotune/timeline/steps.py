"""Training steps of a timeline: told by STEP events, else found by names that come again."""

from __future__ import annotations

from autotune.timeline.phases import Phase
from autotune.timeline.report import RankSums, StepTable


class StepRecorder:
    """Closes steps and adds what they held to a table."""

    def __init__(self, table: StepTable, late: dict[int, RankSums]) -> None:
        self._table = table
        self._late = late
        self.number = 0
        self.phases = [0.0] * len(Phase)
        self._start: float | None = None
        self._late_now: dict[int, float] = {}

    @property
    def told(self) -> bool:
        """Return whether the file itself says where steps end."""
        return self._table.source == "STEP events"

    @property
    def repeats(self) -> bool:
        """Return whether steps are found by repetition, and something has come again."""
        return not self.told and self.number > 1

    def begin_told(self, now: float) -> None:
        """Begin a step that the file names; what was found by repetition before is dropped."""
        if not self.told:
            self._table.source = "STEP events"
            self._clear()
        self._begin(now)

    def begin_found(self, now: float) -> None:
        """Begin a step because a name came again (or for the first time)."""
        if self.told:
            return
        self._table.source = "repetition of tensor names"
        if self._start is not None:
            self.end(now)
        self._begin(now)

    def end(self, now: float) -> None:
        """The step is over: add its row."""
        if self._start is None:
            return
        table = self._table
        table.start_us.append(self._start)
        table.duration_us.append(now - self._start)
        for column, time in zip(table.phases, self.phases, strict=True):
            column.append(time)
        rank = max(self._late_now, key=self._late_now.__getitem__, default=-1)
        table.late_rank.append(rank)
        # Waiting may have begun before this step did.
        table.late_us.append(min(self._late_now.get(rank, 0.0), now - self._start))
        if rank >= 0:
            self._late[rank].steps += 1
        self._add_late()
        self._start = None

    def drop(self) -> None:
        """Forget the open step: it was cut."""
        self._add_late()
        self._start = None

    def is_late(self, rank: int, late_us: float) -> None:
        """Take note that ``rank`` was the last one of a negotiation, by ``late_us``."""
        if late_us > self._late_now.get(rank, -1.0):
            self._late_now[rank] = late_us

    def _begin(self, now: float) -> None:
        self.number += 1
        self._start = now
        self.phases[:] = [0.0] * len(Phase)

    def _add_late(self) -> None:
        # Within a step the tensors wait at the same time: the longest wait counts, not the sum.
        for rank, late_us in self._late_now.items():
            self._late[rank].late_us += late_us
        self._late_now = {}

    def _clear(self) -> None:
        for name in ("start_us", "duration_us", "late_rank", "late_us"):
            del getattr(self._table, name)[:]
        for column in self._table.phases:
            del column[:]
