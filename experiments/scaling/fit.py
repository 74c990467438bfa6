"""The model T = S + G / P + C(W), fitted to medians.

Notation:
    W  ranks;  P = min(W, cores), the ranks that compute at the same time
    B  images in the global batch;  L  factor of the number of blocks
    S = s L      ms of a step that no batch shrinks (calls of Python and of kernels)
    G = g L B    ms of computation, divided among the ranks that compute
    C(W)         ms of communication; c L in a network of L times the blocks, C(1) = 0

Ranks that share a core compute one after the other: S counts W / P times. Least squares for s, g
and c(2), c(4), ... in  T = s L W/P + g L B/P + c(W) L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Point:
    """The median time in ms of one workload on ``ranks`` ranks."""

    ranks: int
    depth: int
    batch: int
    step_ms: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The constants of the model, in ms.

    Attributes:
        fixed_ms: s.
        image_ms: g.
        communication_ms: {W: c(W)}.
        r_squared: Share of the variance that the model explains.
        largest_error: Largest relative deviation of a point from the model.
    """

    fixed_ms: float
    image_ms: float
    communication_ms: dict[int, float]
    cores: int
    r_squared: float
    largest_error: float

    def predict(self, ranks: int, depth: int, batch: int) -> float:
        """Return the model's time in ms."""
        at_once = min(ranks, self.cores)
        computing = self.fixed_ms * ranks / at_once + self.image_ms * batch / at_once
        return depth * (computing + self.communication_ms.get(ranks, 0.0))


def fit(points: Sequence[Point], cores: int) -> Fit:
    """Return the least-squares fit; relative errors count, so that small steps matter, too."""
    sizes = sorted({point.ranks for point in points if point.ranks > 1})
    times = np.array([point.step_ms for point in points])
    rows = np.array([_row(point, sizes, cores) for point in points])
    solution, *_ = np.linalg.lstsq(rows / times[:, None], np.ones(len(points)), rcond=None)
    predicted = rows @ solution
    residual, total = (times - predicted), times - times.mean()
    return Fit(
        fixed_ms=float(solution[0]),
        image_ms=float(solution[1]),
        communication_ms=dict(zip(sizes, map(float, solution[2:]), strict=True)),
        cores=cores,
        r_squared=float(1 - residual @ residual / (total @ total)),
        largest_error=float(np.abs(residual / times).max()),
    )


def _row(point: Point, sizes: Sequence[int], cores: int) -> list[float]:
    at_once = min(point.ranks, cores)
    computing = [point.ranks / at_once, point.batch / at_once]
    communication = [float(point.ranks == size) for size in sizes]
    return [point.depth * value for value in (*computing, *communication)]
