"""A setting against the default near it in time, whatever the machine's speed does meanwhile.

Every window of a setting is read between two windows of the default, one just before and one just
after: together they are a *bracket*. At each of the two edges the step time jumps by what the
setting does; anything else that changes the speed there (another job, a throttled clock) is taken
for the setting's doing at one edge and for its opposite at the other, so what the edges disagree by
says how far the reading can be trusted.

*Stretches.* A jump of the step time inside a window is no setting's doing. Windows are cut there,
and each edge compares the stretch that ends at it with the one that begins there.

Pure functions; levels are logarithms of time per byte, so differences of levels are log ratios:
0.01 is one percent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.tuning.steps.records import StepRecord
from autotune.tuning.steps.scoring import CORRELATION, slow_mask, step_us, variance_factor

FEWEST_IN_STRETCH = 3
"""Records of a stretch, at least: one or two slow steps are no change of speed."""
JUMP_SIGMA = 4.5
SMALLEST_JUMP = 0.1
"""A jump inside a window is at least so large, and so many standard errors."""
TYPICAL_NOISE = 0.02
SMALLEST_NOISE, LARGEST_NOISE = 0.002, 1.0
FEWEST_CORRELATED = 5
"""Records of a window, and windows, from which on the correlation of records is estimated."""
LARGEST_CORRELATION = 0.9
CORRELATION_RECORDS = 80
"""Records that weigh as much as what is known of ordinary jobs."""
MOST_OF_A_WINDOW = 6.0
"""A window's variance counts up to so many times the typical one: a hiccup is not the noise."""
NOISE_WINDOWS = 24
"""Windows that the noise of one record is estimated from, the latest ones."""
SURPRISE = 4.0
"""Edges that disagree by more than twice what noise explains have seen a change of speed: the
reading is as uncertain as they disagree, so it says little, or is taken again."""
EDGE_RECORDS = 4
"""Records between two windows: on their way when a change is sent, and settling."""
BETWEEN = 0.25
"""Variance of a reading over that of the disagreement of its edges: the middle of a random walk
between two known points has a quarter of the variance of its increment."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Successive records without a jump: ``level`` is the log of time per byte."""

    level: float
    count: int


@dataclass(frozen=True, kw_only=True)
class LogRatio:
    """A reading of ``log(time of the default / time of the setting)``: above 0 it is faster.

    Attributes:
        mean: The reading.
        variance: Of its error.
    """

    mean: float
    variance: float


def levels(records: Sequence[StepRecord]) -> NDArray[np.float64]:
    """Return the log of time per byte of each record ``(n,)``."""
    return np.array([math.log(one.duration_us / one.payload_bytes) for one in records])


