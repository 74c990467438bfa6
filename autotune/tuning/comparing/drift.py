"""After DONE: whether the job has changed so much that the result may be wrong by now.

``DriftDetector`` compares short windows with those right after tuning. What it finds is a
suspicion, which ``aftercare`` follows.
"""

from __future__ import annotations

import math

import numpy as np

from autotune.tuning.steps.records import StepRecord
from autotune.tuning.steps.scoring import step_us

WINDOW_STEPS = 20
WINDOW_US = 0.5e6
"""A window has so many steps, and is so long, at least."""
REFERENCE_WINDOWS, MOST_KNOWN = 8, 400
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

    def __init__(self) -> None:
        """Know nothing yet."""
        self._times: list[float] = []
        self._exposed = 0.0
        self._steps, self._us = 0, 0.0
        self._reference: list[tuple[float, float]] = []
        self._outside: list[tuple[float, float]] = []

    def add(self, record: StepRecord) -> bool:
        """Take a training step; return whether ``DRIFTED_WINDOWS`` windows in a row are a drift.

        All of them have to be slower, or all faster, than anything that is known.
        """
        self._times.append(step_us(record))
        self._exposed += record.exposed_us
        self._steps += record.count
        self._us += record.duration_us
        if self._steps < WINDOW_STEPS or self._us < WINDOW_US:
            return False
        window = (math.log(float(np.median(self._times))), self._exposed / self._steps)
        self._times, self._exposed, self._steps, self._us = [], 0.0, 0, 0.0
        return self._judge(window)

    def _judge(self, window: tuple[float, float]) -> bool:
        if len(self._reference) < REFERENCE_WINDOWS:
            self._reference.append(window)
            return False
        known = np.sort([level for level, _ in self._reference])
        # The extreme one may be a hiccup: what was seen twice is known.
        low, high = float(known[1]), float(known[-2])
        spread = 1.4826 * float(np.median(np.abs(known - np.median(known))))
        margin = max(math.log1p(DRIFT), SIGMA * spread)
        is_slower = window[0] > high + margin
        is_inside = not is_slower and window[0] >= low - margin
        if is_inside or (self._outside and (self._outside[-1][0] > high) != is_slower):
            self.learn()  # it was over soon: what this machine does now and then
        if not is_inside:
            self._outside.append(window)
        return len(self._outside) >= DRIFTED_WINDOWS

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
        self._outside = []
