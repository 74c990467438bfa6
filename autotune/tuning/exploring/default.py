"""The default's windows: what it does now, how noisy readings are, and how long windows are."""

from __future__ import annotations

import math

from autotune.tuning.inforce import InForce
from autotune.tuning.steps.brackets import Noise
from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.steps.scoring import MIN_WINDOW_US, SETTLE_STEPS, Reading, Window, pool
from autotune.tuning.steps.warmup import DEFAULT_SHARE, default_steps, steps_per_sample

FINE, LONGEST = 0.08, 4.0
"""Windows grow, up to so many times, where a reading would be noisier than this."""


class DefaultWindows:
    """The windows of the default in EXPLORE.

    Attributes:
        epoch: Of the latest one.
        window: The present one, or None while a trial is in force.
        before: Records of the latest one that ended.
        readings: Of all of them.
        noise: Of one record of this job, from every window that was read.
    """

    def __init__(self, settings: TunerSettings) -> None:
        """Know nothing yet."""
        self.window: Window | None = None
        self.before: list[StepRecord] = []
        self.readings: list[Reading] = []
        self.noise = Noise()
        self.epoch = -1
        self._settings = settings

    @property
    def reading(self) -> Reading:
        """The latest readings as one."""
        return pool(self.readings[-2:])

    def begin(self, in_force: InForce) -> None:
        """Begin a window; its first steps settle where another setting was in force before."""
        changed = in_force.epoch != self.epoch
        self.epoch = in_force.epoch
        self.window = Window(
            epoch=in_force.epoch,
            steps=self.steps,
            settle=SETTLE_STEPS if changed else 0,
            least_us=DEFAULT_SHARE * MIN_WINDOW_US,
        )

    def add(self, window: Window) -> Reading:
        """Take a window that ended; return its reading."""
        reading = window.reading()
        self.before = list(window.records)
        self.readings.append(reading)
        self.noise.add(window.records)
        return reading

    @property
    def trial_steps(self) -> int:
        """Steps of a trial's window: more of them where readings are noisy.

        Windows longer than the time between two jumps of the speed would be cut anyway.
        """
        fewest = steps_per_sample(self._settings)
        most = max(min(LONGEST * fewest, self.noise.steady_records / 2), fewest)
        return math.ceil(min(max(self._fine_share * fewest, fewest), most))

    @property
    def steps(self) -> int:
        """Steps of a window of the default."""
        return default_steps(self.trial_steps)

    @property
    def _fine_share(self) -> float:
        fewest = steps_per_sample(self._settings)
        return self.noise.variance(fewest) * (1 + 0.5 / DEFAULT_SHARE) / FINE**2

    @property
    def typical_variance(self) -> float:
        """Variance of the reading of a whole trial."""
        count = self.trial_steps
        own = self.noise.variance(count) + self.noise.variance(2 * DEFAULT_SHARE * count)
        return own + self.noise.wander + self.noise.hidden
