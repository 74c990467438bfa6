"""Jobs of DistributedDataParallel, where changes cost steps, stay within their budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from autotune.space import MIB
from autotune.tables.ddp import DEFAULT_BUCKET_CAP_BYTES, DdpParams
from autotune.tuning.changes import Done
from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.tuner import Tuner
from simulated.job import Job

AFTER_CHANGE = (1.36, 1.08)
"""Step times after a change over those that follow, as measured on a model of 102 MB."""
BUDGET = 0.05


def best_at(mib: float, *, depth: float) -> Any:
    """Time in ms that a step waits: 30 at best, more by ``depth`` per octave squared."""

    def waiting(params: DdpParams) -> float:
        cap = params.bucket_cap_bytes or DEFAULT_BUCKET_CAP_BYTES
        x = math.log2(cap / MIB) - math.log2(mib)
        return 30 * (1 + depth * x * x)

    return waiting


@dataclass
class DdpJob(Job):
    """A job that loses time after each change, as the true step times say."""

    params: DdpParams = field(default_factory=DdpParams)
    lost_ms: float = 0.0
    true_ms: float = 0.0
    changes: list[int] = field(default_factory=list)

    def step(self) -> StepRecord:
        if not self.changes or self.changes[-1] != self.epoch:
            self.changes += [self.epoch]
            self.since = 0 if self.epoch else len(AFTER_CHANGE)
        factor = AFTER_CHANGE[self.since] if self.since < len(AFTER_CHANGE) else 1.0
        self.since += 1
        record = super().step()
        default = self.step_ms(DdpParams())
        self.true_ms += default
        self.lost_ms += factor * self.step_ms(self.params) - default
        time_us, exposed_us = factor * record.duration_us, record.exposed_us
        return StepRecord(
            **{
                **record.__dict__,
                "duration_us": time_us,
                "exposed_us": exposed_us + time_us - record.duration_us,
            }
        )


def lost_share(surface: Any, steps: int, seed: int, noise: float) -> float:
    job = DdpJob(surface=surface, seed=seed, noise=noise, latency_steps=1)
    settings = TunerSettings(seed=seed, budget=BUDGET)
    tuner = Tuner(settings=settings, seed=seed, size=2, hosts=2, baseline=DdpParams())
    while job.steps < steps:
        job.drive(tuner, most_steps=steps)
        if job.of(Done):
            job.advance(tuner)
    return job.lost_ms / job.true_ms


SURFACES = {
    "default_is_best": best_at(25, depth=0.05),
    "nothing_matters": best_at(25, depth=0.0),
    "small_is_terrible": best_at(64, depth=0.2),
}


@pytest.mark.parametrize("noise", [0.05, 0.15])
@pytest.mark.parametrize("steps", [185, 291])
@pytest.mark.parametrize("surface", SURFACES)
def test_a_job_that_ends_early_has_lost_no_more_than_its_budget(
    surface: str, steps: int, noise: float
) -> None:
    lost = [lost_share(SURFACES[surface], steps, seed, noise) for seed in range(3)]
    shown = [f"{100 * one:.1f}" for one in lost]
    assert max(lost) <= BUDGET, shown
