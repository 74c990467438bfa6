"""The peers of the bench are what their publications say."""

from __future__ import annotations

import numpy as np
import pytest
from job import Job
from policies.bayes import random_search
from policies.horovod import FIRST_POINTS, HIGH, LOW, Block, run
from surfaces import SIMULATED, Surface, Truth

from autotune.trial import CommParams


def flat_job(seed: int) -> Job:
    """A job of 100 us a step under every setting."""
    surface = Surface(
        name="flat",
        source=SIMULATED,
        operations=(("allreduce", 1000),),
        size=4,
        hosts=2,
        truth_of=lambda params: Truth(step_us=100.0, exposed_us=50.0),
        grid=lambda: [CommParams()],
    )
    return Job(surface=surface, rng=np.random.default_rng(seed))


def test_horovods_block_begins_with_its_fixed_points_and_stays_in_its_box() -> None:
    block = Block(np.random.default_rng(3))
    asked = []
    while not block.is_over:
        x = block.ask()
        asked.append(x)
        block.tell(x, 100 - abs(x[0] - 20) - 0.1 * x[1])
    assert [tuple(x) for x in asked[:4]] == list(FIRST_POINTS)
    assert len(asked) == 21
    assert all((x >= LOW).all() and (x <= HIGH).all() for x in asked)


def test_horovods_block_finds_a_clear_optimum() -> None:
    block = Block(np.random.default_rng(3))
    best = 0.0
    while not block.is_over:
        x = block.ask()
        score = 100 - 3 * abs(x[0] - 40) - abs(x[1] - 30)
        best = max(best, score)
        block.tell(x, score)
    assert best > 90


def test_horovods_policy_takes_its_published_trials_and_steps_and_claims_its_luck() -> None:
    job = flat_job(1)
    ending = run(job, np.random.default_rng(1))
    assert (ending.trials, job.steps) == (84, 4437)
    assert ending.best_score is not None
    assert ending.best_score / 10.0 - 1 == pytest.approx(0.035, abs=0.025)


def test_the_luckiest_of_twenty_readings_claims_a_gain_where_there_is_none() -> None:
    endings = [random_search(flat_job(seed), np.random.default_rng(seed)) for seed in range(20)]
    claims = [ending.best_score / 10.0 - 1 for ending in endings if ending.best_score]
    assert len(claims) == 20
    assert 0.02 < np.mean(claims) < 0.08
