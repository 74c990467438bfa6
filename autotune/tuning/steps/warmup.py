"""Before the first sample: when the time of training steps is stationary.

And how many of them a window takes.
"""

from __future__ import annotations

import math

from autotune.tuning.steps.identify import IDENTIFY_STEPS
from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.steps.scoring import MIN_WINDOW_US, Window, is_stationary

DEFAULT_STEPS_PER_SAMPLE = 10
TYPICAL_WINDOWS = 3
MOST_WINDOWS = 8
WINDOWS_KEPT = 2
FIRST_NEWS_US = 1e6
LONGEST_SILENCE_US = 60e6
"""How long a warm-up lasts before it says how much of it is left; from then on after twice as long
each time, at most this."""
DEFAULT_SHARE = 0.6
"""Length of a window of the default over that of a trial: two of them enclose each trial."""


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


def default_steps(steps: int) -> int:
    """Return the steps of a window of the default beside a trial of ``steps`` steps."""
    return max(1, math.ceil(DEFAULT_SHARE * steps))


def steps_to_first_sample(settings: TunerSettings) -> int:
    """Return the fewest training steps until the default has been read."""
    steps, warmup = steps_per_sample(settings), settings.warmup_samples
    if warmup is None:
        return IDENTIFY_STEPS + TYPICAL_WINDOWS * steps
    return IDENTIFY_STEPS + warmup * steps + default_steps(steps)


class Warmup:
    """Windows that are thrown away until the step time is stationary, or as many as wanted.

    Attributes:
        latest: The latest windows of the default, which are stationary; none where a number of
            windows is to be thrown away.
    """

    def __init__(self, settings: TunerSettings, *, epoch: int = 0) -> None:
        """Start with an empty window of ``epoch``."""
        self._epoch = epoch
        self._settings = settings
        self._wanted = settings.warmup_samples
        self._steps = steps_per_sample(settings)
        self._window = self._new_window()
        self._times: list[float] = []
        self._is_short = False
        self._silence_us, self._until_news_us = FIRST_NEWS_US, FIRST_NEWS_US
        self.latest: list[Window] = []

    def shorten(self) -> None:
        """Wait for one window only: where to search is known already."""
        self._is_short = True

    @property
    def is_over(self) -> bool:
        """Whether enough windows were thrown away."""
        if self._wanted is not None:
            return len(self._times) >= self._wanted
        if self._is_short:
            return len(self._times) >= 1
        return len(self._times) >= MOST_WINDOWS or is_stationary(self._times)

    @property
    def step_us(self) -> float | None:
        """Time of a step, as last read; None before the first one."""
        if self._times:
            return self._times[-1]
        reading = self._window.reading()
        return reading.step_us if reading.steps else None

    @property
    def steps_left(self) -> int:
        """Training steps until it is over, about; the fewest, if the step time is not known."""
        if self.is_over:
            return 0
        wanted = TYPICAL_WINDOWS if self._wanted is None else self._wanted
        later = max(0, wanted - len(self._times) - 1)
        present = self._window.steps_left(self.step_us)
        return present + later * window_steps(self._settings, self.step_us)

    def add(self, record: StepRecord) -> None:
        """Take a usable record of the training signature."""
        self._until_news_us -= record.duration_us
        self._window.add(record)
        if self._window.is_full:
            self._times.append(self._window.reading().step_us)
            if self._wanted is None:
                self.latest = [*self.latest, self._window][-WINDOWS_KEPT:]
            self._window = self._new_window()

    def has_news(self) -> bool:
        """Return whether it is time to say how much is left; each time is returned once."""
        if self._until_news_us > 0 or self.is_over:
            return False
        self._silence_us = min(2 * self._silence_us, LONGEST_SILENCE_US)
        self._until_news_us = self._silence_us
        return True

    def _new_window(self) -> Window:
        return Window(epoch=self._epoch, steps=self._steps, settle=0)
