"""After DONE: whether the job has changed so much that the result may be wrong by now.

``DriftDetector`` compares short windows with what tuning has read of the setting that stays, and
with the first ones after it. What it finds is a suspicion, which ``aftercare`` follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from autotune.tuning.steps.records import StepRecord
from autotune.tuning.steps.scoring import Reading, step_us

WINDOW_STEPS, MOST_STEPS = 20, 32
WINDOW_US = 0.5e6
"""A window has so many steps and is so long, at least; where steps are short it ends after the most
steps."""
FEWEST_KNOWN, MOST_KNOWN = 6, 400
"""Windows that are known, at least, before others are judged by them, and at most: the latest."""
FROM_TUNING, FIRST_WINDOWS = 16, 8
"""Of tuning's windows so many, the latest, are known; then the first ones after it, unless they are
slower."""
DRIFTED_WINDOWS = 5
"""Windows in a row outside what is known that are a drift."""
DRIFT = 0.2
"""Step times that differ by more than this share from all that were seen may be a drift ..."""
SIGMA = 4.0
"""... if they also do by so many robust standard deviations of the windows so far."""
WAITED = 1.25
"""Exposed communication that differs by this factor from what it was: the links have changed."""


class DriftDetector:
    """Follows the step time under a setting that stays in force."""

    def __init__(self, readings: Iterable[Reading] = ()) -> None:
        """Know what tuning has read of the setting; nothing where it was not tuned in this job."""
        self._times: list[float] = []
        self._exposed = 0.0
        self._steps, self._us = 0, 0.0
        self._windows = 0
        read = [
            (math.log(one.step_us), one.exposed_us / one.steps) for one in readings if one.steps
        ]
        self._reference = read[-FROM_TUNING:]
        self._outside: list[tuple[float, float]] = []
        self._side = 0

    def add(self, record: StepRecord) -> bool:
        """Take a training step; return whether ``DRIFTED_WINDOWS`` windows in a row are a drift.

        All of them have to be slower, or all faster, than anything that is known.
        """
        self._times.append(step_us(record))
        self._exposed += record.exposed_us
        self._steps += record.count
        self._us += record.duration_us
        is_long = self._us >= WINDOW_US or self._steps >= MOST_STEPS
        if self._steps < WINDOW_STEPS or not is_long:
            return False
        window = (math.log(float(np.median(self._times))), self._exposed / self._steps)
        self._times, self._exposed, self._steps, self._us = [], 0.0, 0, 0.0
        return self._judge(window)

    def _judge(self, window: tuple[float, float]) -> bool:
        self._windows += 1
        side = self._side_of(window[0])
        if side <= 0 and self._windows <= FIRST_WINDOWS:
            # A setting at rest may do better than between changes, where tuning has read it.
            self._reference.append(window)
            side = 0
        if side != self._side:
            self.learn()  # it was over soon: what this machine does now and then
            self._side = side
        if side:
            self._outside.append(window)
        return len(self._outside) >= DRIFTED_WINDOWS

    def _side_of(self, level: float) -> int:
        """Return 1: slower than anything that is known, -1: faster, 0: neither."""
        if len(self._reference) < FEWEST_KNOWN:
            return 0
        known = np.sort([level for level, _ in self._reference])
        # The extreme one may be a hiccup: what was seen twice is known.
        low, high = float(known[1]), float(known[-2])
        spread = 1.4826 * float(np.median(np.abs(known - np.median(known))))
        margin = max(math.log1p(DRIFT), SIGMA * spread)
        return int(level > high + margin) - int(level < low - margin)

    @property
    def links_changed(self) -> bool:
        """Whether a step waits much longer, or much less, for communication than it did."""
        before = float(np.median([exposed for _, exposed in self._reference]))
        now = float(np.median([exposed for _, exposed in self._outside]))
        if before <= 0 or now <= 0:
            return before != now
        return not 1 / WAITED <= now / before <= WAITED

    def learn(self) -> None:
        """Take the windows outside for known: the result holds there, too."""
        self._reference = [*self._reference, *self._outside][-MOST_KNOWN:]
        self._outside, self._side = [], 0
