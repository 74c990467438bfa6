"""From finished steps to a score: windows of whole steps, robust against single slow ones.

A *window* is what one sample is read from: at least ``steps`` training steps of one epoch, and at
least ``MIN_WINDOW_US`` long. The first steps after a change of the setting settle and are not
scored. Pure functions and one small accumulator; no clock: time comes with the records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.trial import Sample, SampleKind
from autotune.tuning.steps.records import StepRecord

MIN_WINDOW_US = 50_000.0
SETTLE_STEPS = 2
"""Steps thrown away after a change: buffers are allocated, queues drain."""
SLOW_SIGMA = 5.0
SLOW_RATIO = 1.2
"""A step is *slow* beyond both: 5 robust standard deviations and 20 % above the median."""
SLOW_SHARE = 0.2
"""Slow steps are dropped only up to this share; more often, being slow is what the setting does."""
PAUSE_RATIO = 10.0
"""A step so many times as slow as the median holds an evaluation or a checkpoint."""
HICCUP_RATIO, HICCUP_SHARE = 2.0, 0.34
"""... or up to this share where all of them are so many times as slow as the median."""
HOPELESS_AT_ONCE = 5.0
"""Slower than the default by this factor, waiting: one step proves a setting hopeless."""
SURE = 3.5
"""Standard errors by which a setting must be slower than its rival to be abandoned."""
LEAST_MARGIN = 0.03
FEWEST_FOR_MEDIAN = 4
MEDIAN_ERROR = 1.25
"""Standard error of a median over that of a mean, for normal noise."""
CORRELATION = 0.3
"""Lag-1 autocorrelation of step times in an ordinary job."""


def variance_factor(correlation: float, count: float = math.inf) -> float:
    """Return the variance of a mean of ``count`` successive values over that of independent ones.

    Source: Box, Jenkins and Reinsel (1994), Time series analysis, section 2.1.5, for a first-order
    autoregression: ``(1 + r) / (1 - r) - 2 r (1 - r**n) / (n (1 - r)**2)``.
    """
    r = correlation
    whole = (1 + r) / (1 - r)
    if not math.isfinite(count):
        return whole
    return whole - 2 * r * (1 - float(r**count)) / (count * (1 - r) ** 2)


CORRELATED = variance_factor(CORRELATION)
"""The same for many steps of an ordinary job: 1.86."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one window shows.

    Attributes:
        steps: Scored steps.
        duration_us: Their time, in microseconds.
        payload_bytes: Bytes of their collectives.
        exposed_us: Time the training thread waited for communication in them.
        score: bytes/us; higher is better; 0 if it cannot be computed.
        slow_steps: Steps that were dropped as slow; those beyond ``PAUSE_RATIO`` are nobody's.
        spread: Robust standard deviation of one step's time, as a share of it.
        payload_spread: Standard deviation of the bytes of one step, as a share of them.
        slow_us: Time of the steps that were dropped as slow.
    """

    steps: int
    duration_us: float
    payload_bytes: int
    exposed_us: float
    score: float
    slow_steps: int
    spread: float = 0.0
    payload_spread: float = 0.0
    slow_us: float = 0.0

    @property
    def step_us(self) -> float:
        """Mean time of a scored step; infinite without one."""
        return self.duration_us / self.steps if self.steps else math.inf

    @property
    def slow_excess(self) -> float:
        """Share by which the mean step is longer when the slow steps are counted in."""
        if not self.steps or self.duration_us <= 0:
            return 0.0
        every = (self.duration_us + self.slow_us) / (self.steps + self.slow_steps)
        return every / self.step_us - 1

    @property
    def exposed_share(self) -> float:
        """Share of the time that the training thread waited for communication."""
        return min(1.0, self.exposed_us / self.duration_us) if self.duration_us > 0 else 0.0

    def sample(
        self, *, trial_id: int, epoch: int, kind: SampleKind, pair: int | None = None
    ) -> Sample:
        """Return this reading of a trial as the trial log wants it; ``pair``: its number."""
        return Sample(
            trial_id=trial_id,
            epoch=epoch,
            kind=kind,
            pair=pair,
            steps=self.steps,
            duration_us=self.duration_us,
            payload_bytes=self.payload_bytes,
            exposed_us=self.exposed_us,
            score=self.score,
        )

    @property
    def noise(self) -> float:
        """Standard error of the score, as a share of it, from the spread of the steps."""
        return self.spread * math.sqrt(CORRELATED / self.steps) if self.steps else 0.0


def headroom(reading: Reading, *, faster: float = 0.0) -> float:
    """Return the gain of hiding all communication behind a computation that it does not slow.

    That is the most tuning can bring.

    Args:
        reading: Of a setting under which communication takes nothing from the computation.
        faster: By how much it is faster than the default, as log of the ratio; at most.
    """
    share = reading.exposed_share
    return math.exp(faster) / (1 - share) - 1 if share < 1 else math.inf


def is_usable(record: StepRecord) -> bool:
    """Return whether the record is whole steps of one epoch with a duration and a payload."""
    real = math.isfinite(record.duration_us) and record.duration_us > 0
    return real and record.count > 0 and record.epoch >= 0 and record.payload_bytes > 0


def step_us(record: StepRecord) -> float:
    """Return the mean time of the record's steps, in microseconds."""
    return record.duration_us / record.count


