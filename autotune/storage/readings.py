"""All windows that one run has read, by column: what pictures and reports are made of.

Standard library only. A run may have a hundred thousand readings, so they are not made ``Sample``
objects, and a reader that follows a running job asks only for what is new.
"""

from __future__ import annotations

import sqlite3
from array import array
from dataclasses import dataclass, field
from datetime import datetime

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
LARGEST = 1e18
"""No time in microseconds, number of bytes or score is so large; NaN is none either."""


def _numbers() -> array[float]:
    return array("d")


def _counts() -> array[int]:
    return array("q")


@dataclass
class Readings:
    """Readings of one run in the order in which they were made; rows are only added.

    Attributes:
        last_id: Row id of the latest one; 0: there is none.
        trial_id: The trial whose setting was in force; 0 is the default.
        kind: What the window was read for.
        pair: Number of the certificate pair, or ``NO_PAIR``.
        steps: Scored steps in the window.
        duration_us, payload_bytes, exposed_us, score: As in ``Sample``.
        finished_s: When it was recorded: seconds since 1970, UTC, to the second.
        trials_finished_s: {trial_id: the same of the trial}.
    """

    last_id: int = 0
    trial_id: array[int] = field(default_factory=_counts)
    kind: list[SampleKind] = field(default_factory=list)
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
    with open_read_only(database) as connection:
        query = f"SELECT {', '.join(_COLUMNS)} FROM samples WHERE run_id = ? AND id > ? ORDER BY id"
        for row in connection.execute(query, (run_id, readings.last_id)):
            _append(readings, row)
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


def _append(readings: Readings, row: sqlite3.Row) -> None:
    number, trial_id, kind, pair, steps, duration_us, payload, exposed_us, score, finished_at = row
    numbers = [float(value) for value in (duration_us, payload, exposed_us, score)]
    counts = [int(trial_id), NO_PAIR if pair is None else int(pair), int(steps)]
    if not all(0 <= value < LARGEST for value in numbers) or counts[2] < 0:
        raise ValueError(f"sample {number}: a number that is negative or absurd")
    finished_s, what = seconds(finished_at), SampleKind(kind)
    readings.trial_id.append(counts[0])
    readings.pair.append(counts[1])
    readings.steps.append(counts[2])
    readings.kind.append(what)
    readings.duration_us.append(numbers[0])
    readings.payload_bytes.append(numbers[1])
    readings.exposed_us.append(numbers[2])
    readings.score.append(numbers[3])
    readings.finished_s.append(finished_s)
    readings.last_id = int(number)
