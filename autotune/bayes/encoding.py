"""The search space: every setting that may be proposed, as a point of the unit cube.

Each parameter gets a short list of values, so the whole space is a finite grid of some thousand
settings and the acquisition is maximised by looking at all of them. Values that a job cannot tell
apart (``Parameter.saturates_at``: cache capacities at or above the number of tensors of a step,
fusion thresholds at or above its bytes) share one coordinate and stand in the grid once.

"Off" (threshold 0) is a point of its own below the logarithmic range: with a threshold smaller than
every tensor nothing is fused either, so it continues the range.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.space import Parameter, Value
from autotune.trial import Setting

FloatArray = NDArray[np.float64]

OFF_GAP = 0.1
"""Distance in the unit interval between "off" and the low end of a logarithmic range."""
ZERO_APART = 0.02
"""Distance between a 0 that is like another value (``Parameter.zero_means``) and that value."""
STEPS_PER_OCTAVE = 1
STEPS_PER_DECADE = 5
"""Finer grids only add near-duplicates: neighbours differ by less than readings can tell."""
LINEAR_VALUES = 21
"""Of a linear range, or all whole numbers where there are so few."""
KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One free parameter: the values that may be proposed and where they lie in [0, 1].

    Attributes:
        parameter: Row of the parameter table.
        values: Values that may be proposed, in ascending order; the default is one of them.
        saturation: Values at or above this one behave alike; None: no such value.
    """

    parameter: Parameter
    values: tuple[Value, ...]
    saturation: float | None = None

    def coordinate(self, value: Value) -> float:
        """Return the place of ``value`` (any valid value, in the parameter's unit) in [0, 1]."""
        if self.parameter.scale == "bool":
            return float(value)
        number = float(value)
        if self.parameter.scale == "listed":
            listed = self.parameter.listed
            place = min(range(len(listed)), key=lambda k: abs(float(listed[k]) - number))
            return place / max(1, len(listed) - 1)
        if self.parameter.zero_is_special and number <= 0:
            like = self.parameter.zero_means
            return 0.0 if like is None else max(0.0, self._log_coordinate(like) - ZERO_APART)
        if self.parameter.scale == "choice":
            return 1.0 if self.saturation is None or number >= self.saturation else 0.5
        if self.parameter.scale == "linear":
            low, high = self.parameter.search_low, self.parameter.search_high
            return (min(max(number, low), high) - low) / (high - low)
        return self._log_coordinate(number)

    def _log_coordinate(self, number: float) -> float:
        low = self.parameter.search_low
        high = self.parameter.search_high
        if self.saturation is not None:
            high = min(high, max(low, self.saturation))
        is_below = self.parameter.zero_is_special and self.parameter.zero_means is None
        gap = OFF_GAP if is_below else 0.0
        if high <= low:
            return 1.0
        clipped = min(max(number, low), high)
        return gap + (1 - gap) * math.log(clipped / low) / math.log(high / low)


def log2_grid(low: float, high: float) -> list[int]:
    """Return whole KiB in steps of an octave from ``low`` to ``high`` bytes, ends included."""
    count = round(math.log2(high / low) * STEPS_PER_OCTAVE)
    return [round(low / KIB * 2 ** (k / STEPS_PER_OCTAVE)) * KIB for k in range(count + 1)]


def log10_grid(low: float, high: float) -> list[float]:
    """Return five values a decade from ``low`` to ``high``, rounded to two significant digits."""
    count = round(math.log10(high / low) * STEPS_PER_DECADE)
    return [float(f"{low * 10 ** (k / STEPS_PER_DECADE):.2g}") for k in range(count + 1)]


def next_power_of_two(count: int) -> int:
    """Return the smallest power of two at or above ``count`` (at least 1)."""
    return 1 << max(0, count - 1).bit_length()


def linear_grid(low: float, high: float, *, whole: bool) -> list[Value]:
    """Return evenly spaced values from ``low`` to ``high``: all whole numbers, or some of them."""
    if whole and high - low < LINEAR_VALUES:
        return list(range(math.ceil(low), math.floor(high) + 1))
    values = np.linspace(low, high, LINEAR_VALUES)
    return [round(value) if whole else float(value) for value in values]


