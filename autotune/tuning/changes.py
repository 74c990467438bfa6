"""What the tuner says to the runtime: changes of the parameters, lines for people, the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.tuning.steps.records import StepRecord


@dataclass(frozen=True, kw_only=True)
class Apply:
    """Put ``params`` in force, as ``epoch``, between two steps on all ranks.

    ``incumbent`` is the best setting known so far (None: the job's starting values): should the
    service die, the runtime goes on with it, not with the setting that happened to be under trial.
    When a step of this epoch waits longer than ``limit_us`` for communication, the runtime puts
    ``incumbent`` in force itself, as ``epoch + 1``; the service comes to the same conclusion.
    """

    epoch: int
    params: Mapping[str, Any]
    incumbent: Mapping[str, Any] | None = None
    limit_us: float | None = None


def is_beyond(change: Apply, record: StepRecord) -> bool:
    """Return whether ``record`` is a step of ``change`` that waited longer than its limit."""
    limit = change.limit_us
    same = record.epoch == change.epoch and record.count > 0
    return limit is not None and same and record.exposed_us > limit * record.count


@dataclass(frozen=True, kw_only=True)
class Line:
    """Text for rank 0's log."""

    text: str
    level: str = "info"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Live progress: may overwrite the previous one on a terminal."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Done:
    """Tuning is over; ``params`` (epoch ``epoch``) stay in force."""

    epoch: int
    params: Mapping[str, Any]
    certified: bool
    text: str
