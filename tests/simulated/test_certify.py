from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.tuning.comparing.certify import (
    ALPHA,
    FEWEST_PAIRS,
    MOST_AFTER_PROOF,
    MOST_PAIRS,
    PAIRS_AFTER_PROOF,
    PRECISE,
    PairedTest,
    confidence,
    critical_ratio,
    middle,
    pairs_to_proof,
    shrunk,
)

NOISE = 0.022
"""Standard deviation of a 10-step window's log score under 5 % noise per step."""


def decide(gain: float, seed: int, *, tails: int | None = None) -> tuple[bool, PairedTest]:
    rng, test = np.random.default_rng(seed), PairedTest()
    while (decision := test.decision()) is None:
        draw = rng.standard_normal(2) if tails is None else rng.standard_t(tails, 2)
        default, incumbent = np.exp(NOISE * draw)
        test.add(math.log((1 + gain) * incumbent / default))
    return decision, test


@pytest.mark.parametrize("tails", [None, 3])
def test_equal_settings_are_certified_at_most_as_often_as_alpha_allows(tails):
    """2,000 runs; the observed rate is about a half of alpha, so that three sigma fit in."""
    wrong = sum(decide(0.0, seed, tails=tails)[0] for seed in range(2000))
    assert wrong / 2000 <= ALPHA


def test_looking_after_every_pair_of_a_long_run_keeps_the_error():
    """Without giving up and without an end: the bound alone, looked at 60 times."""
    rng, crossed = np.random.default_rng(1), 0
    for _ in range(1000):
        x = rng.standard_normal(60)
        n, sums, squares = np.arange(1, 61), np.cumsum(x), np.cumsum(x * x)
        bars = np.array([critical_ratio(int(k), ALPHA) for k in n])
        crossed += bool(np.any((sums > 0) & (sums**2 / squares > bars)))
    assert crossed / 1000 <= ALPHA + 0.005


def test_a_slower_incumbent_is_not_certified():
    assert not any(decide(-0.02, seed)[0] for seed in range(100))


def test_a_gain_of_ten_percent_is_certified_soon():
    results = [decide(0.10, seed) for seed in range(50)]
    assert sum(decision for decision, _ in results) >= 48
    assert np.median([test.pairs for _, test in results]) <= 9


def test_the_number_of_pairs_is_bounded():
    assert max(decide(0.02, seed)[1].pairs for seed in range(50)) <= MOST_PAIRS


def test_interval_covers_the_gain_and_stands_in_the_certificate():
    _, test = decide(0.2, 0)
    certificate = test.certificate(4)
    assert certificate.certified and certificate.trial_id == 4
    assert 0 < certificate.gain_low < 0.2 < certificate.gain_high
    assert certificate.gain == pytest.approx(0.2, abs=0.05)
    assert "pairs" in certificate.reason and "%" in certificate.reason


def test_a_few_pairs_decide_nothing():
    test = PairedTest()
    for _ in range(FEWEST_PAIRS - 1):
        test.add(math.log(2.0))
        assert test.decision() is None


def test_pairs_are_read_after_the_proof():
    for seed in range(20):
        decision, test = decide(0.05, seed)
        if decision:
            proof = next(n for n in range(2, 99) if confidence(test.log_ratios[:n], ALPHA).low > 0)
            assert test.pairs >= min(proof + PAIRS_AFTER_PROOF, MOST_PAIRS)


@pytest.mark.parametrize("gain", [0.0, 0.03, 0.1, 0.3])
def test_what_is_claimed_is_true_on_average(gain):
    errors = []
    for seed in range(200):
        decision, test = decide(gain, seed)
        errors.append((test.certificate(1).gain if decision else 0.0) - (gain if decision else 0))
    assert abs(np.mean(errors)) < 0.005


def test_an_incumbent_that_will_not_be_proven_is_given_up_early():
    pairs = [decide(0.0, seed)[1].pairs for seed in range(100)]
    assert np.median(pairs) <= MOST_PAIRS // 2


def test_lower_bound_covers_at_all_times():
    rng, missed = np.random.default_rng(3), 0
    for _ in range(500):
        values = 0.05 + 0.03 * rng.standard_normal(20)
        missed += any(confidence(values[:n], ALPHA).low > 0.05 for n in range(2, 21))
    assert missed / 500 <= ALPHA + 0.01


