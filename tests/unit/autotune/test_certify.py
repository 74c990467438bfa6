from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.certify import ALPHA, LOOKS, Comparison, PairedTest, estimate
from autotune.scoring import Reading
from autotune.trial import CommParams, Trial

NOISE = 0.025
"""Standard deviation of a 10-step window's log score under 5 % noise per step."""


def decide(gain: float, seed: int) -> tuple[bool, PairedTest]:
    rng, test = np.random.default_rng(seed), PairedTest()
    while (decision := test.decision()) is None:
        default, incumbent = np.exp(NOISE * rng.standard_normal(2))
        test.add(default=default, incumbent=(1 + gain) * incumbent)
    return decision, test


def test_equal_settings_are_certified_at_most_as_often_as_alpha_allows():
    wrong = sum(decide(0.0, seed)[0] for seed in range(600))
    assert wrong / 600 <= ALPHA + 0.005


def test_a_slower_incumbent_is_not_certified():
    assert not any(decide(-0.02, seed)[0] for seed in range(100))


def test_a_gain_of_ten_percent_is_certified_soon():
    results = [decide(0.10, seed) for seed in range(50)]
    assert sum(decision for decision, _ in results) >= 48
    assert np.median([test.pairs for _, test in results]) <= LOOKS[1]


def test_the_number_of_pairs_is_bounded():
    assert max(decide(0.02, seed)[1].pairs for seed in range(50)) <= LOOKS[-1]


def test_interval_covers_the_gain_and_stands_in_the_certificate():
    _, test = decide(0.2, 0)
    certificate = test.certificate(4)
    assert certificate.certified and certificate.trial_id == 4
    assert 0 < certificate.gain_low < 0.2 < certificate.gain_high
    assert certificate.gain == pytest.approx(0.2, abs=0.05)
    assert "pairs" in certificate.reason and "%" in certificate.reason


def test_no_decision_between_two_looks():
    test = PairedTest()
    for _ in range(LOOKS[0] - 1):
        test.add(default=1.0, incumbent=2.0)
        assert test.decision() is None


def test_exactly_equal_pairs_are_not_certified():
    test = PairedTest()
    while test.decision() is None:
        test.add(default=3.0, incumbent=3.0)
    assert test.decision() is False


def test_unusable_scores_prove_nothing():
    test = PairedTest()
    while test.decision() is None:
        test.add(default=0.0, incumbent=5.0)
    assert test.decision() is False and math.isfinite(test.certificate(1).gain)


def test_an_incumbent_with_more_slow_steps_is_not_certified():
    test = PairedTest()
    for _ in range(LOOKS[0]):
        test.add(default=1.0, incumbent=1.2, slow=(0, 2))
    assert test.decision() is False
    assert "slow steps" in test.certificate(1).reason


def test_bounds_are_those_of_student():
    result = estimate([0.0, 0.1, 0.2, 0.1], alpha=0.025)
    assert result.mean == pytest.approx(0.1)
    assert result.high - result.mean == pytest.approx(3.182446 * 0.0816497 / 2, rel=1e-5)


def test_orders_of_a_comparison_are_random_and_reproducible():
    default = Trial(trial_id=0, params=CommParams(), score=1.0)
    incumbent = Trial(trial_id=3, params=CommParams(cycle_time_ms=2), score=1.0)
    reading = Reading(
        steps=1, duration_us=1.0, payload_bytes=1, exposed_us=0.0, score=1.0, slow_steps=0
    )

    def order(seed: int) -> list[int]:
        comparison = Comparison(default, incumbent, rng=np.random.default_rng(seed))
        arms = []
        for _ in range(24):
            arms.append(comparison.next_arm().trial_id)
            comparison.take(reading)
        return arms

    arms = order(0)
    assert arms == order(0)
    assert all(
        {first, second} == {0, 3} for first, second in zip(arms[::2], arms[1::2], strict=True)
    )
    assert 0 < arms[::2].count(0) < 12