def robust_deviation(durations: np.ndarray) -> float:
    """Return the robust standard deviation of step times ``(n,)``.

    Source: 1.4826 x the median absolute deviation, Rousseeuw and Croux (1993), Alternatives to the
    median absolute deviation, section 1.
    """
    return 1.4826 * float(np.median(np.abs(durations - np.median(durations))))


def slow_mask(durations: np.ndarray) -> np.ndarray:
    """Return which of the step times ``(n,)`` are slow: an evaluation, a checkpoint, a hiccup."""
    middle, sigma = float(np.median(durations)), robust_deviation(durations)
    slow: np.ndarray = durations > max(middle + SLOW_SIGMA * sigma, SLOW_RATIO * middle)
    if slow.sum() <= max(1.0, SLOW_SHARE * len(durations)):
        return slow
    hiccups: np.ndarray = slow & (durations > HICCUP_RATIO * middle)
    few = hiccups.sum() == slow.sum() <= HICCUP_SHARE * len(durations)
    return hiccups if few else np.zeros_like(slow)


def payload_spread(records: Sequence[StepRecord]) -> float:
    """Return the standard deviation of the bytes per step, as a share of their mean."""
    sizes = np.array([record.payload_bytes / record.count for record in records])
    mean = float(sizes.mean())
    return float(sizes.std()) / mean if mean > 0 else 0.0


def read(records: Sequence[StepRecord]) -> Reading:
    """Return the reading of a window: payload over time, without single slow steps."""
    if not records:
        return Reading(
            steps=0, duration_us=0.0, payload_bytes=0, exposed_us=0.0, score=0.0, slow_steps=0
        )
    times = np.array([step_us(record) for record in records])
    slow = slow_mask(times)
    kept = [record for record, drop in zip(records, slow, strict=True) if not drop]
    pauses = slow & (times > PAUSE_RATIO * float(np.median(times)))
    charged = [one for one, drop in zip(records, slow & ~pauses, strict=True) if drop]
    duration = sum(record.duration_us for record in kept)
    payload = sum(record.payload_bytes for record in kept)
    score = payload / duration if duration > 0 else 0.0
    return Reading(
        steps=sum(record.count for record in kept),
        duration_us=duration,
        payload_bytes=payload,
        exposed_us=sum(record.exposed_us for record in kept),
        score=score if math.isfinite(score) else 0.0,
        slow_steps=sum(record.count for record in charged),
        slow_us=sum(record.duration_us for record in charged),
        spread=robust_deviation(times) / float(np.median(times)),
        payload_spread=payload_spread(records),
    )


