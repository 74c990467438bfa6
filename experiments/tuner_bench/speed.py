"""How fast a job's machine is, as a function of simulated time.

The *slowness* at a moment is the factor by which everything takes longer there, under all settings
alike. A step is *work*, the time that it takes at slowness 1, and ends when the machine has done
that much: a step that spans a change, or many of them, is slowed down by what it meets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
from surfaces import FloatArray

SECOND = 1e6
HOUR = 3600 * SECOND
START_UP_S, START_UP = 4.0, 2.0
DECAY, DECAY_S = 1.0, (2.0, 15.0)
"""Excess at the start, and the range of its time constant."""
SHIFTS = (0.6, 1.5)
"""Speed after the shift over the speed before."""
SHIFT_STEPS = (50, 450)
"""Range of the moment of the shift, in steps of the default."""
WAVE, WAVE_S = 0.2, (3.0, 60.0)
WAVE_PARTS = 48
TWO_SPEEDS, DWELL_S = (1.0, 1.8), 1.0

Segments = Iterator[tuple[float, float]]
"""(microseconds, slowness during them), without end."""
Process = Callable[[np.random.Generator, float], Segments]
"""Makes the segments of one run, given its randomness and the default's step time (us)."""


class Clock:
    """Simulated time against work done, both in microseconds since the start."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._times: FloatArray = np.zeros(1)
        self._works: FloatArray = np.zeros(1)

    def ends(self, now: float, works: FloatArray) -> FloatArray:
        """Return when each of the steps ``works`` ``(n,)`` ends, the first begun at ``now``."""
        self._reach(lambda: self._times[-1] > now)
        wanted = np.interp(now, self._times, self._works) + np.cumsum(works)
        self._reach(lambda: self._works[-1] > wanted[-1])
        ends: FloatArray = np.interp(wanted, self._works, self._times)
        return ends

    def load(self, start: float, end: float, factor: float) -> None:
        """Have everything between two moments take ``factor`` times as long as it would."""
        self._reach(lambda: self._times[-1] > end)
        times = np.union1d(self._times, [start, end])
        works = np.diff(np.interp(times, self._times, self._works))
        works[(times[:-1] >= start) & (times[:-1] < end)] /= factor
        self._times, self._works = times, np.concatenate([[0.0], np.cumsum(works)])

    def _reach(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            chunk = list(itertools.islice(self._segments, 256))
            lengths, slowness = np.array(chunk).T
            more = np.cumsum(lengths / slowness)
            self._times = np.concatenate([self._times, self._times[-1] + np.cumsum(lengths)])
            self._works = np.concatenate([self._works, self._works[-1] + more])


def steady(rng: np.random.Generator, step_us: float) -> Segments:
    """The same speed all the time."""
    return itertools.repeat((HOUR, 1.0))


def start_up(rng: np.random.Generator, step_us: float) -> Segments:
    """Slow for the first seconds, while the job starts."""
    yield START_UP_S * SECOND, START_UP
    yield from steady(rng, step_us)


def decay(rng: np.random.Generator, step_us: float) -> Segments:
    """A slow start that wears off exponentially."""
    low, high = DECAY_S
    constant = SECOND * low * (high / low) ** rng.random()
    for k in range(400):
        yield constant / 50, 1 + DECAY * math.exp(-(k + 0.5) / 50)
    yield from steady(rng, step_us)


def shift(rng: np.random.Generator, step_us: float) -> Segments:
    """Slower or faster for good from some moment of the tuning on."""
    yield rng.uniform(*SHIFT_STEPS) * step_us, 1.0
    yield from itertools.repeat((HOUR, 1 / float(rng.choice(SHIFTS))))


def wave(rng: np.random.Generator, step_us: float) -> Segments:
    """Slower and faster in turns, smoothly."""
    low, high = WAVE_S
    period = SECOND * low * (high / low) ** rng.random()
    phase = rng.random()
    for k in itertools.count():
        yield period / WAVE_PARTS, 1 + WAVE * math.sin(2 * math.pi * (phase + k / WAVE_PARTS))


def two_speeds(rng: np.random.Generator, step_us: float) -> Segments:
    """One of two speeds, for a second each on average."""
    for k in itertools.count(int(rng.integers(2))):
        yield rng.exponential(DWELL_S * SECOND), TWO_SPEEDS[k % 2]