def test_the_interval_is_what_the_test_does_not_reject():
    values = np.array([0.02, 0.05, 0.01, 0.04, 0.06, 0.03, 0.02])
    bounds = confidence(values, ALPHA)
    for bound in (bounds.low, bounds.high):
        rest = values - bound
        ratio = float(rest.sum() ** 2 / np.square(rest).sum())
        assert ratio == pytest.approx(critical_ratio(len(values), ALPHA), rel=1e-9)


def test_a_mean_is_shrunk_more_the_less_certain_it_is():
    sure, unsure = [0.1, 0.11, 0.09, 0.1], [0.1, 0.3, -0.1, 0.1]
    assert 0.099 < shrunk(sure) < 0.1
    assert 0 <= shrunk(unsure) < 0.05
    assert shrunk([0.0, 0.0]) == 0.0


def test_more_pairs_are_foreseen_for_a_smaller_gain():
    large, small = [0.10, 0.12, 0.08, 0.11, 0.1, 0.09], [0.02, 0.05, -0.01, 0.03, 0.0, 0.04]
    assert pairs_to_proof(large, ALPHA, 30) < pairs_to_proof(small, ALPHA, 30)
    assert pairs_to_proof([-0.1, -0.12, -0.1], ALPHA, 30) == 31


def test_exactly_equal_pairs_are_not_certified():
    test = PairedTest()
    while test.decision() is None:
        test.add(0.0)
    assert test.decision() is False


def test_unusable_scores_prove_nothing():
    test = PairedTest()
    while test.decision() is None:
        test.add(math.inf)
    assert test.decision() is False and math.isfinite(test.certificate(1).gain)


def test_an_incumbent_with_more_slow_steps_is_not_certified():
    test = PairedTest()
    for _ in range(FEWEST_PAIRS):
        test.add(math.log(1.2), slow=(0, 2), excess=(0.0, 0.25))
    assert test.decision() is False
    assert "slow steps" in test.certificate(1).reason


def test_slow_steps_do_not_matter_where_the_gain_is_proven_with_them():
    """Short steps show a change of speed that long ones average."""
    test = PairedTest()
    while test.decision() is None:
        test.add(math.log(2.2), slow=(0, 2), excess=(0.0, 0.25))
    assert test.decision() is True


def test_slow_steps_that_are_a_habit_count_in_the_claim():
    """Both arms lose 0.1 to every tenth step: the faster one gains less than its typical step."""
    chance, habit = PairedTest(), PairedTest()
    for k in range(12):
        noise = [0.8, 1.0, 1.25][k % 3]
        chance.add(math.log(2.0 * noise), excess=(0.1, 0.2))
        habit.add(math.log(2.0 * noise), slow=(1, 1), excess=(0.1, 0.2))
    assert chance.estimate().gain == pytest.approx(1.0, abs=0.03)
    assert habit.estimate().gain == pytest.approx(2 * 1.1 / 1.2 - 1, abs=0.03)
    assert habit.estimate().low < habit.estimate().mean


def test_a_pair_that_saw_a_change_of_speed_hardly_moves_the_claim():
    """One pair in ten is off by a factor of 1.8: the mean of all would be off by 6 %."""
    quiet = [0.2 + 0.02 * ((k * 7) % 5 - 2) for k in range(20)]
    disturbed = [*quiet[:9], quiet[9] + math.log(1.8), *quiet[10:19], quiet[19] + math.log(1.8)]
    assert middle(quiet)[0] == pytest.approx(0.2, abs=0.005)
    assert middle(disturbed)[0] == pytest.approx(0.2, abs=0.015)
    assert np.mean(disturbed) > 0.25 and middle(disturbed)[1] < 0.02


def test_an_imprecise_gain_is_read_on_until_it_is_precise():
    test, rng = PairedTest(), np.random.default_rng(2)
    while test.decision() is None:
        test.add(0.4 + 0.1 * rng.standard_normal())
    assert test.decision() is True and test.pairs > FEWEST_PAIRS + PAIRS_AFTER_PROOF
    assert middle(test.log_ratios)[1] <= PRECISE or test.pairs == MOST_AFTER_PROOF
