"""Random kills and joins of elastic jobs: no hang, nothing left behind, the loss curve is right.

CHAOS_EVENTS: how many (10), half of them on one host and half on two; CHAOS_SEED: of the first job.
"""

from __future__ import annotations

import os

import pytest

from chaos.elastic import Outcome, run

EVENTS = int(os.environ.get("CHAOS_EVENTS", "10"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
EVENTS_A_JOB = 20


@pytest.mark.timeout(0)
def test_elastic_jobs_get_on_after_every_kill_and_join() -> None:
    outcomes: list[Outcome] = []
    jobs = max(2, -(-EVENTS // EVENTS_A_JOB))
    for number in range(jobs):
        count = EVENTS // jobs + (number < EVENTS % jobs)
        outcomes.append(run(SEED + number, count))
        print(outcomes[-1].describe(), flush=True)
        if outcomes[-1].wrong:
            print(outcomes[-1].output[-6000:], flush=True)
    assert not [each.describe() for each in outcomes if each.wrong]
