"""Before the first sample: which steps are training steps, when their time is stationary.

And how many of them a window takes.
"""

from __future__ import annotations

import math
from collections import Counter

from autotune.tuning.records import StepRecord, TunerSettings
from autotune.tuning.scoring import MIN_WINDOW_US, Reading, Window, is_stationary

IDENTIFY_STEPS = 5
DEFAULT_STEPS_PER_SAMPLE = 10
TYPICAL_WINDOWS = 3
MOST_WINDOWS = 20
WINDOWS_KEPT = 2


def steps_per_sample(settings: TunerSettings) -> int:
    """Return the fewest training steps of one window."""
    return settings.steps_per_sample or DEFAULT_STEPS_PER_SAMPLE


def window_steps(settings: TunerSettings, step_us: float | None) -> int:
    """Return the training steps of one window: it is at least ``MIN_WINDOW_US`` long, too.

    Args:
        settings: ``HOROVOD_AUTOTUNE_*``.
        step_us: Time of a step; None: not known, and the fewest steps are returned.
    """
    fewest = steps_per_sample(settings)
    return fewest if step_us is None else max(fewest, math.ceil(MIN_WINDOW_US / step_us))


def steps_left(window: Window, settings: TunerSettings, step_us: float | None) -> int:
    """Return the training steps that ``window`` still needs, about; arguments as above."""
    seen = sum(record.count for record in window.records)
    return max(1, window_steps(settings, step_us) - seen)


def steps_to_first_sample(settings: TunerSettings) -> int:
    """Return the fewest training steps until the default has been read."""
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

    def __init__(self, settings: TunerSettings, *, epoch: int = 0) -> None:
        """Start with an empty window of ``epoch``."""
        self._epoch = epoch
        self._settings = settings
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

    @property
    def step_us(self) -> float | None:
        """Time of a step, as last read; None before the first one."""
        if self.latest:
            return self.latest[-1].step_us
        reading = self._window.reading()
        return reading.step_us if reading.steps else None

    @property
    def steps_left(self) -> int:
        """Training steps until it is over, about; the fewest, if the step time is not known."""
        if self.is_over:
            return 0
        wanted = TYPICAL_WINDOWS if self._wanted is None else self._wanted
        later = max(0, wanted - len(self._times) - 1)
        present = steps_left(self._window, self._settings, self.step_us)
        return present + later * window_steps(self._settings, self.step_us)

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
