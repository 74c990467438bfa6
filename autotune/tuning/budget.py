"""The price of exploring: time lost against the default, within a share of its time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.tuning.steps.records import StepRecord
from autotune.tuning.steps.scoring import step_us

FAR = 2.0
"""Steps beyond this multiple of what is typical for their setting are charged as typical ones."""
ADVANCE_STEPS = 200
"""A job is taken to last at least so many steps: what they may lose can be spent before them."""
PLANNED = 0.7
"""Part of the budget that is planned with: the default's own step time is only known so well, and
steps that are on their way when a trial is given up cost, too."""
STOP_RATIO = 5.0
"""A step slower than the default by this factor ends a trial in the runtime itself, at once."""
STEPS_BEFORE_STOP = {STOP_RATIO: 1.0, 1.5: 4.0, 1.3: 6.0, 1.15: 8.0}
"""About how many steps a trial makes before it is abandoned, by its step time over the default's;
below the last of them it may fill its window."""


def price_steps(ratios: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return what trials lose, in steps of the default, by step times ``(m,)`` over the default's.

    Args:
        ratios: Predicted step times over the default's.
        window: Steps of a whole trial.
    """
    steps = np.full(ratios.shape, float(window))
    for ratio in sorted(STEPS_BEFORE_STOP):
        steps[ratios >= ratio] = min(STEPS_BEFORE_STOP[ratio], window)
    result: NDArray[np.float64] = np.maximum(ratios - 1, 0.0) * steps
    return result


def typical_us(records: Sequence[StepRecord]) -> float:
    """Return the step time of a setting: the median, or the fastest of fewer than three."""
    times = [step_us(record) for record in records]
    return statistics.median(times) if len(times) > 2 else min(times)


def charge_us(records: Sequence[StepRecord], default_us: float) -> float:
    """Return the time that the steps of one setting lost against the default.

    An evaluation or a checkpoint between two steps is nobody's fault: such a step is charged as a
    typical one. A setting that is slow in every step pays for all of it.

    Args:
        records: Whole steps under one setting.
        default_us: Step time of the default.
    """
    if not records:
        return 0.0
    typical = typical_us(records)
    times = (step_us(record) for record in records)
    fair = [time if time <= FAR * typical else typical for time in times]
    counts = (record.count for record in records)
    return sum((time - default_us) * n for time, n in zip(fair, counts, strict=True))


class Account:
    """Books every training step against the default near it in time.

    ``allowance_us = PLANNED x share x (time of all steps under the default) - time lost``, where a
    job counts as at least ``ADVANCE_STEPS`` long: one account for all of it, however often it is
    tuned. Steps under a setting faster than the default pay
    back. Steps are charged against the latest reading of the default until the next one comes, and
    for good against the middle of the two.

    Attributes:
        steps: Training steps booked.
    """

    def __init__(self, share: float, *, change_steps: int = 0, change_price: float = 0.0) -> None:
        """Open the account with ``share`` of the default's time (0.05: five percent) to lose.

        Args:
            share: Of the time of all steps under the default.
            change_steps: Steps after a change that pay for it, also after one to the default.
            change_price: What a change costs, in steps of the default.
        """
        self._share = share
        self._change_steps, self._change_price = change_steps, change_price
        self._epoch, self._since = 0, change_steps
        self._default_us = 0.0
        self.steps = 0
        self._open: dict[int, list[StepRecord]] = {}
        self._open_steps = 0
        self._closed_us = self._closed_default_us = 0.0

    def rebase(self, default_us: float) -> None:
        """Charge against the default as just read, ``default_us`` a step."""
        middle = math.sqrt(self._default_us * default_us) if self._default_us else default_us
        self._closed_us += self._charge(middle)
        self._closed_default_us += middle * self._open_steps
        self._open, self._open_steps, self._default_us = {}, 0, default_us

    def settle(self) -> None:
        """Charge what is open against the latest reading of the default: the next is another one.

        So it is where the job changes: nothing before is compared with what comes after.
        """
        if self._default_us:
            self.rebase(self._default_us)
        self._default_us = 0.0

    def book(self, record: StepRecord, *, is_default: bool) -> None:
        """Book a training step; under the default only a change to it can lose something."""
        self.steps += record.count
        self._open_steps += record.count
        if record.epoch != self._epoch:
            self._epoch, self._since = record.epoch, 0
        pays_for_change = self._since < self._change_steps
        self._since += record.count
        is_real = math.isfinite(record.duration_us) and record.duration_us > 0
        if (pays_for_change or not is_default) and is_real and self._default_us > 0:
            self._open.setdefault(record.epoch, []).append(record)

    @property
    def lost_us(self) -> float:
        """Time lost so far, in microseconds; negative: time gained."""
        return self._closed_us + self._charge(self._default_us)

    @property
    def lost_share(self) -> float:
        """Time lost so far over what all steps would have taken under the default."""
        return self.lost_us / self.default_us if self.default_us > 0 else 0.0

    @property
    def allowance_us(self) -> float:
        """Time that exploring may still lose; negative: overdrawn."""
        advance_us = ADVANCE_STEPS * self._default_us
        return PLANNED * self._share * max(self.default_us, advance_us) - self.lost_us

    @property
    def default_us(self) -> float:
        """Time that all steps so far would have taken under the default."""
        return self._closed_default_us + self._default_us * self._open_steps

    @property
    def allowance_steps(self) -> float:
        """The allowance in steps of the default."""
        return self.allowance_us / self._default_us if self._default_us > 0 else 0.0

    def covers(self, ratio: float, steps: int) -> bool:
        """Return whether the allowance covers what a trial, with its two changes, may cost.

        Args:
            ratio: Its step time over the default's.
            steps: Steps of its window.
        """
        price = float(price_steps(np.array([ratio]), steps)[0]) + 2 * self._change_price
        return self.allowance_steps >= price

    @property
    def covers_pair(self) -> bool:
        """Whether the allowance covers the changes of a pair of windows."""
        return not self._change_price or self.allowance_steps >= 2 * self._change_price

    def _charge(self, default_us: float) -> float:
        return sum(charge_us(records, default_us) for records in self._open.values())
