"""The trend: what is expected of every setting before it is read, from a few of them.

Asking takes long (physics of a whole training step), and the grid has some thousand
settings. Along the long dimensions it is evaluated at some of the values and interpolated between
them; where it has fewer values, at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from autotune.bayes.encoding import Dimension, FloatArray, SearchSpace
from autotune.trial import Setting

Trend = Callable[[Setting], FloatArray]
"""What to expect of a setting: log scores ``(p,)``, up to a constant, of ``p`` rival models."""

FEW = 4
"""Dimensions with so many values, or fewer, are evaluated at each of them."""
MOST_KNOTS = 6
"""Values of a longer dimension at which the trend is evaluated."""


def knots(dimension: Dimension, default: float) -> FloatArray:
    """Return the coordinates at which a trend is evaluated, ascending.

    Among them are the ends, what follows "off", and the ``default``'s.
    """
    places = np.array([dimension.coordinate(value) for value in dimension.values])
    if len(places) <= FEW:
        return places
    kept = np.round(np.linspace(0, len(places) - 1, min(MOST_KNOTS - 1, len(places)))).astype(int)
    rows = {*kept.tolist(), int(np.argmin(np.abs(places - default)))}
    if dimension.parameter.zero_is_special:
        rows.add(1)
    return places[sorted(rows)]


class InterpolatedTrend:
    """A trend's expectation of any setting, interpolated linearly in the unit cube.

    Attributes:
        best: ``(p,)`` the highest expectation.
        of_candidates: ``(m, p)`` the expectations of the space's candidates.
        evaluations: How often the trend was asked.
    """

    def __init__(self, space: SearchSpace, trend: Trend) -> None:
        """Evaluate the trend; columns with a value that is not finite are left out."""
        default = space.encode(space.default)
        self._knots = [knots(d, float(x)) for d, x in zip(space.dimensions, default, strict=True)]
        rows = [
            trend(space.default.with_values(values)) for values in self._settings_at_knots(space)
        ]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), -1)
        table = table[:, np.isfinite(table).all(axis=0)]
        self.evaluations = len(rows)
        self.best: FloatArray = table.max(axis=0)
        self._table = table.reshape(*[len(places) for places in self._knots], table.shape[1])
        self.of_candidates = self(space.candidates)

    def _settings_at_knots(self, space: SearchSpace) -> Sequence[dict[str, int | float | bool]]:
        choices = []
        for dimension, places in zip(space.dimensions, self._knots, strict=True):
            chosen = [v for v in dimension.values if dimension.coordinate(v) in places]
            choices.append([(dimension.parameter.name, value) for value in chosen])
        return [dict(one) for one in itertools.product(*choices)]

    def __call__(self, points: FloatArray) -> FloatArray:
        """Return what is expected ``(k, p)`` at ``points (k, d)`` of the unit cube."""
        result = np.zeros((len(points), self._table.shape[-1]))
        lows, shares, sides = [], [], []
        for places, x in zip(self._knots, points.T, strict=True):
            low = np.clip(np.searchsorted(places, x, side="right") - 1, 0, len(places) - 2)
            share = np.clip((x - places[low]) / (places[low + 1] - places[low]), 0.0, 1.0)
            at_knot = np.all((share == 0) | (share == 1))
            lows.append(low + (share == 1) if at_knot else low)
            shares.append(np.zeros(len(x)) if at_knot else share)
            sides.append((0,) if at_knot else (0, 1))
        for corner in itertools.product(*sides):
            weight = np.ones(len(points))
            for share, up in zip(shares, corner, strict=True):
                weight = weight * (share if up else 1 - share)
            where = tuple(low + up for low, up in zip(lows, corner, strict=True))
            result += weight[:, None] * self._table[where]
        return result
