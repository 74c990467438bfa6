"""Which change of the buckets all ranks make, and at which step: agreed on while they train.

Rank 0 decides what is tried, but a rank whose buckets differ from the others' would end the job. So
a change is made in two phases, and only changes cost messages::

    rank 0                                      every other rank
      at the end of step n: a proposal, ->
      due at the end of step n + notice
                                           <-   at the end of a step, when it sees it: its answer
      at the end of the step that is due: ->    waits there for
      make it, if all are ready; else drop it   the decision

A decision may be late, or lost with its line, for longer than anyone should wait, and a rank that
guesses then is the one that differs. So "make it" is written down before it is sent, where every
rank can look (``Register``), and who has waited in vain writes "drop it" there: what was there
first holds for all. A change to which a rank has not agreed is never written, so none makes it.

Between changes rank 0 does nothing, and the others look once a step whether there is a proposal.
An answer says

* whether the rank can make new buckets (then it makes them or not as decided, whatever happens),
  cannot, is late (it was beyond the step that is due when it saw the proposal: rank 0 drops it and
  gives more notice), or has failed, by which rank 0 ends it for all,
* how many steps and forward passes the rank has made: ranks of which the same steps are not the
  same place of the training make no change.

Nobody waits for long who is not waited for in training, too. Hosts may be some steps apart, as they
hand work to devices: where a rank has gone on to something else (an evaluation), rank 0 drops the
change that it gets no answer to, and tries again later. A rank that waits for a decision while rank
0 is busy (with a checkpoint) drops the change in the end. When rank 0 ends it, or itself, its lines
end, and that is what the others see.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from autotune.service.epochs import Change
from autotune.space import Table
from autotune.trial import Setting

CanMake = Callable[[Mapping[str, Any]], bool]

PATIENCE_S = 30.0
"""How long a decision is waited for, before the register is asked."""
ANSWER_S, ANSWER_STEPS = 0.5, 2.0
"""How long rank 0 waits for answers: so long, and the time of so many steps."""
REST_STEPS, MOST_MISSES = 8, 20
"""Steps after answers were missing until the next proposal, and how often in a row that may be."""
MOST_NOTICE = 32
HISTORY = 64
"""Steps of which rank 0 knows how many forward passes it had made."""


class Word(enum.IntEnum):
    """What a message begins with: three of rank 0's, four answers."""

    PROPOSE = 1
    MAKE = 2
    DROP = 3
    READY = 11
    NOT_READY = 12
    LATE = 13
    FAILED = 14


class Line(Protocol):
    """A line to another rank; see ``lines.Line``."""

    def send(self, numbers: Sequence[int]) -> None:
        """Send a message."""

    def receive(self, seconds: float = 0.0) -> tuple[int, ...] | None:
        """Return a message or None."""
        ...

    def close(self) -> None:
        """End the line."""

    def forget(self) -> None:
        """Let go of it in a forked child."""


class Register(Protocol):
    """A place that all ranks have in common, where every proposal is decided once."""

    def settle(self, number: int, is_made: bool) -> bool:
        """Write down whether a proposal is made, unless that is there; return what is there.

        Raises:
            OSError: The place cannot be reached.
        """
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
    """``count`` ranks cannot make ``change``: none does. Only rank 0 hears of it."""

    change: Change
    count: int


Outcome = Over | Agreed | Declined


class Agreement(Protocol):
    """One rank's part."""

    def fail(self) -> None:
        """Something has failed on this rank: it makes what it has promised, and nothing else."""

    def is_settled(self, proposal: Change | None) -> bool:
        """Return whether there is nothing to agree on, so that ``pass_by`` may be called.

        Args:
            proposal: As ``step``.
        """
        ...

    def pass_by(self, passes: int) -> None:
        """Take note of the end of a step like ``step``, and agree on nothing there.

        Args:
            passes: As ``step``.
        """

    def step(self, passes: int, proposal: Change | None, can_make: CanMake) -> Outcome | None:
        """Take note of the end of a step, the same on all ranks; return what is agreed on.

        Args:
            passes: Forward passes that have begun here so far.
            proposal: On rank 0, the latest change that is wanted; elsewhere it is not looked at.
            can_make: Whether this rank can make new buckets, of {parameter: value}.

        Raises:
            OSError: The others are gone.
        """
        ...

    def close(self) -> None:
        """End it."""

    def forget(self) -> None:
        """Let go of it in a forked child."""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What a rank has answered: how it stands, after so many steps and forward passes."""

    word: Word
    clock: int
    passes: int


@dataclass(kw_only=True)
class _Proposal:
    """A change that is not decided on, made known at the end of step ``begun``."""

    number: int
    change: Change
    begun: int
    due: int
    answers: dict[int, _Answer] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Steps that the rank farthest ahead had made since when it saw the proposal."""
        return max((one.clock - self.begun for one in self.answers.values()), default=0)

    def who(self, word: Word) -> list[int]:
        """Return the ranks that have answered so."""
        return [rank for rank, one in sorted(self.answers.items()) if one.word is word]


