from __future__ import annotations

import numpy as np
import pytest

from autotune.bayes.encoding import SearchSpace
from autotune.space import MIB
from autotune.trial import CommParams, TrialState
from autotune.tuning.exploring.search import Search
from autotune.tuning.steps.brackets import LogRatio
from autotune.tuning.steps.records import TunerSettings

FIRST = CommParams(fusion_threshold_bytes=512 * MIB, cycle_time_ms=100.0)


@pytest.fixture
def search() -> Search:
    """Return one that knows the default."""
    made = Search(
        SearchSpace(CommParams()),
        TunerSettings(),
        rng=np.random.default_rng(0),
        proposals_per_plan=2,
    )
    made.findings.add_default(1000.0)
    return made


def proposed(search: Search) -> list[CommParams]:
    """Return the settings of a new plan, which is accepted."""
    search.request()
    work = search.work()
    assert work is not None
    plan = work()
    search.accept(plan)
    return [proposal.params for proposal in plan.proposals]


def read(search: Search, params: CommParams, gain: float = 0.01) -> None:
    search.findings.add_reading(params, LogRatio(mean=gain, variance=1e-4), preliminary=False)
    search.findings.add_trial(params, state=TrialState.COMPLETE)


def test_the_setting_to_begin_with_is_proposed_until_it_was_read(search):
    search.begin_with(FIRST)
    assert proposed(search)[0] == FIRST
    search.plan = None  # dropped before it was taken
    assert proposed(search)[0] == FIRST
    assert search.take_proposal().params == FIRST
    # While the window of the default that closes its bracket is read, the next plan is made.
    search.findings.add_reading(FIRST, LogRatio(mean=0.01, variance=1e-4), preliminary=True)
    assert FIRST not in proposed(search)


def test_a_setting_whose_results_are_wrong_is_not_begun_with(search):
    search.findings.reject(FIRST)
    search.begin_with(FIRST)
    assert FIRST not in proposed(search)


def test_a_plan_proposes_no_setting_twice(search):
    for _ in range(6):
        read(search, proposed(search)[0])
    own = proposed(search)
    assert len(own) == len(set(own)) == 2
    search.begin_with(own[0])  # as the optimizer would
    plan = proposed(search)
    assert plan[0] == own[0] and len(plan) == len(set(plan))