def _grid(parameter: Parameter, *, count: int) -> list[Value]:
    zero: list[Value] = [0] if parameter.zero_is_special else []
    if parameter.scale == "bool":
        return [False, True]
    if parameter.scale == "listed":
        return list(parameter.listed)
    if parameter.scale == "choice":
        return [*zero, *([next_power_of_two(count)] if count else [])]
    if parameter.scale == "linear":
        whole = parameter.type is int
        return linear_grid(parameter.search_low, parameter.search_high, whole=whole)
    if parameter.scale == "log2":
        return [*zero, *log2_grid(parameter.search_low, parameter.search_high)]
    return [*zero, *log10_grid(parameter.search_low, parameter.search_high)]


def dimension(parameter: Parameter, *, default: Value, tensors: int, payload: int) -> Dimension:
    """Return the dimension of ``parameter`` in a job with these steps.

    Args:
        parameter: Row of the parameter table.
        default: Value that is certain to be in the grid; of values that behave alike it stays.
        tensors: Collectives in one training step; 0: unknown.
        payload: Bytes of one training step; 0: unknown.
    """
    count = {"tensors": tensors, "payload": payload, None: 0}[parameter.saturates_at]
    empty = Dimension(parameter=parameter, values=(), saturation=count or None)
    by_coordinate: dict[float, Value] = {}
    for value in [default, *_grid(parameter, count=count)]:
        by_coordinate.setdefault(round(empty.coordinate(value), 9), value)
    values = tuple(by_coordinate[key] for key in sorted(by_coordinate))
    return Dimension(parameter=parameter, values=values, saturation=empty.saturation)


class SearchSpace:
    """All settings that may be proposed in one job.

    Attributes:
        default: The setting of trial 0; the parameters that are not free keep its values.
        dimensions: The free parameters (those with at least two different values).
        candidates: ``(m, d)`` every setting of the grid, in the unit cube.
    """

    def __init__(
        self,
        default: Setting,
        *,
        frozen: Collection[str] = (),
        tensors: int = 0,
        payload: int = 0,
        parameters: Sequence[Parameter] | None = None,
    ) -> None:
        """Build the grid.

        Args:
            default: The setting of trial 0; of another table anything frozen and hashable that has
                ``as_dict`` and ``with_values``.
            frozen: Names of parameters that stay as in ``default`` (set explicitly, or inert).
            tensors: Collectives in one training step; 0: unknown.
            payload: Bytes of one training step; 0: unknown.
            parameters: Those that may be explored; None: all of the setting's table.
        """
        self.default = default
        values = default.as_dict()
        every = (
            dimension(p, default=values[p.name], tensors=tensors, payload=payload)
            for p in (default.table.parameters if parameters is None else parameters)
            if p.name not in frozen
        )
        self.dimensions = tuple(entry for entry in every if len(entry.values) > 1)
        axes = [[d.coordinate(value) for value in d.values] for d in self.dimensions]
        rows = list(itertools.product(*axes))
        self.candidates: FloatArray = np.array(rows, dtype=np.float64).reshape(len(rows), len(axes))

    @property
    def size(self) -> int:
        """Number of different settings; 1 means that there is nothing to tune."""
        return math.prod(len(entry.values) for entry in self.dimensions)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the free parameters."""
        return tuple(entry.parameter.name for entry in self.dimensions)

    def encode(self, params: Setting) -> FloatArray:
        """Return ``params`` as a point ``(d,)`` of the unit cube."""
        values = params.as_dict()
        return np.array([d.coordinate(values[d.parameter.name]) for d in self.dimensions])

    def decode(self, index: int) -> Setting:
        """Return the setting of row ``index`` of ``candidates``."""
        shape = tuple(len(entry.values) for entry in self.dimensions)
        position = np.unravel_index(index, shape) if shape else ()
        chosen = {
            entry.parameter.name: entry.values[int(k)]
            for entry, k in zip(self.dimensions, position, strict=True)
        }
        return self.default.with_values(chosen)

    def untried(self, tried: Sequence[Setting]) -> NDArray[np.intp]:
        """Return the rows of ``candidates`` that behave like none of ``tried``."""
        free = np.ones(len(self.candidates), dtype=bool)
        for params in tried:
            free &= np.abs(self.candidates - self.encode(params)).max(axis=1, initial=0.0) > 1e-9
        return np.flatnonzero(free)
