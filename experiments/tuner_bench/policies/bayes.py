"""Random search, plain ``skopt.gp_minimize``, and BO with 15 points: the luckiest reading wins."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from job import Job

from autotune.trial import CommParams
from policies.ending import Ending

KIB, MIB = 1024, 2**20
WARMUP_STEPS = 30
SETTLE_STEPS = 2
STEPS = 10
"""Steps of one reading."""
BO15_STEPS = 105
"""15 readings in about 1,600 steps."""


class Luckiest:
    """Reads settings and remembers the best reading."""

    def __init__(self, job: Job, steps: int) -> None:
        self.job, self.steps = job, steps
        self.trials, self.score = 0, 0.0
        self.params = job.params

    def read(self, params: CommParams) -> float:
        """Return the score of ``params`` in bytes/us."""
        self.job.put(params)
        self.job.run(SETTLE_STEPS)
        score = self.job.payload_bytes * self.steps / float(self.job.run(self.steps).sum())
        self.trials += 1
        if score > self.score:
            self.score, self.params = score, params
            self.job.recommend(params)
        return score

    def end(self) -> Ending:
        self.job.put(self.params)
        return Ending(params=self.params, trials=self.trials, best_score=self.score)


def _params(x: Sequence[Any], hosts: int) -> CommParams:
    """A point (log2 threshold, log10 cycle, booleans) as a setting."""
    booleans = [bool(value) for value in x[2:]]
    return CommParams(
        fusion_threshold_bytes=int(2 ** float(x[0])),
        cycle_time_ms=float(10 ** float(x[1])),
        cache_capacity=1024 if booleans[0] else 0,
        hierarchical_allreduce=hosts > 1 and booleans[1],
        hierarchical_allgather=hosts > 1 and booleans[2],
    )


LOW, HIGH = (16.0, -1.0), (29.0, 2.0)
"""64 KiB - 512 MiB, 0.1 - 100 ms: the search domain of ours."""


def random_search(job: Job, rng: np.random.Generator) -> Ending:
    """20 settings, uniform in the logarithms."""
    job.run(WARMUP_STEPS)
    search = Luckiest(job, STEPS)
    for _ in range(20):
        x = [*rng.uniform(LOW, HIGH), *rng.integers(0, 2, 3)]
        search.read(_params(x, job.surface.hosts))
    return search.end()


def gp_minimize(job: Job, rng: np.random.Generator) -> Ending:
    """``skopt.gp_minimize`` as it comes: 10 random points, 20 in all."""
    import skopt

    job.run(WARMUP_STEPS)
    search = Luckiest(job, STEPS)
    booleans = 3 if job.surface.hosts > 1 else 1

    def step_ms(x: list[Any]) -> float:
        full = [*x, 0, 0][:5]
        return job.payload_bytes / search.read(_params(full, job.surface.hosts)) / 1000

    space = [*zip(LOW, HIGH, strict=True), *[skopt.space.Integer(0, 1)] * booleans]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        skopt.gp_minimize(
            step_ms, space, n_calls=20, n_initial_points=10, random_state=int(rng.integers(2**31))
        )
    return search.end()


def bo15(job: Job, rng: np.random.Generator) -> Ending:
    """10 random and 5 proposed points over the two continuous parameters, 105 steps each."""
    import skopt

    job.run(WARMUP_STEPS)
    search = Luckiest(job, BO15_STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = skopt.Optimizer(
            list(zip(LOW, HIGH, strict=True)),
            n_initial_points=10,
            acq_func="EI",
            random_state=int(rng.integers(2**31)),
        )
        for _ in range(15):
            x = optimizer.ask()
            score = search.read(_params([*x, 1, 0, 0], job.surface.hosts))
            optimizer.tell(x, job.payload_bytes / score / 1000)
    return search.end()