def without_slow(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the records without single slow ones."""
    if len(records) < FEWEST_IN_STRETCH:
        return list(records)
    slow = slow_mask(np.array([step_us(record) for record in records]))
    return [record for record, drop in zip(records, slow, strict=True) if not drop]


def jump(values: NDArray[np.float64], noise: float) -> int | None:
    """Return where ``values (n,)`` jump: the first index of the later part; None: nowhere.

    The split with the largest contrast between its parts, if that is beyond noise; else the one
    between the few values on each side: speed that rises and falls again leaves the parts alike.

    Source: Scott and Knott (1974), A cluster analysis method for grouping means, section 2.
    """
    n = len(values)
    if n < 2 * FEWEST_IN_STRETCH:
        return None
    at = np.arange(FEWEST_IN_STRETCH, n - FEWEST_IN_STRETCH + 1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    few = np.full_like(at, FEWEST_IN_STRETCH)
    return _split(values, sums, at, at, n - at, noise / 2) or _split(
        values, sums, at, few, few, noise
    )


def _split(
    values: NDArray[np.float64],
    sums: NDArray[np.float64],
    at: NDArray[np.intp],
    before: NDArray[np.intp],
    after: NDArray[np.intp],
    noise: float,
) -> int | None:
    """Return the split with the largest contrast of ``before`` and ``after`` values beside it."""
    levels_before = (sums[at] - sums[at - before]) / before
    levels_after = (sums[at + after] - sums[at]) / after
    weight = before * after / (before + after)
    best = int(np.argmax((levels_after - levels_before) ** 2 * weight))
    k, left, right = int(at[best]), int(before[best]), int(after[best])
    parts = [values[k - left : k] - levels_before[best], values[k : k + right] - levels_after[best]]
    inside = math.sqrt(float(np.concatenate(parts).var()))
    error = max(inside, noise) * math.sqrt(variance_factor(CORRELATION) / float(weight[best]))
    size = abs(float(levels_after[best] - levels_before[best]))
    return k if size > max(SMALLEST_JUMP, JUMP_SIGMA * error) else None


def stretches(records: Sequence[StepRecord], noise: float) -> list[list[StepRecord]]:
    """Return the records in stretches without a jump, in order; at least one.

    Source: binary segmentation, Scott and Knott (1974).
    """
    k = jump(levels(records), noise)
    if k is None:
        return [list(records)]
    return [*stretches(records[:k], noise), *stretches(records[k:], noise)]


def stretch(records: Sequence[StepRecord]) -> Stretch:
    """Return the level of some records: all their time over all their bytes."""
    duration = sum(record.duration_us for record in records)
    payload = sum(record.payload_bytes for record in records)
    return Stretch(level=math.log(duration / payload), count=len(records))


class Noise:
    """The noise of one record, from what windows scatter within their stretches.

    Attributes:
        wander: Variance that changes of speed add to a reading, beside the noise.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self.wander = 0.0
        self._parts: list[tuple[float, float, int]] = []
        self._records = self._jumps = 0
        self._jump_squares = 0.0
        self._differences: list[NDArray[np.float64]] = []
        self._disagreements: list[tuple[float, float]] = []

    @property
    def sigma(self) -> float:
        """Standard deviation of the log of one record's step time."""
        r = self.correlation
        freedom = np.array([n - variance_factor(r, n) for _, _, n in self._parts])
        if freedom.sum() < FEWEST_IN_STRETCH:
            return TYPICAL_NOISE
        squares = np.array([square for square, _, _ in self._parts])
        most = MOST_OF_A_WINDOW * float(np.median(squares / freedom))
        variance = float(np.minimum(squares, most * freedom).sum() / freedom.sum())
        return min(max(math.sqrt(variance), SMALLEST_NOISE), LARGEST_NOISE)

    def add(self, records: Sequence[StepRecord]) -> None:
        """Take a window under one setting."""
        kept = without_slow(records)
        if len(kept) > 1:
            self._differences.append(np.abs(np.diff(levels(kept))))
            self._differences = self._differences[-NOISE_WINDOWS:]
        parts = stretches(kept, self.local)
        self._records += len(records)
        self._jumps += len(parts) - 1
        sizes = np.diff([stretch(part).level for part in parts])
        self._jump_squares += float(np.square(sizes).sum())
        for part in parts:
            if len(part) > 1:
                values = levels(part)
                away = values - values.mean()
                products = float((away[1:] * away[:-1]).sum())
                self._parts.append((float(np.square(away).sum()), products, len(part)))
        self._parts = self._parts[-NOISE_WINDOWS:]

    @property
    def local(self) -> float:
        """Standard deviation of a record's log step time beside its neighbours'.

        By the median difference of successive records, which rare jumps of the speed leave alone;
        so they are told from noise however often they come.

        Source: von Neumann (1941), Distribution of the ratio of the mean square successive
        difference to the variance; the median as in Rousseeuw and Croux (1993), section 1.
        """
        if not self._differences:
            return TYPICAL_NOISE
        typical = 1.4826 * float(np.median(np.concatenate(self._differences)))
        return min(max(typical / math.sqrt(2 * (1 - CORRELATION)), SMALLEST_NOISE), LARGEST_NOISE)

    @property
    def steady_records(self) -> float:
        """Records from one jump of the speed to the next, on average; infinite without jumps."""
        return self._records / self._jumps if self._jumps > 1 else math.inf

    @property
    def hidden(self) -> float:
        """Variance that jumps add which no edge shows: one between the windows on each side.

        Both edges agree then that the setting did it. How often that happens follows from how
        often the speed jumps inside windows, where it can be seen.
        """
        if not math.isfinite(self.steady_records):
            return 0.0
        chance = min(1.0, EDGE_RECORDS / self.steady_records)
        return chance**2 * self._jump_squares / self._jumps

    @property
    def correlation(self) -> float:
        """Correlation of successive records, at least that of an ordinary job.

        Source: Kendall (1954), Note on bias in the estimation of autocorrelation, for the bias
        ``-(1 + 3 r) / n`` of estimates from short windows around their own mean.
        """
        parts = [part for part in self._parts if part[2] >= FEWEST_CORRELATED]
        squares = sum(square for square, _, _ in parts)
        if squares <= 0 or len(parts) < FEWEST_CORRELATED:
            return CORRELATION
        raw = sum(product for _, product, _ in parts) / squares
        count = len(parts) / sum(1 / n for _, _, n in parts)
        unbiased = (raw + 1 / count) / (1 - 3 / count)
        weight = sum(n for _, _, n in parts) / CORRELATION_RECORDS
        drawn = (weight * unbiased + CORRELATION) / (weight + 1)
        return min(max(drawn, CORRELATION), LARGEST_CORRELATION)

    def variance(self, count: float) -> float:
        """Return the variance of the level of ``count`` successive records."""
        count = max(count, 1.0)
        return self.sigma**2 * variance_factor(self.correlation, count) / count

    def disagree(self, difference: float, explained: float) -> None:
        """Learn from the edges of a bracket: they differ; noise explains a variance of that."""
        self._disagreements.append((difference**2, explained))
        squares = np.array([square for square, _ in self._disagreements])
        most = 9 * float(np.median(squares)) / 0.455  # the median of a chi-square
        expected = sum(variance for _, variance in self._disagreements)
        excess = float(np.minimum(squares, most).sum()) - expected
        # A few brackets that agree by luck, or disagree, say little: one more that agrees is added.
        self.wander = BETWEEN * max(0.0, excess) / (len(squares) + 1)


class Bracket:
    """One setting between two windows of the default: what its edges say."""

    def __init__(
        self,
        before: Sequence[StepRecord],
        trial: Sequence[StepRecord],
        *,
        noise: Noise,
        most: int,
    ) -> None:
        """Cut the windows at their jumps.

        Args:
            before: Records of the default that end where ``trial`` begins.
            trial: Records of the setting, at least one.
            noise: Of this job.
            most: Records of a window of the default that count, at most: the nearest ones.
        """
        self._noise, self._most = noise, most
        parts = stretches(without_slow(trial), noise.local)
        self._first, self._last = stretch(parts[0]), stretch(parts[-1])
        self._is_whole = len(parts) == 1
        self._before = stretch(stretches(without_slow(before), noise.local)[-1][-most:])

    def half(self) -> LogRatio:
        """Return what the first edge says alone."""
        count = self._noise.variance
        variance = count(self._before.count) + count(self._first.count)
        variance += 4 * (self._noise.wander + self._noise.hidden)
        return LogRatio(mean=self._before.level - self._first.level, variance=variance)

    def closed(self, after: Sequence[StepRecord]) -> LogRatio:
        """Return what both edges say.

        Args:
            after: Records of the default that begin where the trial ends.
        """
        noise = self._noise
        later = stretch(stretches(without_slow(after), noise.local)[0][: self._most])
        one, two = self._before.level - self._first.level, later.level - self._last.level
        ends = noise.variance(self._before.count), noise.variance(later.count)
        middle = noise.variance(self._first.count), noise.variance(self._last.count)
        if self._is_whole:
            explained, weight = sum(ends), 0.5
            variance = middle[0] + sum(ends) / 4
        else:
            explained = sum(ends) + sum(middle)
            weight = (ends[1] + middle[1]) / explained
            variance = 1 / (1 / (ends[0] + middle[0]) + 1 / (ends[1] + middle[1]))
        excess = (one - two) ** 2 - SURPRISE * explained
        noise.disagree(one - two, explained)
        return LogRatio(
            mean=weight * one + (1 - weight) * two,
            variance=variance + noise.hidden + max(noise.wander, BETWEEN * max(0.0, excess)),
        )


def pair_ratio(first: Sequence[StepRecord], second: Sequence[StepRecord], noise: Noise) -> float:
    """Return the log of the step time of ``first`` over that of ``second``, which follows it.

    Where the speed jumps inside a window only the stretches at the common edge count.
    """
    end = stretches(without_slow(first), noise.local)[-1]
    begin = stretches(without_slow(second), noise.local)[0]
    return stretch(end).level - stretch(begin).level
