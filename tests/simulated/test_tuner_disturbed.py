"""Steps that the driver itself disturbed: counted, never read."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.tuning.steps.records import TunerSettings
from autotune.tuning.tuner import Phase, Tuner


@pytest.mark.parametrize("warmup_samples", [None, 0, 1])
def test_steps_disturbed_from_the_start_say_nothing_of_the_default(job, warmup_samples):
    """Three times as slow while the driver imports: what is read afterwards is right."""
    run = job("flat", seed=1, noise=0.0)
    settings = TunerSettings(seed=1, warmup_samples=warmup_samples)
    tuner = Tuner(settings=settings, seed=1, size=2)
    observe, is_disturbed = tuner.observe, True

    def observed(records):
        if not is_disturbed:
            return observe(records)
        slow = [dataclasses.replace(one, duration_us=3 * one.duration_us) for one in records]
        return observe(slow, disturbed=True)

    tuner.observe = observed
    run.drive(tuner, most_steps=200)
    assert tuner.phase is not Phase.DONE and not run.trials and not run.samples
    is_disturbed = False
    run.drive(tuner)
    default_us = 1000 * run.step_ms(run.params)
    first = run.samples[0]
    assert first.duration_us / first.steps == pytest.approx(default_us)
