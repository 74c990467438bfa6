"""Windows of two settings in pairs, in random order: the driver of every paired comparison.

Certificate, replay check and drift check differ in the test that decides; how windows are read is
the same. A pair is two windows side by side, one of each setting; which comes first is drawn, so a
machine that becomes slower or faster favours neither.
"""

from __future__ import annotations

import numpy as np

from autotune.trial import Setting, Trial
from autotune.tuning.changes import Apply
from autotune.tuning.comparing.certify import PairedTest
from autotune.tuning.inforce import InForce
from autotune.tuning.steps.brackets import Noise, pair_ratio
from autotune.tuning.steps.records import StepRecord
from autotune.tuning.steps.scoring import MIN_WINDOW_US, SETTLE_STEPS, Reading, Window


class PairedWindows:
    """Which window to read next, and what the pairs say so far.

    Attributes:
        default, incumbent: The two trials that are compared.
        test: The test on their pairs.
        arm: The trial whose window is being read.
        decision: What the test says after the latest pair; None: more pairs are needed.
        windows: Finished windows.
        readings: Those of each setting.
    """

    def __init__(
        self,
        default: Trial,
        incumbent: Trial,
        *,
        test: PairedTest,
        in_force: InForce,
        safe: Setting,
        noise: Noise,
        rng: np.random.Generator,
        steps: int,
        least_us: float = MIN_WINDOW_US,
    ) -> None:
        """Compare two different trials; ``next_window`` begins.

        Args:
            default: The trial with number 0.
            incumbent: The other one.
            test: Takes the pairs and decides.
            in_force: Which setting is in force.
            safe: What training goes on with, should the tuner end before the decision.
            noise: Of this job.
            rng: Decides the order within each pair.
            steps: Steps of a window.
            least_us: Time of a window, at least.
        """
        self.default, self.incumbent, self.test = default, incumbent, test
        self.arm = default
        self.decision: bool | None = None
        self.windows = 0
        self.readings: dict[Setting, list[Reading]] = {default.params: [], incumbent.params: []}
        self._in_force, self._safe = in_force, safe
        self._noise, self._rng = noise, rng
        self._steps, self._least_us = steps, least_us
        self._arms: list[Trial] = []
        self._finished: list[tuple[Trial, Window, Reading]] = []
        self._window: Window | None = None

    @property
    def epoch(self) -> int:
        """Epoch of the window that is being read."""
        return self._in_force.epoch

    @property
    def is_within_pair(self) -> bool:
        """Whether the next window is the second one of a pair."""
        return bool(self._arms)

    def next_window(self) -> Apply | None:
        """Begin the next window; return the change that it needs."""
        if not self._arms:
            pair = [self.default, self.incumbent]
            self._arms = [pair[int(k)] for k in self._rng.permutation(2)]
        self.arm = self._arms.pop(0)
        change = self._in_force.change(self.arm.params, known=self._safe)
        settle = SETTLE_STEPS if change is not None else 0
        self._window = Window(
            epoch=self._in_force.epoch, steps=self._steps, settle=settle, least_us=self._least_us
        )
        return change

    def read(self, record: StepRecord) -> Reading | None:
        """Take a training step; return the reading of the window if that is full now.

        Then ``decision`` is up to date; where it is None, ``next_window`` comes next.
        """
        window = self._window
        if window is None:
            return None
        window.add(record)
        if not window.is_full:
            return None
        reading, self._window = window.reading(), None
        self.windows += 1
        self.readings[self.arm.params].append(reading)
        self._noise.add(window.records)
        self._finished.append((self.arm, window, reading))
        if len(self._finished) == 2:
            self._close(*self._finished)
            self._finished = []
            self.decision = self.test.decision()
        return reading

    def _close(
        self, first: tuple[Trial, Window, Reading], second: tuple[Trial, Window, Reading]
    ) -> None:
        """Record the pair: both windows, in the order in which they were read."""
        ratio = pair_ratio(first[1].records, second[1].records, self._noise)
        is_default_first = first[0] is self.default
        default, incumbent = (first, second) if is_default_first else (second, first)
        self.test.add(
            ratio if is_default_first else -ratio,
            slow=(default[2].slow_steps, incumbent[2].slow_steps),
            excess=(default[2].slow_excess, incumbent[2].slow_excess),
        )
