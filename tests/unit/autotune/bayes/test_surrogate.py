from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.bayes.surrogate import Hyperparameters, Surrogate, matern52, standardise

HYPER = Hyperparameters(
    length_scales=np.array([0.5, 1.5]), signal_variance=1.3, noise_variance=0.05
)


@pytest.fixture
def readings():
    rng = np.random.default_rng(5)
    X = rng.random((9, 2))
    return X, np.sin(3 * X[:, 0]) + 0.05 * rng.standard_normal(9)


def test_posterior_agrees_with_scikit_learn(readings):
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    X, values = readings
    points = np.random.default_rng(1).random((20, 2))
    ours = Surrogate.given(X, values, HYPER)
    kernel = ConstantKernel(1.3) * Matern([0.5, 1.5], nu=2.5)
    theirs = GaussianProcessRegressor(kernel, alpha=0.05, optimizer=None).fit(X, ours.y)
    mean, std = theirs.predict(points, return_std=True)
    ours_mean, ours_std = ours.posterior(points)
    assert np.allclose(ours_mean, ours.location + ours.scale * mean, atol=1e-6)
    assert np.allclose(ours_std, ours.scale * std, atol=1e-6)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_posterior_std_is_never_negative_nor_nan(seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 3, (12, 2)) / 2  # many repeated rows
    mean, std = Surrogate.given(X, rng.standard_normal(12), HYPER).posterior(X)
    assert np.all(std >= 0) and np.all(np.isfinite(std)) and np.all(np.isfinite(mean))


def test_std_shrinks_where_something_was_read(readings):
    X, values = readings
    _, at = Surrogate.given(X, values, HYPER).posterior(X)
    _, far = Surrogate.given(X, values, HYPER).posterior(np.array([[9.0, 9.0]]))
    assert at.max() < far[0]


def test_believing_keeps_the_mean_and_shrinks_the_std(readings):
    X, values = readings
    surrogate = Surrogate.given(X, values, HYPER)
    point = np.array([[0.9, 0.1]])
    mean, std = surrogate.posterior(point)
    believed_mean, believed_std = surrogate.believing(point).posterior(point)
    assert believed_mean == pytest.approx(mean, abs=1e-9)
    assert believed_std < std


def test_equal_values_fit_without_warnings():
    X = np.random.default_rng(0).random((6, 3))
    surrogate = Surrogate.fit(X, np.full(6, 5.0), noise_variance=None, seed=0)
    mean, std = surrogate.posterior(X)
    assert np.allclose(mean, 5.0) and np.all(std < 0.1)


def test_noise_is_learned_from_repeated_readings():
    rng = np.random.default_rng(2)
    X = np.repeat(rng.random((8, 2)), 4, axis=0)
    quiet = np.sin(4 * X[:, 0])
    noisy = quiet + 0.5 * rng.standard_normal(len(X))
    low = Surrogate.fit(X, quiet, noise_variance=None, seed=0).hyper.noise_variance
    high = Surrogate.fit(X, noisy, noise_variance=None, seed=0).hyper.noise_variance
    assert low < 0.01 < 0.1 < high


def test_fixed_noise_stays_fixed(readings):
    X, values = readings
    surrogate = Surrogate.fit(X, values, noise_variance=0.37, seed=0)
    assert surrogate.hyper.noise_variance == pytest.approx(0.37)


def test_one_dimension_is_enough():
    X = np.linspace(0, 1, 7)[:, None]
    surrogate = Surrogate.fit(X, X[:, 0] ** 2, noise_variance=None, seed=0)
    assert surrogate.hyper.length_scales.shape == (1,)


def test_standardise_inverts():
    values = np.array([1.0, 2.0, 4.0])
    y, location, scale = standardise(values)
    assert np.allclose(location + scale * y, values)
    assert np.allclose(standardise(np.ones(3))[0], 0)


def test_correlation_is_one_at_distance_zero_and_falls():
    scales = np.array([1.0])
    near, far = matern52(np.zeros((1, 1)), np.array([[0.0], [1.0]]), scales)[0]
    assert near == 1 and 0 < far < 1
