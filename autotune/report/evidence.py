"""What the windows of one run say: pairs, the default's drift, waiting, the price of tuning.

Pure functions of readings; times are of training steps, in microseconds; gains are relative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.storage.readings import KINDS, NO_PAIR, Readings
from autotune.trial import Certificate, SampleKind

FloatArray = NDArray[np.float64]
FEWEST_BRACKETS = 3
"""Windows between two of the default from which on their noise can be told."""
SMALLEST_NOISE = 0.001
"""Standard deviation of the log of a window's step time, at least."""
MEDIAN_OF_SQUARE = 0.455
"""Median of the square of a standard normal value."""
MOST_POINTS = 400
"""Points of a curve; what is longer is drawn and listed in groups of neighbours."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One window of the default beside one of the other setting.

    Attributes:
        number: In the comparison, from 1.
        default_us, other_us: Time of a step.
        gain: Of the other one, by the scores of both windows.
    """

    number: int
    default_us: float
    other_us: float
    gain: float


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The default's step time while the run went on, in order.

    Attributes:
        at_s: ``(n,)`` seconds since the first reading began.
        low_us, step_us, high_us: ``(n,)`` smallest, median and largest step time of a group of
            neighbouring windows.
        windows: Windows in a group, at most.
    """

    at_s: FloatArray
    low_us: FloatArray
    step_us: FloatArray
    high_us: FloatArray
    windows: int

    @property
    def drift(self) -> float:
        """By how much the last tenth is slower than the first one; negative: faster."""
        return self.end_us / float(np.median(self.step_us[: self._tenth])) - 1

    @property
    def end_us(self) -> float:
        """Median of the last tenth."""
        return float(np.median(self.step_us[-self._tenth :]))

    @property
    def _tenth(self) -> int:
        return max(1, len(self.step_us) // 10)

    @property
    def spread(self) -> float:
        """Largest over smallest step time of the groups, minus 1."""
        return float(self.step_us.max() / self.step_us.min() - 1)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A training step of one setting: its time, and the part that waits for communication.

    Attributes:
        step_us: Median over its windows.
        step_low_us, step_high_us: Ends of the middle half of the windows.
        exposed_us: The same of the part in which the training thread waits.
        share: Median of the parts' shares; ``share_low`` and ``share_high``: of single windows.
        windows: Their number.
    """

    step_us: float
    step_low_us: float
    step_high_us: float
    exposed_us: float
    share: float
    share_low: float
    share_high: float
    windows: int


@dataclass(frozen=True, kw_only=True)
class Price:
    """What the readings of other settings cost against the default near them in time.

    Attributes:
        lost_us: Time lost in them; negative: they were faster than the default.
        default_us: What all windows that were read would have taken under the default.
        steps: Steps of all windows.
        other_steps: Those of them that were not under the default.
        changes: How often the setting was changed.
        wall_s: From the first reading to the last one.
    """

    lost_us: float
    default_us: float
    steps: int
    other_steps: int
    changes: int
    wall_s: float

    @property
    def share(self) -> float:
        """``lost_us`` of ``default_us``."""
        return self.lost_us / self.default_us if self.default_us > 0 else 0.0


