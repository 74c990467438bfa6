"""What the tuner tells its driver, besides protocol messages and the values of ``trial``."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.bayes import Proposal
from autotune.bayes.surrogate import Hyperparameters
from autotune.trial import Certificate, RunState, Sample, Trial
from autotune.tuning.changes import Apply, Done, Line, Progress


@dataclass(frozen=True, kw_only=True)
class Identified:
    """The training signature is known: the driver answers with ``Tuner.begin``.

    Attributes:
        signature: Of the training steps.
        parts: Signatures of the steps that one training step consists of; usually it alone.
        retune: The job was tuned before and has changed since: a new run replaces the result.
    """

    signature: int
    parts: tuple[int, ...]
    retune: bool = False


@dataclass(frozen=True, kw_only=True)
class RunFinished:
    """The run ends; ``best`` stays in force, or is the best so far (None without a trial)."""

    state: RunState
    best: Trial | None


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """The results under a recorded trial's setting are wrong: ``trial`` is what it is now."""

    trial: Trial


Message = Apply | Line | Progress | Done
"""For the runtime: it is sent as it is."""
Entry = Sample | Trial | Rejection | Certificate | RunFinished
"""For the trial log."""
Event = Message | Entry | Identified


class Events:
    """What is to be told next, in order."""

    def __init__(self) -> None:
        """Nothing is to be told yet."""
        self._events: list[Event] = []

    def add(self, *events: Event | None) -> None:
        """Add events; None stands for one that is not needed."""
        self._events += [event for event in events if event is not None]

    def say(self, text: str, *, level: str = "info") -> None:
        """Add a line for rank 0's log."""
        self._events.append(Line(text=text, level=level))

    def withdraw_requests(self) -> None:
        """Drop the requests that the driver has not heard of yet."""
        self._events = [event for event in self._events if not isinstance(event, Identified)]

    def take(self) -> list[Event]:
        """Return what is to be told; each event is returned once."""
        events, self._events = self._events, []
        return events


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What ``Tuner.work`` found: the next settings (none: all were tried) and the constants.

    ``trouble``: why they are worse than they should be, in one sentence; None where they are not.
    """

    proposals: tuple[Proposal, ...]
    constants: Hyperparameters | None
    trouble: str | None = None
