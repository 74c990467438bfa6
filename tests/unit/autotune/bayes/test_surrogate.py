from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.bayes.surrogate import (
    TYPICAL_NOISE,
    Hyperparameters,
    Mixture,
    Readings,
    Surrogate,
    estimate,
    matern52,
    typical,
)

HYPER = Hyperparameters(
    length_scales=np.array([0.5, 1.5]), signal_variance=1.3, noise_variance=0.05
)


@pytest.fixture
def readings() -> Readings:
    rng = np.random.default_rng(5)
    X = rng.random((9, 2))
    return Readings.of(X, np.sin(3 * X[:, 0]) + 0.05 * rng.standard_normal(9))


def test_posterior_agrees_with_scikit_learn(readings):
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    points = np.random.default_rng(1).random((20, 2))
    ours = Surrogate(readings=readings, hyper=HYPER)
    kernel = ConstantKernel(1.3) * Matern([0.5, 1.5], nu=2.5)
    theirs = GaussianProcessRegressor(kernel, alpha=0.05, optimizer=None)
    theirs.fit(readings.X, readings.values - ours.location)
    mean, std = theirs.predict(points, return_std=True)
    ours_mean, ours_std = ours.posterior(points)
    assert np.allclose(ours_mean, ours.location + mean, atol=1e-6)
    assert np.allclose(ours_std, std, atol=1e-6)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_posterior_std_is_never_negative_nor_nan(seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 3, (12, 2)) / 2  # many repeated rows
    known = Readings.of(X, rng.standard_normal(12))
    mean, std = Surrogate(readings=known, hyper=HYPER).posterior(X)
    assert np.all(std >= 0) and np.all(np.isfinite(std)) and np.all(np.isfinite(mean))


def test_std_shrinks_where_something_was_read(readings):
    surrogate = Surrogate(readings=readings, hyper=HYPER)
    _, at = surrogate.posterior(readings.X)
    _, far = surrogate.posterior(np.array([[9.0, 9.0]]))
    assert at.max() < far[0]


def test_a_short_window_weighs_less(readings):
    short = dataclasses.replace(readings, shares=np.array([0.1] + [1.0] * 8))
    _, full = Surrogate(readings=readings, hyper=HYPER).posterior(readings.X[:1])
    _, less = Surrogate(readings=short, hyper=HYPER).posterior(readings.X[:1])
    assert less[0] > full[0]


def test_equal_values_fit_without_warnings():
    X = np.random.default_rng(0).random((6, 3))
    known = Readings.of(X, np.full(6, 5.0))
    mean, std = Surrogate(readings=known, hyper=estimate(known)).posterior(X)
    assert np.allclose(mean, 5.0) and np.all(std < 0.1)


def test_noise_is_learned_from_repeated_readings():
    rng = np.random.default_rng(2)
    X = np.repeat(rng.random((8, 2)), 4, axis=0)
    signal = 0.2 * np.sin(4 * X[:, 0])
    noisy = signal + 0.08 * rng.standard_normal(len(X))
    low = estimate(Readings.of(X, signal)).noise_variance
    high = estimate(Readings.of(X, noisy)).noise_variance
    assert low < TYPICAL_NOISE**2 < 0.06**2 < high < 0.1**2


def test_what_is_known_of_the_noise_counts_where_readings_are_few():
    X = np.random.default_rng(0).random((4, 2))
    known = Readings.of(X, np.array([0.0, 0.05, 0.1, 0.02]))
    quiet, loud = (estimate(known, noise=noise).noise_variance for noise in (0.005, 0.05))
    assert quiet < 0.02**2 < loud


def test_fixed_noise_stays_fixed(readings):
    assert estimate(readings, noise_variance=0.37).noise_variance == pytest.approx(0.37)


def test_one_dimension_is_enough():
    X = np.linspace(0, 1, 7)[:, None]
    assert estimate(Readings.of(X, X[:, 0] ** 2)).length_scales.shape == (1,)


def test_correlation_is_one_at_distance_zero_and_falls():
    scales = np.array([1.0])
    near, far = matern52(np.zeros((1, 1)), np.array([[0.0], [1.0]]), scales)[0]
    assert near == 1 and 0 < far < 1


# ---- the prior ----------------------------------------------------------------------------------

GRID = np.linspace(0, 1, 41)[:, None]


def truth(X: np.ndarray) -> np.ndarray:
    return -2.0 * np.square(X[:, 0] - 0.8)


def told(prior, *, at=(0.1, 0.3)) -> Readings:
    X = np.array(at)[:, None]
    return Readings(X=X, values=truth(X), shares=np.ones(len(X)), prior=prior(X))


def test_a_right_prior_finds_the_best_far_from_all_readings():
    known = told(lambda X: truth(X)[:, None])
    mean, _ = Mixture(known, typical(1)).posterior(GRID, truth(GRID)[:, None])
    plain, _ = Mixture(told(lambda X: np.zeros((len(X), 0))), typical(1)).posterior(
        GRID, np.zeros((41, 0))
    )
    assert abs(GRID[np.argmax(mean), 0] - 0.8) < 0.06
    assert abs(GRID[np.argmax(plain), 0] - 0.8) > 0.1


def test_a_wrong_prior_is_discounted_by_a_few_readings():
    at = (0.1, 0.3, 0.5, 0.7, 0.9)
    known = told(lambda X: -truth(X)[:, None], at=at)
    mean, _ = Mixture(known, typical(1)).posterior(GRID, -truth(GRID)[:, None])
    assert abs(GRID[np.argmax(mean), 0] - 0.8) < 0.1


def test_readings_decide_between_rival_models():
    def rivals(X):
        return np.column_stack([-truth(X), truth(X), np.sin(9 * X[:, 0])])

    model = Mixture(told(rivals, at=(0.1, 0.3, 0.6)), typical(1))
    assert model.most_evident == 1
    assert sum(weight for weight, _ in model.models) == pytest.approx(1)


def test_disagreeing_models_make_a_setting_uncertain():
    def rivals(X):
        return np.column_stack([X[:, 0] - 0.1, 0.1 - X[:, 0]])

    known = told(rivals, at=(0.1,))
    one = Mixture(known.under(0), typical(1)).posterior(GRID, rivals(GRID)[:, :1])[1]
    both = Mixture(known, typical(1)).posterior(GRID, rivals(GRID))[1]
    assert both[-1] > 1.5 * one[-1]


def test_a_setting_with_something_of_its_own_stands_out_from_its_neighbours():
    X = np.repeat([[0.45], [0.5], [0.55]], 6, axis=0)
    values = np.repeat([0.0, 0.1, 0.0], 6)
    known = Readings.of(X, values)
    smooth = typical(1, 0.05)
    own = dataclasses.replace(smooth, cell_variance=0.05**2)
    at = np.array([[0.5], [0.45], [0.52]])
    plain, _ = Surrogate(readings=known, hyper=smooth).posterior(at)
    mean, std = Surrogate(readings=known, hyper=own).posterior(at)
    assert mean[0] - mean[1] > 1.5 * (plain[0] - plain[1])
    assert std[2] > std[0]  # what was not read may have something of its own, too