class Evidence:
    """The readings of one run as arrays, and what follows from them."""

    def __init__(self, readings: Readings) -> None:
        """Take the readings in which at least one step and some time passed."""
        steps, duration_us = np.array(readings.steps), np.array(readings.duration_us)
        rows = np.flatnonzero((steps > 0) & (duration_us > 0))
        self._trial = np.array(readings.trial_id)[rows]
        self._pair = np.array(readings.pair)[rows]
        self._is_paired = np.array(readings.kind)[rows] == KINDS.index(SampleKind.CERTIFY)
        self._steps = steps[rows].astype(np.float64)
        self._duration_us = duration_us[rows]
        self._exposed_us = np.array(readings.exposed_us)[rows]
        self._score = np.array(readings.score)[rows]
        self._end_s = spread_out(np.array(readings.finished_s)[rows])
        self._step_us: FloatArray = self._duration_us / self._steps
        self._trials_end_s = readings.trials_finished_s

    def __len__(self) -> int:
        return len(self._trial)

    @property
    def begin_s(self) -> float:
        """When the first window began, about: seconds since 1970."""
        return float(self._end_s[0] - self._duration_us[0] / 1e6) if len(self) else math.nan

    @property
    def end_s(self) -> float:
        """When the last window ended."""
        return float(self._end_s[-1]) if len(self) else math.nan

    def trial_ends_s(self) -> dict[int, float]:
        """Return {trial_id: seconds since the first window began} of the trials."""
        ends = self._trials_end_s.items()
        return {number: max(0.0, end - self.begin_s) for number, end in ends}

    def pair_s(self) -> float | None:
        """Return the seconds from one pair of the comparison to the next; None: not known."""
        ends = self._end_s[self._is_paired]
        return float(2 * (ends[-1] - ends[0]) / (len(ends) - 1)) if len(ends) > 2 else None

    def compared_at_last(self) -> int:
        """Return the trial that was read in pairs with the default at last; 0: none was."""
        rows = np.flatnonzero(self._is_paired & (self._trial != 0))
        return int(self._trial[rows[-1]]) if len(rows) else 0

    def windows_of(self, trial_id: int) -> int:
        """Return how many windows a trial was read in."""
        return int((self._trial == trial_id).sum())

    def pairs(self, other: int, certificate: Certificate | None = None) -> tuple[Pair, ...]:
        """Return the pairs in which ``other`` was compared with the default.

        A comparison that was begun anew (a job that resumed) numbers its pairs anew: the last one
        counts, or that with as many pairs as the certificate.
        """
        series: list[list[Pair]] = [[]]
        windows: dict[int, int] = {}
        number = NO_PAIR
        is_one_of_both = (self._trial == 0) | (self._trial == other)
        for row in np.flatnonzero(self._is_paired & (self._pair != NO_PAIR)):
            present, trial = int(self._pair[row]), int(self._trial[row])
            is_repeated = present == number and trial in windows
            if present < number or (is_repeated and present == 0):
                series.append([])
            if present != number or is_repeated or not is_one_of_both[row]:
                windows = {}
            number = present
            if not is_one_of_both[row]:
                continue
            windows[trial] = int(row)
            if len(windows) == 2:
                pair = self._pair_of(number, windows[0], windows[other])
                series[-1] = [one for one in series[-1] if one.number != pair.number] + [pair]
        wanted = certificate.pairs if certificate is not None else 0
        fitting = [pairs for pairs in series if len(pairs) == wanted and pairs]
        return tuple(fitting[-1] if fitting else series[-1])

    def _pair_of(self, number: int, default: int, other: int) -> Pair:
        scores = float(self._score[default]), float(self._score[other])
        ratio = scores[1] / scores[0] if scores[0] > 0 else math.nan
        return Pair(
            number=number + 1,
            default_us=float(self._step_us[default]),
            other_us=float(self._step_us[other]),
            gain=ratio - 1,
        )

    def read_gains(self) -> dict[int, tuple[float, float]]:
        """Return {trial_id: (mean, variance)} of the log ratio of the default's step time to its.

        By the windows before the comparison alone, each between the two of the default around it,
        so that nothing but the readings of the trial itself is in it. What the two disagree by says
        how noisy windows are, as in ``autotune.tuning.steps.brackets``. Empty: too few windows.
        """
        default = np.flatnonzero(self._trial == 0)
        rows = np.flatnonzero((self._trial != 0) & ~self._is_paired)
        after = np.searchsorted(default, rows)
        is_between = (after > 0) & (after < len(default))
        rows, after = rows[is_between], after[is_between]
        if len(rows) < FEWEST_BRACKETS:
            return {}
        level = np.log(self._step_us)
        one, two = level[default[after - 1]] - level[rows], level[default[after]] - level[rows]
        squares = np.square(one - two)
        noise = max(float(np.median(squares)) / MEDIAN_OF_SQUARE / 2, SMALLEST_NOISE**2)
        shorter = np.maximum(1.0, np.median(self._steps[rows]) / self._steps[rows])
        weight = 1 / (noise * shorter + np.maximum(noise / 2, squares / 4))
        trials, number = np.unique(self._trial[rows], return_inverse=True)
        total = np.bincount(number, weight)
        mean = np.bincount(number, weight * (one + two) / 2) / total
        found = zip(trials.tolist(), mean.tolist(), (1 / total).tolist(), strict=True)
        return {int(trial): (float(value), float(error)) for trial, value, error in found}

    def default_curve(self) -> Curve | None:
        """Return the default's step time over time; None: it was not read."""
        rows = np.flatnonzero(self._trial == 0)
        if not len(rows):
            return None
        each = math.ceil(len(rows) / MOST_POINTS)
        groups = math.ceil(len(rows) / each)
        # Neighbours, as many in one group as in another, or one more; sorted within each.
        group = np.arange(len(rows)) * groups // len(rows)
        times = self._step_us[rows][np.lexsort((self._step_us[rows], group))]
        counts = np.bincount(group, minlength=groups)
        first = np.cumsum(counts) - counts
        return Curve(
            at_s=np.bincount(group, self._end_s[rows] - self.begin_s) / counts,
            low_us=times[first],
            step_us=(times[first + (counts - 1) // 2] + times[first + counts // 2]) / 2,
            high_us=times[first + counts - 1],
            windows=each,
        )

    def waiting(self, trial_id: int, *, beside: int | None = None) -> Waiting | None:
        """Return what a step of a trial waits; None: it was not read.

        Args:
            trial_id: The trial.
            beside: Only windows that were read side by side with this trial's: those of their
                comparison, without one those just before and after its own.
        """
        rows = self._trial == trial_id
        if beside is not None:
            other = self._trial == beside
            if (self._is_paired & other).any():
                rows, other = rows & self._is_paired, other & self._is_paired
            if beside != trial_id:
                near = np.zeros_like(other)
                near[1:] |= other[:-1]
                near[:-1] |= other[1:]
                rows = rows & near
        if not rows.any():
            return None
        exposed = np.minimum(self._exposed_us[rows], self._duration_us[rows])
        shares = exposed / self._duration_us[rows]
        low, middle, high = np.quantile(self._step_us[rows], (0.25, 0.5, 0.75))
        return Waiting(
            step_us=float(middle),
            step_low_us=float(low),
            step_high_us=float(high),
            exposed_us=float(np.median(exposed / self._steps[rows])),
            share=float(np.median(shares)),
            share_low=float(shares.min()),
            share_high=float(shares.max()),
            windows=int(rows.sum()),
        )

    def price(self) -> Price | None:
        """Return what reading other settings cost; None: the default was not read."""
        default = np.flatnonzero(self._trial == 0)
        if not len(default):
            return None
        near = self._default_near(default)
        others = self._trial != 0
        expected = near * self._steps
        lost = float((self._duration_us - expected)[others].sum())
        return Price(
            lost_us=lost,
            default_us=float(expected.sum()),
            steps=int(self._steps.sum()),
            other_steps=int(self._steps[others].sum()),
            changes=int((np.diff(self._trial) != 0).sum()),
            wall_s=max(0.0, self.end_s - self.begin_s),
        )

    def _default_near(self, default: NDArray[np.intp]) -> FloatArray:
        """Return ``(n,)`` the default's step time near each reading: between before and after."""
        rows = np.arange(len(self))
        after = np.searchsorted(default, rows)
        before = default[np.maximum(after - 1, 0)]
        later = default[np.minimum(after, len(default) - 1)]
        near: FloatArray = np.sqrt(self._step_us[before] * self._step_us[later])
        near[default] = self._step_us[default]
        return near


def spread_out(times: FloatArray) -> FloatArray:
    """Return times ``(n,)`` in seconds where equal ones are spread over their second."""
    if not len(times):
        return times
    result = np.maximum.accumulate(times).astype(np.float64)
    starts = np.flatnonzero(np.diff(result, prepend=-math.inf))
    counts = np.diff(starts, append=len(result))
    place = np.arange(len(result)) - np.repeat(starts, counts)
    spread: FloatArray = result + (place + 1) / np.repeat(counts, counts) - 1
    return spread
