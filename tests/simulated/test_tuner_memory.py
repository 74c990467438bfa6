"""The tuner in a job that resembles an earlier one."""

from __future__ import annotations

import pytest

from autotune.storage.contract import Fresh, Remembered
from autotune.trial import CommParams, Gain, Trial
from autotune.tuning.steps.records import TunerSettings
from autotune.tuning.tuner import Tuner
from simulated.job import INERT

BEST = CommParams(fusion_threshold_bytes=2**20, cycle_time_ms=0.5)


def remembered(params: CommParams, gain: float) -> Fresh:
    """Return what an earlier job left that ended with ``params``."""
    trials = (
        Trial(trial_id=0, params=CommParams(), score=300.0),
        Trial(
            trial_id=1,
            params=params,
            score=300.0 * (1 + gain),
            gain=Gain(estimate=gain, low=gain - 0.02, high=gain + 0.02),
        ),
    )
    memory = Remembered(
        path="old.db", run_id=1, similarity=0.9, why="4 ranks there", trials=trials, best=params
    )
    return Fresh(memory=(memory,))


@pytest.mark.parametrize("oversubscribed", [False, True])
@pytest.mark.parametrize("gain", [0.3, -0.3], ids=["right", "misleading"])
def test_what_is_remembered_is_tried_first_and_once(job, gain, oversubscribed):
    run = job("bowl", seed=1)
    best = BEST if gain > 0 else CommParams(fusion_threshold_bytes=0)
    tuner = Tuner(
        settings=TunerSettings(seed=1, max_samples=9),
        seed=1,
        size=2,
        inert=INERT,
        oversubscribed=oversubscribed,
    )
    run.drive(tuner, remembered(best, 0.3))
    settings = [trial.params for trial in run.trials]
    assert settings[1] == best
    assert len(settings) == len(set(settings))