class Coordinator:
    """Rank 0's part.

    Args:
        lines: {rank: the line to it} of all others.
        kind: The kind of setting that is agreed on.
        register: The job's.
    """

    def __init__(self, lines: Mapping[int, Line], kind: type[Setting], register: Register) -> None:
        self._lines = lines
        self._kind = kind
        self._register = register
        self._clock = self._epoch = self._number = 0
        self._notice = 1
        self._misses = self._next = 0
        self._ended, self._step_s = time.monotonic(), 0.0
        self._passes: deque[int] = deque(maxlen=HISTORY)
        self._open: _Proposal | None = None
        self._trouble, self._is_over = "", False

    def fail(self) -> None:
        """See ``Agreement``."""
        self._trouble = "rank 0 cannot go on with it"

    def step(self, passes: int, proposal: Change | None, can_make: CanMake) -> Outcome | None:
        """See ``Agreement``."""
        if self._is_over:
            return None
        self.pass_by(passes)
        if self.is_settled(proposal):
            return None
        before, self._ended = self._ended, time.monotonic()
        self._step_s = self._ended - before
        outcome: Outcome | None = None
        if self._open is not None:
            if self._clock < self._open.due:
                return None
            outcome = self._decide(self._open, can_make)
            self._open = None
        elif self._trouble:
            outcome = Over(reason=self._trouble)
        if isinstance(outcome, Over):
            self.close()
        elif proposal is not None and proposal.epoch > self._epoch and self._clock >= self._next:
            self._propose(proposal)
        return outcome

    def is_settled(self, proposal: Change | None) -> bool:
        """See ``Agreement``."""
        is_news = proposal is not None and proposal.epoch > self._epoch
        return not is_news and self._open is None and not self._trouble

    def pass_by(self, passes: int) -> None:
        """See ``Agreement``."""
        self._clock += 1
        self._passes.append(passes)

    def close(self) -> None:
        """See ``Agreement``."""
        self._is_over = True
        for line in self._lines.values():
            line.close()

    def forget(self) -> None:
        """See ``Agreement``."""
        self._is_over = True
        for line in self._lines.values():
            line.forget()

    def _propose(self, change: Change) -> None:
        self._number += 1
        due = self._clock + self._notice
        self._open = _Proposal(number=self._number, change=change, begun=self._clock, due=due)
        values = _whole(change, self._kind.table)
        self._send([Word.PROPOSE, self._number, due, change.epoch, *values])

    def _send(self, message: list[int]) -> None:
        for rank, line in self._lines.items():
            try:
                line.send(message)
            except OSError:  # what is decided holds for those who hear of it
                self._trouble = f"rank {rank} is gone"

    def _decide(self, one: _Proposal, can_make: CanMake) -> Outcome | None:
        is_ready = False
        try:
            is_ready = not self._trouble and can_make(one.change.params)
        except Exception:
            self.fail()
        is_complete = self._collect(one)
        outcome = self._outcome(one, is_ready=is_ready, is_complete=is_complete)
        word = Word.MAKE if isinstance(outcome, Agreed) else Word.DROP
        self._send([word, one.number])
        return outcome

    def _collect(self, one: _Proposal) -> bool:
        """Take the answers, waiting for those that are missing; return whether there are all."""
        deadline = self._ended + ANSWER_S + ANSWER_STEPS * self._step_s
        for rank, line in self._lines.items():
            try:
                while found := line.receive(0.0 if rank in one.answers else _left(deadline)):
                    word, number, clock, passes = found
                    if number == one.number:  # not of one that was dropped before it came
                        one.answers[rank] = _Answer(word=Word(word), clock=clock, passes=passes)
            except OSError:
                self._trouble = f"rank {rank} is gone"
        return len(one.answers) == len(self._lines)

    def _outcome(self, one: _Proposal, *, is_ready: bool, is_complete: bool) -> Outcome | None:
        self._misses = 0 if is_complete else self._misses + 1
        if failed := one.who(Word.FAILED):
            self._trouble = f"rank {failed[0]} cannot go on with it"
        elif self._misses > MOST_MISSES:
            self._trouble = "ranks do not answer"
        elif not all(map(self._is_alike, one.answers.values())):
            self._trouble = "the ranks do not make the same steps"
        if self._trouble:
            return Over(reason=self._trouble)
        if not is_complete:
            self._next = self._clock + REST_STEPS
            return None
        if one.who(Word.LATE):
            self._notice = min(MOST_NOTICE, max(self._notice, one.lag))
            return None
        if one.lag < self._notice:
            self._notice = max(1, self._notice - 1)
        if count := len(one.who(Word.NOT_READY)) + (not is_ready):
            self._epoch = one.change.epoch
            return Declined(change=one.change, count=count)
        return self._settled(one)

    def _settled(self, one: _Proposal) -> Agreed | Over | None:
        """Write down that all make it; one that could not wait for that may have dropped it."""
        try:
            is_made = self._register.settle(one.number, True)
        except OSError as error:
            self._trouble = str(error)
            return Over(reason=self._trouble)
        if not is_made:
            self._next = self._clock + REST_STEPS
            return None
        self._epoch = one.change.epoch
        return Agreed(change=one.change)

    def _is_alike(self, answer: _Answer) -> bool:
        """Return whether rank 0 had made as many forward passes after as many steps."""
        ago = self._clock - answer.clock
        if ago < 0:  # it is ahead, and late for this proposal
            return True
        return ago < len(self._passes) and self._passes[-1 - ago] == answer.passes


