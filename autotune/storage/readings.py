"""All windows that one run has read, by column: what pictures and reports are made of.

Standard library only. A run may have a hundred thousand readings, so they are not made ``Sample``
objects, and a reader that follows a running job asks only for what is new.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from autotune.storage.sqlite_reader import open_read_only
from autotune.trial import SampleKind

_COLUMNS = (
    "id",
    "trial_id",
    "kind",
    "pair",
    "steps",
    "duration_us",
    "payload_bytes",
    "exposed_us",
    "score",
    "finished_at",
)
NO_PAIR = -1
KINDS = tuple(SampleKind)
_KIND_NUMBERS = {str(kind): number for number, kind in enumerate(KINDS)}
LARGEST = 1e18
"""No time in microseconds, number of bytes or score is so large."""
ROWS_AT_A_TIME = 10_000
"""Held as objects of Python; all that has been read is held as plain numbers."""


def _numbers() -> array[float]:
    return array("d")


def _counts() -> array[int]:
    return array("q")


def _bytes() -> array[int]:
    return array("B")


@dataclass
class Readings:
    """Readings of one run in the order in which they were made; rows are only added.

    Attributes:
        last_id: Row id of the latest one; 0: there is none.
        trial_id: The trial whose setting was in force; 0 is the default.
        kind: What the window was read for: its place in ``KINDS``.
        pair: Number of the certificate pair, or ``NO_PAIR``.
        steps: Scored steps in the window.
        duration_us, payload_bytes, exposed_us, score: As in ``Sample``.
        finished_s: When it was recorded: seconds since 1970, UTC, to the second.
        trials_finished_s: {trial_id: the same of the trial}.
    """

    last_id: int = 0
    trial_id: array[int] = field(default_factory=_counts)
    kind: array[int] = field(default_factory=_bytes)
    pair: array[int] = field(default_factory=_counts)
    steps: array[int] = field(default_factory=_counts)
    duration_us: array[float] = field(default_factory=_numbers)
    payload_bytes: array[float] = field(default_factory=_numbers)
    exposed_us: array[float] = field(default_factory=_numbers)
    score: array[float] = field(default_factory=_numbers)
    finished_s: array[float] = field(default_factory=_numbers)
    trials_finished_s: dict[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.trial_id)


def read_readings(database: str, run_id: int, known: Readings | None = None) -> Readings:
    """Return the readings of a run; ``known`` is extended by those that came since, if given.

    Raises:
        LogError: The database cannot be read, or holds values that are not ours.
    """
    readings = known if known is not None else Readings()
    query = f"SELECT {', '.join(_COLUMNS)} FROM samples WHERE run_id = ? AND id > ? ORDER BY id"
    with open_read_only(database) as connection:
        cursor = connection.execute(query, (run_id, readings.last_id))
        cursor.row_factory = None
        while rows := cursor.fetchmany(ROWS_AT_A_TIME):
            _append(readings, list(zip(*rows, strict=True)))
        trials = connection.execute(
            "SELECT trial_id, finished_at FROM trials WHERE run_id = ?", (run_id,)
        )
        readings.trials_finished_s = {int(row[0]): seconds(row[1]) for row in trials}
    return readings


def seconds(text: str) -> float:
    """Return seconds since 1970 of an ISO 8601 time, as the database holds them (UTC).

    Raises:
        ValueError: It is none.
    """
    return datetime.fromisoformat(text).timestamp()


def _append(readings: Readings, columns: Sequence[Sequence[Any]]) -> None:
    """Add rows, given by column; all of them or, where a value is not ours, none."""
    ids, trial_ids, kinds, pairs = columns[:4]
    pairs = [NO_PAIR if pair is None else pair for pair in pairs]
    whole = [array("q", column) for column in (trial_ids, pairs, columns[4])]
    numbers = [_numbers_of(column) for column in columns[5:9]]
    if min(whole[2]) < 0:
        raise ValueError(f"samples up to {ids[-1]}: a negative number of steps")
    moments = {text: seconds(text) for text in set(columns[9])}
    added: dict[str, Iterable[Any]] = {
        "trial_id": whole[0],
        "pair": whole[1],
        "steps": whole[2],
        "kind": array("B", map(_KIND_NUMBERS.__getitem__, kinds)),
        **dict(zip(_COLUMNS[5:9], numbers, strict=True)),
        "finished_s": array("d", map(moments.__getitem__, columns[9])),
    }
    for name, values in added.items():
        getattr(readings, name).extend(values)
    readings.last_id = int(ids[-1])


def _numbers_of(column: Sequence[Any]) -> array[float]:
    """Return a column as numbers.

    Raises:
        ValueError: One is text, negative or absurdly large.
    """
    if not set(map(type, column)) <= {int, float}:
        raise ValueError("a sample has text, or nothing, where a number is expected")
    if min(column) < 0 or max(column) >= LARGEST:
        raise ValueError("a sample has a number that is negative or absurd")
    return array("d", column)
