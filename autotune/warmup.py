"""Before the first sample: which steps are training steps, and when their time is stationary."""

from __future__ import annotations

from collections import Counter

from autotune.protocol import Settings, StepRecord
from autotune.scoring import Reading, Window, is_stationary

IDENTIFY_STEPS = 5
DEFAULT_STEPS_PER_SAMPLE = 10
TYPICAL_WINDOWS = 3
MOST_WINDOWS = 20
WINDOWS_KEPT = 2


def steps_per_sample(settings: Settings) -> int:
    """Return the fewest training steps of one window."""
    return settings.steps_per_sample or DEFAULT_STEPS_PER_SAMPLE


def steps_to_first_sample(settings: Settings) -> int:
    """Return the training steps until the default has been read, about."""
    windows = TYPICAL_WINDOWS if settings.warmup_samples is None else settings.warmup_samples
    return IDENTIFY_STEPS + (windows + 1) * steps_per_sample(settings)


class Identifier:
    """Counts steps by signature until one of them is clearly the training step.

    Attributes:
        signature: The training signature; None until it is known.
        steps_seen: All steps so far, training or not.
    """

    def __init__(self) -> None:
        """Start without a step."""
        self.signature: int | None = None
        self.steps_seen = 0
        self._counts: Counter[int] = Counter()

    def add(self, record: StepRecord) -> bool:
        """Count the record; return whether it made the training signature known.

        Steps without payload (a loop that does not communicate) are never training steps.
        """
        self.steps_seen += record.count
        if self.signature is not None or record.payload_bytes <= 0:
            return False
        self._counts[record.signature] += record.count
        count = self._counts[record.signature]
        if count < IDENTIFY_STEPS or 2 * count <= self._counts.total():
            return False
        self.signature = record.signature
        return True


class Warmup:
    """Windows that are thrown away until the step time is stationary, or as many as wanted.

    Attributes:
        latest: Readings of the latest windows of the default, which are stationary.
    """

    def __init__(self, settings: Settings, *, epoch: int = 0) -> None:
        """Start with an empty window of ``epoch``."""
        self._epoch = epoch
        self._wanted = settings.warmup_samples
        self._steps = steps_per_sample(settings)
        self._window = self._new_window()
        self._times: list[float] = []
        self.latest: list[Reading] = []

    @property
    def is_over(self) -> bool:
        """Whether enough windows were thrown away."""
        if self._wanted is not None:
            return len(self._times) >= self._wanted
        return len(self._times) >= MOST_WINDOWS or is_stationary(self._times)

    def add(self, record: StepRecord) -> None:
        """Take a usable record of the training signature."""
        self._window.add(record)
        if self._window.is_full:
            reading = self._window.reading()
            self.latest = [*self.latest, reading][-WINDOWS_KEPT:]
            self._times.append(reading.step_us)
            self._window = self._new_window()

    def _new_window(self) -> Window:
        return Window(epoch=self._epoch, steps=self._steps, settle=0)