class Member:
    """The part of every other rank.

    Args:
        line: To rank 0.
        kind: The kind of setting that is agreed on.
        register: The job's.
    """

    def __init__(self, line: Line, kind: type[Setting], register: Register) -> None:
        self._line = line
        self._kind = kind
        self._register = register
        self._clock = 0
        self._promised: _Proposal | None = None
        self._is_well, self._is_over = True, False

    def fail(self) -> None:
        """See ``Agreement``."""
        self._is_well = False

    def step(self, passes: int, proposal: Change | None, can_make: CanMake) -> Outcome | None:
        """See ``Agreement``."""
        if self._is_over:
            return None
        self.pass_by(passes)
        try:
            while self._promised is None and (found := self._line.receive()):
                if found[0] == Word.PROPOSE:  # else a decision that was not waited for
                    self._answer(found, passes, can_make)
            if self._promised is None or self._clock < self._promised.due:
                return None
            promised, self._promised = self._promised, None
            return Agreed(change=promised.change) if self._is_made(promised.number) else None
        except OSError as error:
            self.close()
            return Over(reason=str(error))

    def is_settled(self, proposal: Change | None) -> bool:
        """See ``Agreement``: a proposal may arrive at any step."""
        return self._is_over

    def pass_by(self, passes: int) -> None:
        """See ``Agreement``."""
        self._clock += 1

    def close(self) -> None:
        """See ``Agreement``."""
        self._is_over = True
        self._line.close()

    def forget(self) -> None:
        """See ``Agreement``."""
        self._is_over = True
        self._line.forget()

    def _answer(self, found: tuple[int, ...], passes: int, can_make: CanMake) -> None:
        _, number, due, epoch, *values = found
        names = [row.name for row in self._kind.table.parameters]
        change = Change(epoch=epoch, params=dict(zip(names, values, strict=True)))
        try:
            is_ready = self._is_well and can_make(change.params)
        except Exception:
            is_ready, self._is_well = False, False
        word = Word.READY if is_ready else Word.NOT_READY
        if due < self._clock:
            word = Word.LATE
        if not self._is_well:
            word = Word.FAILED
        if word is Word.READY:
            self._promised = _Proposal(number=number, change=change, begun=self._clock, due=due)
        self._line.send([word, number, self._clock, passes])

    def _is_made(self, number: int) -> bool:
        """Wait for the decision; where it does not come, see to it that there is one."""
        try:
            word = self._decision(number, PATIENCE_S)
        except OSError:  # it may have been on its way; the next step ends it here
            word = None
        return self._register.settle(number, False) if word is None else word == Word.MAKE

    def _decision(self, number: int, seconds: float) -> int | None:
        """Return the decision on a proposal; older ones that were dropped may come before it."""
        deadline = time.monotonic() + seconds
        while found := self._line.receive(_left(deadline)):
            if found[1] == number:
                return found[0]
        return None


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _whole(change: Change, table: Table) -> list[int]:
    """Return the values in the order of the table: whole numbers, as all of the table are."""
    return [int(change.params[row.name]) for row in table.parameters]
