"""After DONE: whether the machine has changed so much that the result may be wrong by now.

``DriftWatch`` compares long windows with the first ones after tuning. ``Recheck`` then compares the
setting in force with the default, in pairs: where it is worse, the default takes its place.
"""

from __future__ import annotations

import statistics

import numpy as np

from autotune.trial import Trial
from autotune.tuning.certify import Comparison
from autotune.tuning.changes import Apply
from autotune.tuning.inforce import InForce
from autotune.tuning.records import StepRecord
from autotune.tuning.replay_check import ReplayTest
from autotune.tuning.scoring import SETTLE_STEPS, Window, step_us

WINDOW_STEPS = 100
WINDOW_US = 5e6
REFERENCE_WINDOWS = 4
DRIFTED_WINDOWS = 4
DRIFT = 0.2
"""Step times that differ by more than this from what they were are a drift."""


class DriftWatch:
    """Watches the step time under a setting that stays in force."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._times: list[float] = []
        self._steps, self._us = 0, 0.0
        self._reference: list[float] = []
        self._drifted: list[bool] = []

    def add(self, record: StepRecord) -> bool:
        """Take a training step; return whether ``DRIFTED_WINDOWS`` windows in a row differ.

        All of them have to be slower, or all faster, than the median of the reference windows.
        """
        self._times.append(step_us(record))
        self._steps += record.count
        self._us += record.duration_us
        if self._steps < WINDOW_STEPS or self._us < WINDOW_US:
            return False
        typical = statistics.median(self._times)
        self._times, self._steps, self._us = [], 0, 0.0
        if len(self._reference) < REFERENCE_WINDOWS:
            self._reference.append(typical)
            return False
        ratio = typical / statistics.median(self._reference)
        if 1 / (1 + DRIFT) <= ratio <= 1 + DRIFT:
            self._drifted = []
            return False
        self._drifted.append(ratio > 1)
        last = self._drifted[-DRIFTED_WINDOWS:]
        return len(last) == DRIFTED_WINDOWS and len(set(last)) == 1


class Recheck:
    """Fresh pairs of windows of the default and of the setting in force."""

    def __init__(
        self,
        default: Trial,
        best: Trial,
        *,
        in_force: InForce,
        steps: int,
        rng: np.random.Generator,
    ) -> None:
        """Compare two trials in windows of ``steps`` steps; ``next_window`` begins."""
        self.comparison = Comparison(default, best, rng=rng, test=ReplayTest())
        self._in_force, self._steps = in_force, steps
        self._window: Window | None = None

    def next_window(self) -> Apply | None:
        """Begin the next window; return the change that it needs."""
        arm, best = self.comparison.next_arm(), self.comparison.incumbent
        change = self._in_force.change(arm.params, known=best.params)
        settle = SETTLE_STEPS if change is not None else 0
        self._window = Window(epoch=self._in_force.epoch, steps=self._steps, settle=settle)
        return change

    def read(self, record: StepRecord) -> tuple[bool, bool | None]:
        """Take a training step.

        Returns:
            (whether the window is full, True: kept; False: the default is better; None: go on).
        """
        assert self._window is not None
        self._window.add(record)
        if not self._window.is_full:
            return False, None
        return True, self.comparison.take(self._window.reading())