def pool(readings: Sequence[Reading]) -> Reading:
    """Return the readings of one setting as one; the score is total payload over total time."""
    duration = sum(reading.duration_us for reading in readings)
    payload = sum(reading.payload_bytes for reading in readings)
    return Reading(
        steps=sum(reading.steps for reading in readings),
        duration_us=duration,
        payload_bytes=payload,
        exposed_us=sum(reading.exposed_us for reading in readings),
        score=payload / duration if duration > 0 else 0.0,
        slow_steps=sum(reading.slow_steps for reading in readings),
        spread=float(np.mean([reading.spread for reading in readings])) if readings else 0.0,
    )


def is_stationary(times: Sequence[float]) -> bool:
    """Return whether the step times of successive windows have stopped falling.

    The two latest windows must not be more than 3 % below every earlier one: compilation, autotuned
    kernels and cold caches make early steps slow, and a default read among them would flatter every
    later setting.
    """
    return len(times) >= 3 and min(times[-2:]) >= 0.97 * min(times[:-2])


def is_hopeless(records: Sequence[StepRecord], *, default: Reading, rival_us: float) -> bool:
    """Return whether steps under a setting prove that it is slower than ``rival_us`` a step.

    One step alone does only if it is far slower than the default and spent its excess waiting for
    communication; of two or three the fastest one counts, of more their median, so that slow steps
    (one in a few hundred is three times slower anyway, on some networks one in twenty) prove
    nothing.
    """
    times = sorted(step_us(record) for record in records)
    if not times:
        return False
    if len(times) == 1:
        return times[0] > HOPELESS_AT_ONCE * default.step_us and _waited(records[0], default)
    few = len(times) < FEWEST_FOR_MEDIAN
    typical = times[0] if few else float(np.median(times))
    error = math.sqrt(CORRELATED) if few else MEDIAN_ERROR * math.sqrt(CORRELATED / len(times))
    margin = max(SURE * default.spread * error, LEAST_MARGIN)
    return typical > (1 + margin) * rival_us


def _waited(record: StepRecord, default: Reading) -> bool:
    waited = record.exposed_us / record.count - default.exposed_us / max(1, default.steps)
    return waited > 0.8 * (step_us(record) - default.step_us)


class Window:
    """Collects the records of one window.

    Attributes:
        epoch: Only records of this epoch count.
        records: The scored records so far.
        settled: Records that came before them.
    """

    def __init__(
        self,
        *,
        epoch: int,
        steps: int,
        settle: int = SETTLE_STEPS,
        least_us: float = MIN_WINDOW_US,
    ) -> None:
        """Start an empty window after ``settle`` steps that do not count.

        Args:
            epoch: Only records of this epoch count.
            steps: Steps of a full window, at least.
            settle: Steps that come before it.
            least_us: Time of a full window, at least.
        """
        self._least_us = least_us
        self.epoch = epoch
        self.records: list[StepRecord] = []
        self._steps = steps
        self._settle = settle
        self.settled: list[StepRecord] = []

    def add(self, record: StepRecord) -> None:
        """Take ``record`` (a usable record of the training signature) if it is of this epoch."""
        if record.epoch != self.epoch:
            return
        if sum(entry.count for entry in self.settled) < self._settle:
            self.settled.append(record)
        else:
            self.records.append(record)

    @property
    def judged(self) -> list[StepRecord]:
        """Records that may prove the setting hopeless: all but the first after the change."""
        return [*self.settled[1:], *self.records]

    @property
    def steps(self) -> int:
        """Scored steps so far."""
        return sum(record.count for record in self.records)

    def steps_left(self, step_us: float | None) -> int:
        """Return the training steps that are still needed, about, at least one.

        Args:
            step_us: Time of a step; None: not known, and the fewest steps are returned.
        """
        needed = self._steps
        if step_us is not None:
            needed = max(needed, math.ceil(self._least_us / step_us))
        return max(1, needed - self.steps)

    @property
    def is_full(self) -> bool:
        """Whether the window has its steps and is long enough."""
        steps = self.steps
        if steps < self._steps:
            return False
        typical = float(np.median([step_us(record) for record in self.records]))
        return typical * steps >= self._least_us

    def reading(self) -> Reading:
        """Return what the window shows so far."""
        return read(self.records or self.judged or self.settled)
