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


def gain(params: CommParams) -> float:
    """Return the log ratio to the default."""
    return height(params) - height(CommParams())


def height(params: CommParams) -> float:
    x = math.log2(max(params.fusion_threshold_bytes, 2**15) / 2**20)
    c = math.log10(params.cycle_time_ms) + 0.3
    return -0.02 * x * x - 0.15 * c * c - (0.3 if not params.cache_capacity else 0)


def run(optimizer: BayesianOptimizer, score, trials: int = 12) -> list[CommParams]:
    settings = []
    for _ in range(trials):
        optimizer.learn()
        proposal = optimizer.ask()
        if proposal is None:
            break
        settings.append(proposal.params)
        is_default = proposal.params == CommParams()
        optimizer.tell(proposal.params, score(proposal.params), 0.0 if is_default else None)
    optimizer.learn()
    return settings


def noisy(seed: int):
    rng = np.random.default_rng(seed)
    return lambda params: (
        0.0 if params == CommParams() else gain(params) + 0.025 * rng.standard_normal()
    )


def test_default_is_asked_first():
    assert new().ask().params == CommParams()


def test_asking_is_pure():
    optimizer = new()
    run(optimizer, gain, 7)
    first = optimizer.ask()
    assert optimizer.ask() == first
    assert optimizer.snapshot().ask() == first


def test_nothing_is_proposed_twice():
    settings = run(new(), noisy(0), 16)
    assert len(settings) == len(set(settings)) == 16


def test_pending_settings_are_not_proposed():
    optimizer = new()
    run(optimizer, gain, 8)
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
    best = gain(CommParams(fusion_threshold_bytes=2**20, cycle_time_ms=0.5))
    assert gain(optimizer.incumbent().params) > best - 0.08


@pytest.mark.parametrize("reading", [0.0, -5.0, math.nan, math.inf, -math.inf])
def test_equal_and_unusable_readings_crash_nothing(reading):
    optimizer = new()
    settings = run(optimizer, lambda params: 0.0 if params == CommParams() else reading, 9)
    assert len(set(settings)) == 9
    incumbent = optimizer.incumbent()
    assert math.isfinite(incumbent.std)
    assert incumbent.gain == pytest.approx(0, abs=1e-3)


def test_unusable_readings_among_good_ones_do_no_harm():
    optimizer = new()
    readings = iter([0.0, math.nan, 0.01, math.inf, -0.01, -math.inf, 0.0, 0.02, -0.02])
    run(optimizer, lambda params: next(readings), 9)
    assert -0.02 < optimizer.incumbent().gain < 0.05


def test_a_rejected_setting_is_never_the_incumbent():
    optimizer = new()
    settings = run(optimizer, gain, 8)
    winner = optimizer.incumbent().params
    optimizer.tell(winner, 5.0)
    optimizer.reject(winner)
    assert optimizer.incumbent().params in set(settings) - {winner}


def test_lucky_reading_does_not_beat_the_posterior():
    """The best of many equal settings looks better than it is; its posterior mean does not."""
    optimizer = new()
    rng = np.random.default_rng(0)
    readings = []

    def lucky(params):
        readings.append(0.0 if params == CommParams() else 0.05 * rng.standard_normal())
        return readings[-1]

    run(optimizer, lucky, 16)
    assert max(readings) > 0.05
    assert optimizer.incumbent().gain < 0.8 * max(readings)


def test_everything_tried_ends_the_search():
    frozen = FROZEN | {"cycle_time_ms", "fusion_threshold_bytes"}
    space = SearchSpace(CommParams(), frozen=frozen, tensors=5, payload=1000)
    optimizer = BayesianOptimizer(space, rng=np.random.default_rng(0))
    assert len(run(optimizer, lambda params: 0.0, 5)) == 2
    assert optimizer.ask() is None


def test_proposals_are_json_safe():
    for params in run(new(), noisy(0), 9):
        json.dumps(params.as_dict())


def test_foreign_settings_off_the_grid_can_be_told():
    optimizer = new()
    optimizer.tell(CommParams(), 0.0, 0.0)
    optimizer.tell(CommParams(cycle_time_ms=0, fusion_threshold_bytes=147), -0.1)
    run(optimizer, gain, 7)
    assert optimizer.ask() is not None


