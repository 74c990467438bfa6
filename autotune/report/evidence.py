"""What the windows of one run say: pairs, the default's drift, waiting, the price of tuning.

Pure functions of readings; times are of training steps, in microseconds; gains are relative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.storage.readings import NO_PAIR, Readings
from autotune.trial import Certificate, SampleKind

FloatArray = NDArray[np.float64]
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
        count = max(1, len(self.step_us) // 10)
        begin, end = np.median(self.step_us[:count]), np.median(self.step_us[-count:])
        return float(end / begin - 1)

    @property
    def spread(self) -> float:
        """Largest over smallest step time of the groups, minus 1."""
        return float(self.step_us.max() / self.step_us.min() - 1)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A training step of one setting: its time, and the part that waits for communication.

    Attributes:
        step_us: Median over its windows.
        exposed_us: The same of the part in which the training thread waits.
        share: Median of the parts' shares; ``share_low`` and ``share_high``: of single windows.
        windows: Their number.
    """

    step_us: float
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
        usable = np.array(
            [n > 0 and t > 0 for n, t in zip(readings.steps, readings.duration_us, strict=True)],
            dtype=bool,
        )
        rows = np.flatnonzero(usable)
        self._trial = np.array(readings.trial_id, dtype=np.int64)[rows]
        self._pair = np.array(readings.pair, dtype=np.int64)[rows]
        kinds = [kind is SampleKind.CERTIFY for kind in readings.kind]
        self._is_paired = np.array(kinds, dtype=bool)[rows]
        self._steps = np.array(readings.steps, dtype=np.float64)[rows]
        self._duration_us = np.array(readings.duration_us)[rows]
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
        for row in np.flatnonzero(self._is_paired & (self._pair != NO_PAIR)):
            if int(self._pair[row]) < number:
                series.append([])
            if int(self._pair[row]) != number:
                windows = {}
            number = int(self._pair[row])
            windows[int(self._trial[row])] = int(row)
            if set(windows) == {0, other}:
                series[-1].append(self._pair_of(number, windows[0], windows[other]))
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

    def default_curve(self) -> Curve | None:
        """Return the default's step time over time; None: it was not read."""
        rows = np.flatnonzero(self._trial == 0)
        if not len(rows):
            return None
        each = math.ceil(len(rows) / MOST_POINTS)
        groups = np.array_split(rows, math.ceil(len(rows) / each))
        times = [self._step_us[group] for group in groups]
        return Curve(
            at_s=np.array([self._end_s[group].mean() for group in groups]) - self.begin_s,
            low_us=np.array([one.min() for one in times]),
            step_us=np.array([np.median(one) for one in times]),
            high_us=np.array([one.max() for one in times]),
            windows=each,
        )

    def waiting(self, trial_id: int, *, beside: int | None = None) -> Waiting | None:
        """Return what a step of a trial waits; None: it was not read.

        Args:
            trial_id: The trial.
            beside: Only windows of the comparison with this trial, if there was one.
        """
        rows = self._trial == trial_id
        if beside is not None and (self._is_paired & (self._trial == beside)).any():
            rows = rows & self._is_paired
        if not rows.any():
            return None
        exposed = np.minimum(self._exposed_us[rows], self._duration_us[rows])
        shares = exposed / self._duration_us[rows]
        return Waiting(
            step_us=float(np.median(self._step_us[rows])),
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
    values, starts, counts = np.unique(result, return_index=True, return_counts=True)
    for value, start, count in zip(values, starts, counts, strict=True):
        result[start : start + count] = value + (np.arange(count) + 1) / count - 1
    return result
