"""Steps of different sizes made comparable: what the script says about its samples.

Where the batch or the sequence length varies, a step's time says little. A script that calls
``hvd.autotune.step(samples=n)`` lets its steps be compared as if each had the same number of
samples; the score is then proportional to samples per second, in bytes/us of that typical step.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from autotune.tuning.steps.records import StepRecord

REFERENCE_RECORDS = 5


class Normaliser:
    """Scales records to the samples and bytes of a typical step."""

    def __init__(self) -> None:
        """Know nothing yet: the first records decide what is typical."""
        self._seen: list[tuple[float, float]] = []

    def normalised(self, record: StepRecord) -> StepRecord:
        """Return ``record`` as it would have been with the typical number of samples.

        Records without samples are returned as they are.
        """
        if record.samples <= 0 or record.count <= 0:
            return record
        if len(self._seen) < REFERENCE_RECORDS:
            self._seen.append((record.samples / record.count, record.payload_bytes / record.count))
        samples, payload = (statistics.median(column) for column in zip(*self._seen, strict=True))
        ratio = samples * record.count / record.samples
        return replace(
            record,
            duration_us=record.duration_us * ratio,
            exposed_us=record.exposed_us * ratio,
            payload_bytes=round(payload * record.count),
        )
