"""What the driver is to do next, as ``job`` decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Start:
    """Start a process for ``worker`` in ``slot`` of ``host``; ``place``: of its expected rank."""

    worker: int
    host: str
    slot: int
    place: Mapping[str, int]


@dataclass(frozen=True)
class Stop:
    """End the process of ``worker``, and after ``seconds`` by force."""

    worker: int
    seconds: float


@dataclass(frozen=True)
class Settle:
    """Begin round ``number`` with ``workers``, by rank, and their ``places``."""

    number: int
    workers: Sequence[int]
    places: Sequence[Mapping[str, int]]
    is_fresh: bool


@dataclass(frozen=True)
class Dismiss:
    """Tell ``worker``, which has asked for a round, that the job goes on without it."""

    worker: int
    why: str


@dataclass(frozen=True)
class Lose:
    """Tell ``workers`` of round ``number`` that a rank is gone; nobody meets in it any more."""

    number: int
    workers: Sequence[int]
    why: str


@dataclass(frozen=True)
class Tell:
    """Tell ``workers`` that hosts were added or removed (``horovod.common.rounds``)."""

    workers: Sequence[int]
    kind: int


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class End:
    """End the job with exit code ``code``.

    ``failure``: the record of the rank that it ends with, for the launcher to show.
    """

    code: int
    text: str = ""
    failure: Mapping[str, Any] | None = None


Action = Start | Stop | Settle | Dismiss | Lose | Tell | Say | End
