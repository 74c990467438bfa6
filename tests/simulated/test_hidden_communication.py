"""Communication that is hidden, and slows the computation that hides it, as on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from autotune.space import MIB
from autotune.tables.ddp import DdpParams
from autotune.trial import CommParams, Setting
from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.tuner import Tuner
from simulated.job import INERT, Job

PAYLOAD = 46 * 525_000
COMMUNICATION_MS = 5.0


@dataclass
class HiddenJob(Job):
    """50 ms of computation beside 5 of communication, which slows what it runs beside.

    The share of the communication that is hidden is what the buckets leave: one that holds all
    gradients hides nothing.
    """

    slows: float = 0.0
    noise: float = 0.002
    copies_ms: float = 0.0
    waits: bool = True
    params: Any = field(default_factory=CommParams)

    def hidden(self, params: Setting) -> float:
        """Return the share of the communication that is hidden."""
        if isinstance(params, DdpParams):
            size = params.bucket_cap_bytes or 4 * MIB
        else:
            assert isinstance(params, CommParams)
            size = params.fusion_threshold_bytes if params.cycle_time_ms > 20 else MIB
        return 1.0 if size < 8 * MIB else max(0.0, 1 - size / PAYLOAD)

    def waits_ms(self, params: Setting) -> float:
        return 0.1 + COMMUNICATION_MS * (1 - self.hidden(params)) * self.waits

    def step_ms(self, params: Setting) -> float:
        copies = 0.0 if getattr(params, "gradient_as_bucket_view", False) else self.copies_ms
        slowed = self.slows * COMMUNICATION_MS * self.hidden(params)
        return self.compute_ms + copies + slowed + self.waits_ms(params)

    def step(self) -> StepRecord:
        record = super().step()
        waited_us = 1000 * self.waits_ms(self.params)
        return StepRecord(**{**record.__dict__, "exposed_us": waited_us})


def tuned(operation: str, *, baseline: Setting | None = None, **options: float) -> HiddenJob:
    baseline = baseline or CommParams()
    job = HiddenJob(
        surface=lambda params: 0.0,
        operations=[(operation, 525_000)] * 46,
        params=baseline,
        **options,
    )
    inert = INERT if isinstance(baseline, CommParams) else {}
    job.drive(Tuner(settings=TunerSettings(seed=0), seed=0, size=2, inert=inert, baseline=baseline))
    assert job.done is not None
    return job


@pytest.mark.parametrize("baseline", [CommParams(), DdpParams()], ids=["engine", "ddp"])
def test_on_a_gpu_one_setting_that_hides_nothing_says_whether_there_is_anything_to_gain(baseline):
    job = tuned("cuda allreduce", baseline=baseline)
    assert len(job.trials) == 2 and job.steps < 150
    assert "nothing to gain" in job.done.text
    assert "nor does the computation go faster when none is hidden" in job.done.text
    assert job.waits_ms(job.trials[1].params) > 4
    assert job.done.params == baseline.as_dict()


def test_on_a_gpu_what_hidden_communication_takes_from_the_computation_can_be_gained():
    job = tuned("cuda allreduce", slows=1.4)
    assert job.waits_ms(CommParams()) < 0.01 * job.step_ms(CommParams())
    assert job.done.certified and job.true_gain > 0.02


def test_what_copies_take_can_be_gained():
    job = tuned("cuda allreduce", baseline=DdpParams(), copies_ms=2.0)
    assert job.done.certified and job.true_gain > 0.03


def test_a_default_that_hides_nothing_needs_no_other_setting():
    job = tuned(
        "cuda allreduce",
        baseline=DdpParams(bucket_cap_bytes=512 * MIB, gradient_as_bucket_view=True),
        waits=False,
    )
    assert len(job.trials) == 1 and "nothing to gain" in job.done.text


def test_in_host_memory_tuning_ends_after_the_default():
    job = tuned("allreduce")
    assert len(job.trials) == 1 and "nothing to gain" in job.done.text


def test_a_reading_too_noisy_to_say_so_ends_nothing():
    job = tuned("cuda allreduce", noise=0.05)
    assert len(job.trials) > 2 and not job.done.certified
