"""Which steps are the training steps, in a job that makes others, too.

Steps of one *kind* communicate the same and have the same signature. A training step is a step of
the kind that clearly dominates the recent ones; where none does, a *group* of steps that comes
again and again in the same order (two accumulated backward passes of which one is logged; two
optimizers that take turns) is one training step. What an optimizer or ``hvd.autotune.step()`` ends
replaces what was only found by repetition, and a kind that takes over replaces the one before.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.tuning.steps.records import StepRecord

IDENTIFY_STEPS = 5
"""Fewest steps of a kind (groups, where they take turns) by which it is recognised."""
FOUND_STEPS = 30
"""The same for steps that were only found by repetition: jobs often communicate in a loop before
they train."""
CLEARLY = 2 / 3
"""Share of the recent steps from which on a kind dominates them."""
RARE = 0.3
"""Share of the steps below which the training step has given way to a kind that dominates, or is no
good."""
RECENT_STEPS = 20
"""Steps that count as recent while the training step is not known, or hardly."""
LONGEST_RECENT_EXPLICIT = 100
"""Most steps that count as recent: as many as were made in training so far, up to this. Ended by
an optimizer they are training steps, whatever they communicate."""
LONGEST_RECENT_FOUND = 1000
"""The same for steps that were found by repetition, among them those of long evaluations."""
LONGEST_GROUP = 8
"""Steps in a group, at most."""
PATIENCE_STEPS = 200
PATIENCE_US = 60e6
"""Steps, or time, after which a job hears why it is not tuned."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What was seen of a job whose training step is not recognised, or hardly ever made.

    Attributes:
        steps: Steps so far.
        silent: Steps among them that communicated nothing.
        paused: Steps among them between ``hvd.autotune.pause()`` and ``resume()``.
        communicates: The job has communicated.
        recent: Of the latest steps those that communicated and were not paused.
        kinds: Number of kinds among these.
        largest: Number of steps of the most frequent kind among these.
        needed: Fewest steps of one kind by which it is recognised.
        trained: Steps of the present training kind; 0: none was recognised.
    """

    steps: int
    silent: int
    paused: int
    communicates: bool
    recent: int
    kinds: int
    largest: int
    needed: int
    trained: int


class Identifier:
    """Follows the steps of a job and picks the training steps among them.

    Attributes:
        signature: The training signature; None until it is known.
        parts: Signatures of the steps that one training step consists of, in order; usually one.
        steps_seen: All steps so far, training or not.
        completed: The training steps that the latest record has completed.
    """

    def __init__(self) -> None:
        """Start without a step."""
        self.signature: int | None = None
        self.parts: tuple[int, ...] = ()
        self.steps_seen = 0
        self.completed: list[StepRecord] = []
        self._silent = self._paused = 0
        self._communicates = self._is_explicit = False
        self._has_complained = {False: False, True: False}  # by whether a step has ended
        self._stepped_us = 0.0  # time of the steps since the last complaint
        self._idle_us = 0.0  # time since the latest of them: the next one's duration covers it
        self._forget()

    def _forget(self) -> None:
        """Begin to look for the training step, with nothing known of the job's kinds."""
        self.signature, self.parts = None, ()
        self._followed = self._trained = 0
        self._recent: deque[tuple[int, int]] = deque()
        self._counts: Counter[int] = Counter()
        self._total = 0
        self._turns = Turns()
        self._open: list[StepRecord] = []

    def add(self, record: StepRecord) -> bool:
        """Take the next record; return whether the training signature became known or changed.

        Steps without payload (a loop that does not communicate) and paused ones are never training
        steps.
        """
        self.completed = []
        is_long_start = not self.steps_seen and record.duration_us >= PATIENCE_US
        if not is_long_start:  # patience begins anew: it has what comes before training
            self._stepped_us += record.duration_us
        self._idle_us = 0.0
        self.steps_seen += record.count
        if record.is_explicit and not self._is_explicit:
            self._is_explicit = True
            self._forget()
        self._followed += record.count
        self._communicates = self._communicates or record.payload_bytes > 0
        if record.signature == 0 or record.payload_bytes <= 0:
            self._paused += record.count if record.signature == 0 else 0
            self._silent += record.count if record.signature != 0 else 0
            return False
        self._remember(record)
        is_new = False
        if record.signature == self.signature:
            self._turns = Turns()
        else:
            self._turns.add(record)
            is_new = self._learn()
        self.completed = self._completed_by(record)
        if not is_new:  # else it has counted among the recent ones
            self._trained += len(self.parts) * sum(one.count for one in self.completed)
        return is_new

    def wait(self, seconds: float, *, communicates: bool = False) -> None:
        """Take note that the job goes on, although no step has ended.

        Args:
            seconds: How long nothing has come, since the last call.
            communicates: It waits for collectives.
        """
        self._idle_us += 1e6 * seconds
        self._communicates = self._communicates or communicates

    @property
    def observed(self) -> Observed:
        """What was seen so far."""
        return Observed(
            steps=self.steps_seen,
            silent=self._silent,
            paused=self._paused,
            communicates=self._communicates,
            recent=self._total,
            kinds=len(self._counts),
            largest=max(self._counts.values(), default=0),
            needed=self._needed,
            trained=self._trained,
        )

    def complaint(self) -> Observed | None:
        """Return what was seen when a job is not tuned for want of training steps.

        Once while there is no step at all, and once more when there are some.
        """
        has_steps = self.steps_seen > 0
        if self._has_complained[has_steps] or not self._is_late:
            return None
        self._has_complained[has_steps] = True
        self._stepped_us = self._idle_us = 0.0
        return self.observed

    @property
    def _is_late(self) -> bool:
        if self.signature is not None and self._trained >= RARE * self._followed:
            return False
        is_long = self._stepped_us + self._idle_us >= PATIENCE_US
        return is_long or self._followed >= PATIENCE_STEPS

    # ---- which kind it is -----------------------------------------------------------------------

    @property
    def _needed(self) -> int:
        return IDENTIFY_STEPS if self._is_explicit else FOUND_STEPS

    @property
    def _span(self) -> int:
        """How many steps count as recent."""
        least = max(RECENT_STEPS, 2 * self._needed)
        most = LONGEST_RECENT_EXPLICIT if self._is_explicit else LONGEST_RECENT_FOUND
        return min(max(self._trained, least), most)

    def _remember(self, record: StepRecord) -> None:
        self._recent.append((record.signature, record.count))
        self._counts[record.signature] += record.count
        self._total += record.count
        span = self._span
        while self._total - self._recent[0][1] >= span:
            signature, count = self._recent.popleft()
            self._counts[signature] -= count
            self._total -= count
            if not self._counts[signature]:
                del self._counts[signature]

    def _learn(self) -> bool:
        """Find the training step, or the one that has taken over; return whether there is one."""
        parts = self._dominant() or self._turns.group(self._needed)
        if not parts or sorted(parts) == sorted(self.parts) or self._share(parts) < CLEARLY:
            return False
        if self.parts:
            has_enough = self._total >= self._span
            if not has_enough or self._share(self.parts) >= RARE:
                return False
        self.parts, self.signature = parts, signature_of(parts)
        self._followed = self._trained = round(self._share(parts) * self._total)
        self._open = []
        return True

    def _dominant(self) -> tuple[int, ...]:
        ((signature, count),) = self._counts.most_common(1)
        is_clear = count >= self._needed and count >= CLEARLY * self._total
        return (signature,) if is_clear else ()

    def _share(self, parts: Sequence[int]) -> float:
        """Return the share of the recent steps that can be training steps made of ``parts``."""
        groups = min(self._counts[one] / count for one, count in Counter(parts).items())
        return len(parts) * groups / self._total

    # ---- the training steps themselves ----------------------------------------------------------

    def _completed_by(self, record: StepRecord) -> list[StepRecord]:
        if self.signature is None:
            return []
        if len(self.parts) == 1:
            return [record] if record.signature == self.signature else []
        completed = []
        for step in single_steps(record):
            if step.signature != self.parts[len(self._open)]:
                self._open = []
            if step.signature == self.parts[len(self._open)]:
                self._open.append(step)
            if len(self._open) == len(self.parts):
                completed.append(as_one(self._open, self.signature))
                self._open = []
        return completed


