"""What a job remembers of an earlier one: that one is tuned first, and hands over its log."""

from __future__ import annotations

from functools import cache

import numpy as np
from job import Job
from kinds import Earlier
from policies import ours
from surfaces import Surface, all_surfaces, relative

from autotune.storage.contract import Remembered
from autotune.storage.memory import compare
from autotune.storage.standing import latest
from autotune.trial import CommParams, Fingerprint

RUNS = 3
"""Earlier jobs of each kind; later jobs remember them in turns."""
TAKEN_FOR_SIMILAR = 0.8, "similar tensors"
"""What is said of jobs that do not resemble each other, to mislead."""


def remembered(surface: Surface, earlier: Earlier, *, seed: int, cv: float) -> Remembered:
    """Return what is left of an earlier job for one on ``surface``."""
    there = surface_of(earlier)
    driver = _tuned(earlier, seed % RUNS, cv)
    similarity, why = compare(_fingerprint(surface), _fingerprint(there))
    if similarity == 0:
        similarity, why = TAKEN_FOR_SIMILAR
    best = next((trial for trial in driver.trials if trial.params == driver.kept), None)
    default = there.truth(CommParams())
    return Remembered(
        path="earlier.db",
        run_id=1,
        similarity=similarity,
        why=why,
        trials=latest(driver.trials, best, driver.certificate),
        best=driver.kept,
        certificate=driver.certificate,
        step_us=default.step_us,
        exposed_share=default.exposed_us / default.step_us,
    )


def surface_of(earlier: Earlier) -> Surface:
    """Return the surface of an earlier job."""
    if earlier.hosts is None and earlier.bandwidth == 1:
        return all_surfaces()[earlier.surface]
    return relative(earlier.surface, hosts=earlier.hosts, bandwidth=earlier.bandwidth)


def _fingerprint(surface: Surface) -> dict[str, object]:
    return Fingerprint(
        tensors=tuple(sorted(surface.operations)),
        size=surface.size,
        local_size=surface.size // surface.hosts,
        cross_size=surface.hosts,
        versions={},
        fixed={},
    ).as_dict()


@cache
def _tuned(earlier: Earlier, seed: int, cv: float) -> ours.Driver:
    job = Job(surface=surface_of(earlier), rng=np.random.default_rng([20261129, seed]), cv=cv)
    driver = ours.Driver(job, seed)
    driver.run()
    return driver
