"""What a job remembers of an earlier one: that one is tuned first, and hands over its log."""

from __future__ import annotations

from functools import cache

import numpy as np
from job import Job, Memory
from kinds import Earlier
from policies import ours
from surfaces import Surface, all_surfaces, relative

RUNS = 3
"""Earlier jobs of each kind; later jobs remember them in turns."""


def remembered(earlier: Earlier, seed: int, cv: float) -> Memory:
    """Return what is left of an earlier job."""
    return _tuned(earlier, seed % RUNS, cv)


def surface_of(earlier: Earlier) -> Surface:
    """Return the surface of an earlier job."""
    if earlier.hosts is None and earlier.bandwidth == 1:
        return all_surfaces()[earlier.surface]
    return relative(earlier.surface, hosts=earlier.hosts, bandwidth=earlier.bandwidth)


@cache
def _tuned(earlier: Earlier, seed: int, cv: float) -> Memory:
    job = Job(surface=surface_of(earlier), rng=np.random.default_rng([20261129, seed]), cv=cv)
    driver = ours.Driver(job, seed)
    ending = driver.run()
    return Memory(trials=tuple(driver.trials), best=ending.params)
