"""Horovod's published tuning policy, written from its description (0.28.1); no code of it.

Facts used: booleans as an odometer, for each combination a fresh search over (threshold, cycle)
with four fixed first points and 21 evaluations; a sample is 5 scores of 10 steps each, in 51 steps,
of which the median counts; 3 samples of warm-up at 4 MiB and 5 ms; a Gaussian process on raw MiB
and ms with one length scale, noise 0.8^2 on standardised scores, refitted at each proposal from
(1, 1); expected improvement with xi 0.01 over the best posterior mean; the highest single reading
of all wins. The default is never read. On CPUs (MPI) hierarchical allreduce stays off; other
booleans are explored even where a job cannot use them.
The 25 restarts of the acquisition's maximisation are replaced by looking at 2,000 random points
and polishing the best one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from job import Job
from scipy.optimize import minimize
from scipy.special import ndtr
from surfaces import FloatArray

from autotune.trial import CommParams
from policies.ending import Ending

MIB = 2**20
FIRST_POINTS = ((4.0, 5.0), (32.0, 50.0), (16.0, 25.0), (8.0, 10.0))
"""(MiB, ms)"""
LOW, HIGH = np.array([0.0, 1.0]), np.array([64.0, 100.0])
EVALUATIONS = 21
WARMUP_SAMPLES = 3
STEPS, SCORES = 10, 5
NOISE = 0.8
XI = 0.01
CANDIDATES = 2000


def blocks(*, gpu: bool) -> Iterator[tuple[bool, bool, bool]]:
    """Yield (hierarchical allreduce, hierarchical allgather, cache) in the order of exploration."""
    both = (False, True)
    for cache, gather, reduce in itertools.product(both, both, both if gpu else (False,)):
        yield reduce, gather, cache


def params_of(x: FloatArray, block: tuple[bool, bool, bool]) -> CommParams:
    """Return the setting that a point (MiB, ms) means in a block."""
    reduce, gather, cache = block
    return CommParams(
        fusion_threshold_bytes=int(float(x[0]) * MIB),
        cycle_time_ms=float(x[1]),
        cache_capacity=1024 if cache else 0,
        hierarchical_allreduce=reduce,
        hierarchical_allgather=gather,
    )


def sample_score(step_us: FloatArray, payload_bytes: int) -> float:
    """Return the score (bytes/us) of the 51 step times of one sample."""
    windows = step_us[: STEPS * SCORES].reshape(SCORES, STEPS).sum(axis=1)
    return float(np.median(payload_bytes * STEPS / windows))


class Block:
    """One search over (threshold, cycle)."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._x: list[FloatArray] = []
        self._scores: list[float] = []

    @property
    def is_over(self) -> bool:
        return len(self._x) >= EVALUATIONS

    def ask(self) -> FloatArray:
        """Return the next point (MiB, ms)."""
        count = len(self._x)
        return np.array(FIRST_POINTS[count]) if count < len(FIRST_POINTS) else self._propose()

    def tell(self, x: FloatArray, score: float) -> None:
        self._x.append(x)
        self._scores.append(score)

    def _propose(self) -> FloatArray:
        X, y = np.array(self._x), np.array(self._scores)
        y = (y - y.mean()) / (y.std() or 1.0)
        length, signal = _fit(X, y)
        inverse = np.linalg.inv(_kernel(X, X, length, signal) + NOISE**2 * np.eye(len(X)))
        weights = inverse @ y
        best = float((_kernel(X, X, length, signal) @ weights).max())

        def improvement(points: FloatArray) -> FloatArray:
            cross = _kernel(points, X, length, signal)
            mean = cross @ weights
            variance = signal**2 + 1e-8 - np.einsum("ij,jk,ik->i", cross, inverse, cross)
            std = np.sqrt(np.maximum(variance, 1e-12))
            z = (mean - best - XI) / std
            result: FloatArray = (mean - best - XI) * ndtr(z) + std * np.exp(-z * z / 2) / np.sqrt(
                2 * np.pi
            )
            return result

        points = self._rng.uniform(LOW, HIGH, (CANDIDATES, 2))
        start = points[int(np.argmax(improvement(points)))]
        found = minimize(
            lambda x: -float(improvement(x[None, :])[0]),
            start,
            method="L-BFGS-B",
            bounds=list(zip(LOW, HIGH, strict=True)),
            options={"maxiter": 20},
        )
        return np.clip(np.asarray(found.x, dtype=float), LOW, HIGH)


def _kernel(a: FloatArray, b: FloatArray, length: float, signal: float) -> FloatArray:
    square = np.square(a[:, None, :] - b[None, :, :]).sum(axis=2)
    result: FloatArray = signal**2 * np.exp(-0.5 * square / length**2)
    return result


def _fit(X: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Return (length scale, signal deviation) by maximum likelihood from (1, 1)."""

    def negative(theta: FloatArray) -> float:
        length, signal = float(theta[0]), float(theta[1])
        if abs(length) < 1e-3:
            return 1e10
        K = _kernel(X, X, length, signal) + NOISE**2 * np.eye(len(X))
        L = np.linalg.cholesky(K)
        half = np.linalg.solve(L, y)
        return float(np.log(np.diag(L)).sum() + 0.5 * half @ half)

    found = minimize(negative, np.array([1.0, 1.0]), method="L-BFGS-B", options={"maxiter": 100})
    length, signal = (abs(float(value)) for value in found.x)
    return (length, signal) if np.isfinite(found.fun) and length > 1e-3 else (1.0, 1.0)


def run(job: Job, rng: np.random.Generator) -> Ending:
    """Tune ``job`` to the end."""
    best, best_score, trials = job.params, 0.0, 0
    first = params_of(np.array(FIRST_POINTS[0]), (False, False, False))
    job.put(first)
    job.recommend(first)
    job.run(WARMUP_SAMPLES * (STEPS * SCORES + 1))
    for flags in blocks(gpu=job.surface.gpu):
        search = Block(rng)
        while not search.is_over:
            x = search.ask()
            params = params_of(x, flags)
            job.put(params)
            score = sample_score(job.run(STEPS * SCORES + 1), job.payload_bytes)
            search.tell(x, score)
            trials += 1
            if score > best_score:
                best, best_score = params, score
            job.recommend(params)  # a job that ends early keeps the last explored values
    job.put(best)
    job.recommend(best)
    return Ending(params=best, trials=trials, best_score=best_score)