class Turns:
    """Finds the group of steps that comes again and again."""

    def __init__(self) -> None:
        """Start without a step."""
        self._latest: deque[int] = deque(maxlen=LONGEST_GROUP)
        self._matches = [0] * LONGEST_GROUP
        """By length - 1: how many of the latest steps in a row equal the one so many before."""

    def add(self, record: StepRecord) -> None:
        """Take the next record; many steps of one kind in a row are as good as a few more."""
        for _ in range(min(record.count, 2 * LONGEST_GROUP)):
            for length in range(1, LONGEST_GROUP + 1):
                known = length <= len(self._latest)
                is_same = known and self._latest[-length] == record.signature
                self._matches[length - 1] = self._matches[length - 1] + 1 if is_same else 0
            self._latest.append(record.signature)

    def group(self, times: int) -> tuple[int, ...]:
        """Return the signatures of the group that has just come ``times`` times, or ()."""
        for length, matches in enumerate(self._matches, start=1):
            if matches >= (times - 1) * length:
                return tuple(self._latest)[-length:] if length > 1 else ()
        return ()


def signature_of(parts: Sequence[int]) -> int:
    """Return the signature of a training step; that of a group does not depend on the order."""
    if len(parts) == 1:
        return parts[0]
    digest = hashlib.blake2b(repr(sorted(parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 11 | 1  # 53 bits, as the engine's


def single_steps(record: StepRecord) -> Iterator[StepRecord]:
    """Yield the steps of a record; each has its even part of what the record has."""
    for number in range(record.count):
        yield replace(
            record,
            step=record.step + number,
            count=1,
            duration_us=record.duration_us / record.count,
            payload_bytes=record.payload_bytes // record.count,
            exposed_us=record.exposed_us / record.count,
            samples=record.samples // record.count,
        )


def as_one(steps: Sequence[StepRecord], signature: int) -> StepRecord:
    """Return successive steps as one; a change of the setting among them is one within it."""
    epochs = {step.epoch for step in steps}
    return replace(
        steps[0],
        duration_us=sum(step.duration_us for step in steps),
        payload_bytes=sum(step.payload_bytes for step in steps),
        exposed_us=sum(step.exposed_us for step in steps),
        samples=sum(step.samples for step in steps),
        epoch=epochs.pop() if len(epochs) == 1 else -1,
        signature=signature,
    )
