"""The problems: ``bbob-mixint`` in five dimensions, as cost ratios with noise.

A function's values range over up to seven decades and may be negative, so every policy gets the
same transformed readings:

    cost(x) = 1 + (f(x) - f_best) / (f_median - f_best)
    reading(x) = log(cost(x) / cost(default)) + noise

The best setting costs 1, the median one 2; a reading is the log ratio of a cost to the default's,
lower is better, and its noise is normal with standard deviation 0.05 (5 %). The default is the
centre of the domain and reads exactly 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import cocoex
import numpy as np

FUNCTIONS = range(1, 25)
NOISE = 0.05
WHOLE = ((0, 1), (0, 3), (0, 7), (0, 15))
REAL = (-5.0, 5.0)
DEFAULT: tuple[float, ...] = (1, 2, 4, 8, 0.0)
COARSE, REFINED, FINE = 41, 40, 101
"""Values of the real variable, settings around which it is refined, and values there."""


def _problem(function: int, instance: int):
    options = f"dimensions:5 instance_indices:{instance} function_indices:{function}"
    suite = cocoex.Suite("bbob-mixint", "", options)
    return suite, suite.get_problem(0)


@dataclass(frozen=True)
class Scale:
    """Of a function: its best value (``f_best``) and its median over the domain (``f_median``)."""

    best: float
    median: float


@lru_cache(maxsize=4)
def scale(function: int, instance: int) -> Scale:
    """Return best and median value, by looking at all whole numbers and refining the real one."""
    _suite, f = _problem(function, instance)
    wholes = list(itertools.product(*[range(low, high + 1) for low, high in WHOLE]))
    reals = np.linspace(*REAL, COARSE)
    values = np.array([[f([*whole, real]) for real in reals] for whole in wholes])
    median, step = float(np.median(values)), reals[1] - reals[0]
    best = float(values.min())
    for flat in np.argsort(values, axis=None)[:REFINED]:
        row, column = np.unravel_index(flat, values.shape)
        near = np.clip(reals[column] + step * np.linspace(-1, 1, FINE), *REAL)
        best = min(best, *[f([*wholes[row], real]) for real in near])
    return Scale(best=best, median=median)


class Problem:
    """One function with the noise of one seed; the same seed gives every policy the same noise."""

    def __init__(self, function: int, seed: int) -> None:
        self._suite, self._f = _problem(function, instance=1 + seed)
        self._scale = scale(function, 1 + seed)
        self._rng = np.random.default_rng([function, seed])

    def regret(self, x: Sequence[float]) -> float:
        """Return ``(f(x) - f_best) / (f_median - f_best)``: 0 is the best, 1 the median setting."""
        return max(self._f([float(v) for v in x]) - self._scale.best, 0.0) / max(
            self._scale.median - self._scale.best, 1e-12
        )

    def read(self, x: Sequence[float]) -> float:
        """Return a noisy log cost ratio of ``x`` to the default; lower is better."""
        ratio = math.log1p(self.regret(x)) - math.log1p(self.regret(DEFAULT))
        return ratio + NOISE * float(self._rng.standard_normal())