def test_initial_design_needs_no_surrogate():
    optimizer = new()
    while optimizer.in_initial_design:
        optimizer.learn()
        assert optimizer.constants is None
        optimizer.tell(optimizer.ask().params, 0.0)
    optimizer.learn()
    assert optimizer.constants is not None


# ---- the default defines the scale --------------------------------------------------------------

FASTER = CommParams(fusion_threshold_bytes=2**20, cycle_time_ms=0.5)
SLOWER = CommParams(cycle_time_ms=10.0)


def test_the_default_gains_exactly_nothing():
    optimizer = new()
    run(optimizer, noisy(0), 8)
    mean, std = optimizer.posterior([CommParams()])
    assert abs(mean[0]) < 1e-3 and std[0] < 1e-3


def test_a_certain_reading_counts_more_than_an_uncertain_one():
    optimizer = new()
    optimizer.tell(CommParams(), 0.0, 0.0)
    optimizer.tell(FASTER, 0.10, 0.01**2)
    optimizer.tell(FASTER, 0.00, 0.10**2)
    assert optimizer.means([FASTER])[0] > 0.08
    assert optimizer.incumbent().params == FASTER


def test_a_reading_that_was_amended_counts_as_if_it_had_been_told_so():
    first, second = new(), new()
    for optimizer in (first, second):
        optimizer.tell(CommParams(), 0.0, 0.0)
    index = first.tell(FASTER, -0.2)
    before = first.means([FASTER])[0]
    first.amend(index, 0.1, 0.02**2)
    second.tell(FASTER, 0.1, 0.02**2)
    assert before < 0 < first.means([FASTER])[0]
    both = [optimizer.posterior([FASTER, SLOWER]) for optimizer in (first, second)]
    assert np.allclose(*both)


def test_a_snapshot_does_not_change_with_what_is_told_later():
    optimizer = new()
    run(optimizer, gain, 8)
    twin = optimizer.snapshot()
    before = twin.means([FASTER])[0]
    optimizer.tell(FASTER, 0.9)
    assert twin.means([FASTER])[0] == before != optimizer.means([FASTER])[0]


@pytest.mark.parametrize("seed", range(3))
def test_intervals_hold_the_truth_as_often_as_they_say(seed):
    optimizer = new(seed)
    settings = run(optimizer, noisy(seed), 12)[1:]
    mean, std = optimizer.posterior(settings)
    inside = np.abs(mean - [gain(params) for params in settings]) < 2 * std
    assert inside.mean() >= 0.8 and np.median(std) < 0.05


def test_the_incumbent_carries_its_uncertainty():
    optimizer = new()
    run(optimizer, noisy(0), 10)
    incumbent = optimizer.incumbent()
    mean, std = optimizer.posterior([incumbent.params])
    assert incumbent.gain == pytest.approx(math.expm1(mean[0]), abs=1e-3)
    assert incumbent.std == pytest.approx(std[0])


def test_noise_that_the_caller_fixes_is_not_learned():
    free, fixed = new(), new(noise_variance=0.5)
    for optimizer in (free, fixed):
        run(optimizer, noisy(0), 10)
    assert fixed.constants.noise_factor > 5 * free.constants.noise_factor


# ---- several at once ----------------------------------------------------------------------------


def test_several_proposals_are_different_and_new():
    optimizer = new()
    tried = run(optimizer, noisy(0), 9)
    proposed = [proposal.params for proposal in optimizer.ask_many(count=5)]
    assert len({*proposed, *tried}) == 5 + len(tried)


def test_the_first_of_several_proposals_is_the_one_that_is_asked_for_alone():
    optimizer = new()
    run(optimizer, noisy(0), 9)
    many = optimizer.ask_many(count=3)
    assert many[0] == optimizer.ask()
    assert many[1].params == optimizer.ask([many[0].params]).params


def test_several_proposals_begin_with_the_default_and_the_initial_design():
    optimizer = new()
    many = [proposal.params for proposal in optimizer.ask_many(count=3)]
    assert many == run(new(), gain, 3)


def test_a_small_space_gives_fewer_than_were_wanted():
    frozen = FROZEN | {"cycle_time_ms", "fusion_threshold_bytes"}
    space = SearchSpace(CommParams(), frozen=frozen, tensors=5, payload=1000)
    optimizer = BayesianOptimizer(space, rng=np.random.default_rng(0))
    assert len(optimizer.ask_many(count=9)) == space.size == 2


