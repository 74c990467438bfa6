"""Which change of the buckets all ranks make, and at which step: agreed on while they train.

Rank 0 decides what is tried, but a rank whose buckets differ from the others' would end the job. So
a change is made after a *round*: one sum over all ranks of a few whole numbers, which begins at the
end of one training step and is waited for at the end of the next. To it

* rank 0 adds the number and the setting of its next change, the others add zeros,
* every rank that can make new buckets adds one: where that comes to the number of ranks all of them
  make the change in the step that begins, else none does,
* every rank that is well adds one. A rank on which something has failed takes part in one more
  round, not being well, and by its result all ranks stop for good at the same step, with the
  buckets that they have.

Ranks have begun a round before they reduce the gradients of the next step, so nobody waits at its
end for more than the transfer; who waits longer than ``PATIENCE_S`` is no longer among ranks that
step alike, and stops, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.service.epochs import Change
from autotune.space import Table
from autotune.trial import Setting

PATIENCE_S = 30.0
OFTEN, RARELY = 1, 32
"""Steps from one round to the next while the job is tuned, and when nothing is to come soon."""
OFTEN_S, MOST_OFTEN = 0.02, 8
"""While the job is tuned, a round begins at most every 20 ms, but at least every 8 steps."""


def interval_of(step_s: float, *, is_idle: bool) -> int:
    """Return how many steps rank 0 wants from one round to the next, by the time of a step."""
    if is_idle:
        return RARELY
    return min(MOST_OFTEN, max(OFTEN, math.ceil(OFTEN_S / max(step_s, 1e-6))))


class Round(Protocol):
    """A sum over all ranks that is on its way."""

    def wait(self, seconds: float) -> Sequence[int]:
        """Return the sums; raises after ``seconds``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Over:
    """The ranks agree on nothing any more; ``reason`` is a sentence."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """All ranks make ``change`` in the step that begins now."""

    change: Change


@dataclass(frozen=True, kw_only=True)
class Declined:
    """``count`` ranks cannot make ``change``: none does."""

    change: Change
    count: int


Outcome = Over | Agreed | Declined


class Agreement:
    """One rank's part in the rounds.

    Args:
        begin: Begins a sum over all ranks of these numbers; called at the same steps everywhere.
        kind: The kind of setting that is agreed on.
        rank, size: Of the job.

    Attributes:
        is_over: There are no more rounds.
    """

    def __init__(
        self, begin: Callable[[list[int]], Round], kind: type[Setting], *, rank: int, size: int
    ) -> None:
        self.is_over = False
        self._begin = begin
        self._kind = kind
        self._rank, self._size = rank, size
        self._clock = 0
        self._begun_at = 0
        self._interval = OFTEN
        self._round: Round | None = None
        self._epoch = 0
        self._is_well = True

    def fail(self) -> None:
        """Something has failed on this rank: the others are to know."""
        self._is_well = False

    def step(
        self,
        proposal: Change | None,
        can_make: Callable[[], bool],
        *,
        interval: int = OFTEN,
    ) -> Outcome | None:
        """Take note of the end of a step, the same on all ranks; return what has come of a round.

        Args:
            proposal: On rank 0, the latest change that is wanted; elsewhere it is not looked at.
            can_make: Whether this rank can make new buckets.
            interval: On rank 0, the steps that it wants from one round to the next.
        """
        if self.is_over:
            return None
        self._clock += 1
        outcome = self._end_round() if self._round is not None else None
        if isinstance(outcome, Over):
            self.is_over = True
            return outcome
        if self._clock % self._interval == 0:
            self._begin_round(proposal, can_make, interval)
        return outcome

    def _begin_round(
        self, proposal: Change | None, can_make: Callable[[], bool], interval: int
    ) -> None:
        is_ready = False
        try:
            is_ready = self._is_well and can_make()
        except Exception:
            self.fail()
        from_root = [0] * (2 + len(self._kind.table.parameters))
        if self._rank == 0:
            from_root[0] = max(1, interval)
            if proposal is not None and proposal.epoch > self._epoch:
                from_root[1:] = [proposal.epoch, *_whole(proposal, self._kind.table)]
        blame = 0 if self._is_well else self._rank + 1
        head = [self._clock, int(self._is_well), blame, int(is_ready)]
        self._begun_at = self._clock
        self._round = self._begin([*head, *from_root])

    def _end_round(self) -> Outcome | None:
        assert self._round is not None
        found = list(self._round.wait(PATIENCE_S))
        self._round = None
        clocks, well, blame, ready, interval, epoch, *values = found
        if well < self._size:
            who = f"rank {blame - 1}" if well == self._size - 1 else f"{self._size - well} ranks"
            return Over(reason=f"{who} cannot go on with it")
        if clocks != self._size * self._begun_at:
            return Over(reason="the ranks do not make the same steps")
        self._interval = interval
        if epoch <= self._epoch:
            return None
        self._epoch = epoch
        names = [row.name for row in self._kind.table.parameters]
        change = Change(epoch=epoch, params=dict(zip(names, values, strict=True)))
        if ready == self._size:
            return Agreed(change=change)
        return Declined(change=change, count=self._size - ready)


def _whole(change: Change, table: Table) -> list[int]:
    """Return the values in the order of the table: whole numbers, as all of the table are."""
    return [int(change.params[row.name]) for row in table.parameters]
