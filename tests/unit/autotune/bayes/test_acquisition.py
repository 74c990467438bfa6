from __future__ import annotations

import numpy as np
import scipy.special  # noqa: F401, so that the first example is not the slowest
from hypothesis import given
from hypothesis import strategies as st

from autotune.bayes.acquisition import expected_improvement


def improvement(mean: float, std: float, best: float = 0.0) -> float:
    return float(expected_improvement(np.array([mean]), np.array([std]), best)[0])


@given(st.floats(-50, 50), st.floats(0, 10), st.floats(-50, 50))
def test_is_never_negative_nor_nan(mean, std, best):
    assert improvement(mean, std, best) >= 0


def test_without_uncertainty_is_the_plain_gain():
    assert improvement(0.2, 0.0) == 0.2
    assert improvement(-0.2, 0.0) == 0.0


def test_grows_with_mean_and_with_uncertainty():
    assert improvement(0.1, 0.1) > improvement(0.0, 0.1) > improvement(-0.1, 0.1)
    assert improvement(-0.1, 0.2) > improvement(-0.1, 0.1)


def test_agrees_with_a_monte_carlo_mean():
    draws = np.random.default_rng(0).normal(-0.05, 0.1, 400_000)
    assert abs(improvement(-0.05, 0.1) - np.maximum(draws, 0).mean()) < 2e-4
