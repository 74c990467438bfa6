from __future__ import annotations

import json
import math

import numpy as np
import pytest

from autotune.bayes import BayesianOptimizer, SearchSpace
from autotune.trial import CommParams

FROZEN = {"hierarchical_allreduce", "hierarchical_allgather"}


def new(seed: int = 0, **options: object) -> BayesianOptimizer:
    space = SearchSpace(CommParams(), frozen=FROZEN, tensors=161, payload=2**27)
    return BayesianOptimizer(space, rng=np.random.default_rng(seed), **options)


def truth(params: CommParams) -> float:
    x = math.log2(max(params.fusion_threshold_bytes, 2**15) / 2**20)
    c = math.log10(params.cycle_time_ms) + 0.3
    return 100 * math.exp(-0.02 * x * x - 0.15 * c * c - (0.3 if not params.cache_capacity else 0))


def run(optimizer: BayesianOptimizer, score, trials: int = 12) -> list[CommParams]:
    settings = []
    for _ in range(trials):
        optimizer.learn()
        proposal = optimizer.ask()
        if proposal is None:
            break
        settings.append(proposal.params)
        optimizer.tell(proposal.params, score(proposal.params))
    optimizer.learn()
    return settings


def noisy(seed: int):
    rng = np.random.default_rng(seed)
    return lambda params: truth(params) * math.exp(0.025 * rng.standard_normal())


def test_default_is_asked_first():
    assert new().ask().params == CommParams()


def test_asking_is_pure():
    optimizer = new()
    run(optimizer, truth, 7)
    first = optimizer.ask()
    assert optimizer.ask() == first
    assert optimizer.snapshot().ask() == first


def test_nothing_is_proposed_twice():
    settings = run(new(), noisy(0), 16)
    assert len(settings) == len(set(settings)) == 16


def test_pending_settings_are_not_proposed():
    optimizer = new()
    run(optimizer, truth, 8)
    pending = []
    for _ in range(4):
        pending.append(optimizer.ask(pending).params)
    assert len(set(pending)) == 4


def test_equal_seeds_give_equal_runs_and_others_differ():
    assert run(new(3), noisy(1), 8) == run(new(3), noisy(1), 8)
    assert run(new(3), noisy(1), 3) != run(new(4), noisy(1), 3)


def test_global_random_state_is_left_alone():
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    run(new(), noisy(0), 7)
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize("seed", range(2))
def test_finds_most_of_a_gain_under_noise(seed):
    optimizer = new(seed)
    run(optimizer, noisy(seed), 14)
    best = truth(CommParams(fusion_threshold_bytes=2**20, cycle_time_ms=0.5))
    assert truth(optimizer.incumbent().params) > 0.92 * best


@pytest.mark.parametrize("score", [5.0, 0.0, -1.0, math.nan, math.inf, -math.inf])
def test_equal_and_unusable_scores_crash_nothing(score):
    optimizer = new()
    settings = run(optimizer, lambda params: score, 9)
    assert len(set(settings)) == 9
    incumbent = optimizer.incumbent()
    assert math.isfinite(incumbent.score) and math.isfinite(incumbent.gain)
    assert incumbent.gain == pytest.approx(0)


def test_one_unusable_score_among_good_ones_does_no_harm():
    optimizer = new()
    scores = iter([100.0, math.nan, 101.0, math.inf, 99.0, 0.0, 100.0, 102.0, 98.0])
    run(optimizer, lambda params: next(scores), 9)
    assert 90 < optimizer.incumbent().score < 110


def test_a_rejected_setting_is_never_the_incumbent():
    optimizer = new()
    settings = run(optimizer, truth, 8)
    winner = optimizer.incumbent().params
    optimizer.tell(winner, 1e6)
    optimizer.reject(winner)
    assert optimizer.incumbent().params in set(settings) - {winner}


def test_lucky_reading_does_not_beat_the_posterior():
    """The best of many equal settings looks better than it is; its posterior mean does not."""
    optimizer = new()
    rng = np.random.default_rng(0)
    scores = []
    run(
        optimizer,
        lambda _: scores.append(100 * math.exp(0.05 * rng.standard_normal())) or scores[-1],
        16,
    )
    assert max(scores) / 100 - 1 > 0.05
    assert optimizer.incumbent().gain < max(scores) / scores[0] - 1


def test_everything_tried_ends_the_search():
    frozen = FROZEN | {"cycle_time_ms", "fusion_threshold_bytes"}
    space = SearchSpace(CommParams(), frozen=frozen, tensors=5, payload=1000)
    optimizer = BayesianOptimizer(space, rng=np.random.default_rng(0))
    assert len(run(optimizer, lambda params: 1.0, 5)) == 2
    assert optimizer.ask() is None


def test_proposals_are_json_safe():
    for params in run(new(), noisy(0), 9):
        json.dumps(params.as_dict())


def test_foreign_settings_off_the_grid_can_be_told():
    optimizer = new()
    optimizer.tell(CommParams(), 100.0)
    optimizer.tell(CommParams(cycle_time_ms=0, fusion_threshold_bytes=147), 90.0)
    run(optimizer, truth, 7)
    assert optimizer.ask() is not None


def test_initial_design_needs_no_surrogate():
    optimizer = new()
    while optimizer.in_initial_design:
        optimizer.learn()
        assert optimizer.constants is None
        optimizer.tell(optimizer.ask().params, 1.0)
    optimizer.learn()
    assert optimizer.constants is not None