# ---- U8: a parameter without effect beside one with ---------------------------------------------


def only_fusion(seed: int):
    """A job in which the cycle time does nothing."""
    rng = np.random.default_rng(seed)

    def read(params: CommParams) -> float:
        x = math.log2(max(params.fusion_threshold_bytes, 2**15) / 2**20)
        return 0.02 * (36 - x * x) + (0.0 if params == CommParams() else 0.01 * rng.normal())

    return read


def test_a_parameter_without_effect_keeps_its_default():
    kept = 0
    for seed in range(5):
        optimizer = new(seed)
        run(optimizer, only_fusion(seed), 14)
        simple = optimizer.simplified(optimizer.incumbent().params)
        assert simple.params.fusion_threshold_bytes < 2**25
        assert "fusion_threshold_bytes" not in simple.no_effect
        kept += simple.params.cycle_time_ms == CommParams().cycle_time_ms
    assert kept >= 4


def test_what_has_an_effect_is_not_simplified_away():
    optimizer = new()
    optimizer.tell(CommParams(), 0.0, 0.0)
    run(optimizer, gain, 14)
    simple = optimizer.simplified(FASTER)
    assert "fusion_threshold_bytes" not in simple.no_effect


def test_the_default_is_as_simple_as_it_gets():
    optimizer = new()
    run(optimizer, noisy(0), 8)
    simple = optimizer.simplified(CommParams())
    assert simple.params == CommParams() and simple.no_effect == ()


# ---- when the arithmetic fails ------------------------------------------------------------------


def failing(monkeypatch, times: int) -> None:
    """Make the next ``times`` factorisations fail as scikit-learn's do."""
    from sklearn.gaussian_process import _gpr

    real, left = _gpr.cholesky, [times]

    def cholesky(*arguments, **options):
        if left[0] > 0:
            left[0] -= 1
            raise np.linalg.LinAlgError("not positive definite")
        return real(*arguments, **options)

    monkeypatch.setattr(_gpr, "cholesky", cholesky)


@pytest.mark.parametrize("times", [1, 3, 10, 40])
def test_factorisations_that_fail_end_nothing(monkeypatch, times):
    optimizer = new()
    settings = run(optimizer, noisy(0), 9)
    optimizer.tell(FASTER, 0.1)
    failing(monkeypatch, times)
    optimizer.learn()
    proposal = optimizer.ask()
    assert proposal is not None and proposal.params not in settings
    assert np.all(np.isfinite(optimizer.posterior(settings)))


def test_falling_back_is_said(monkeypatch):
    optimizer = new()
    run(optimizer, noisy(0), 9)
    assert optimizer.trouble is None
    optimizer.tell(FASTER, 0.1)
    failing(monkeypatch, 40)
    optimizer.learn()
    assert "surrogate" in optimizer.trouble


def test_a_trend_that_is_not_finite_is_left_out():
    optimizer = new()
    optimizer.expect(lambda params: np.array([math.nan, gain(params)]))
    run(optimizer, noisy(0), 6)
    assert gain(optimizer.incumbent().params) > 0.1


# ---- a cheap plan -------------------------------------------------------------------------------


class Counted:
    """A trend that counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, params: CommParams) -> np.ndarray:
        self.calls += 1
        return np.array([gain(params), -gain(params), 0.5 * gain(params)])


def test_a_trend_is_evaluated_once_and_at_few_settings():
    space = SearchSpace(CommParams(), tensors=161, payload=2**27)
    optimizer, trend = BayesianOptimizer(space, rng=np.random.default_rng(0)), Counted()
    optimizer.expect(trend)
    run(optimizer, noisy(0), 6)
    optimizer.snapshot().ask_many(count=3)
    assert space.size >= 1600 and trend.calls <= 400


def test_learning_and_asking_factorise_few_matrices(monkeypatch):
    """Each factorisation is one evaluation of the likelihood, or one posterior."""
    from sklearn.gaussian_process import _gpr

    optimizer = new()
    optimizer.expect(Counted())
    run(optimizer, noisy(0), 12)
    optimizer.tell(FASTER, 0.1)
    counted, real = [], _gpr.cholesky
    monkeypatch.setattr(_gpr, "cholesky", lambda *a, **o: counted.append(1) or real(*a, **o))
    optimizer.learn()
    assert optimizer.ask_many(count=4)
    assert len(counted) <= 30
