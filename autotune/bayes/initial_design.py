"""The first proposals: a few points that fill the space, before there is anything to model."""

from __future__ import annotations

import numpy as np

from autotune.bayes.encoding import FloatArray

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
MARGIN = 0.15
"""The outermost settings (100 ms cycles, no fusion) are the dearest to try and rarely the best."""


def radical_inverse(index: int, base: int) -> float:
    """Return the van der Corput radical inverse: the digits of ``index`` mirrored at the point.

    Source: Halton (1960), On the efficiency of certain quasi-random sequences of points, section 2.
    """
    result, fraction = 0.0, 1.0 / base
    while index:
        index, digit = divmod(index, base)
        result += digit * fraction
        fraction /= base
    return result


def halton(count: int, d: int, *, shift: FloatArray) -> FloatArray:
    """Return ``(count, d)`` points of the Halton sequence, shifted modulo 1.

    Args:
        count: Number of points.
        d: Dimensions, at most 8.
        shift: ``(d,)`` in [0, 1): a random rotation keeps the points spread and differs by seed.

    Source: Cranley and Patterson (1976), Randomization of number theoretic methods for multiple
    integration, for the rotation.
    """
    rows = [[radical_inverse(k, PRIMES[j]) for j in range(d)] for k in range(1, count + 1)]
    return (np.array(rows).reshape(count, d) + shift) % 1.0


def initial_design(candidates: FloatArray, count: int, *, rng: np.random.Generator) -> list[int]:
    """Return the rows of ``candidates`` nearest to ``count`` spread points, without repetition.

    Args:
        candidates: ``(m, d)`` in the unit cube.
        count: Number of points wanted; fewer come back where the grid is small.
        rng: Decides the rotation of the sequence.
    """
    d = candidates.shape[1]
    points = MARGIN + (1 - 2 * MARGIN) * halton(count, d, shift=rng.random(size=(d,)))
    chosen: list[int] = []
    for point in points:
        order = np.argsort(np.square(candidates - point).sum(axis=1), kind="stable")
        row = next((int(k) for k in order[: count + 1] if int(k) not in chosen), None)
        if row is not None:
            chosen.append(row)
    return chosen
