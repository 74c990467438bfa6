from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.bayes.surrogate import (
    Hyperparameters,
    Mixture,
    Outlook,
    Readings,
    Surrogate,
    SurrogateError,
    estimate,
    typical,
)

HYPER = Hyperparameters(length_scales=np.array([0.5, 1.5]), signal_variance=0.9, noise_factor=2.0)


@pytest.fixture
def readings() -> Readings:
    rng = np.random.default_rng(5)
    X = rng.random((9, 2))
    return dataclasses.replace(
        Readings.of(X, np.sin(3 * X[:, 0]) + 0.05 * rng.standard_normal(9)),
        variances=rng.uniform(0.001, 0.003, 9),
    )


def test_posterior_agrees_with_scikit_learn(readings):
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    points = np.random.default_rng(1).random((20, 2))
    ours = Surrogate(readings, HYPER)
    kernel = ConstantKernel(0.9) * Matern([0.5, 1.5], nu=2.5)
    theirs = GaussianProcessRegressor(kernel, alpha=2 * readings.variances, optimizer=None)
    location = readings.values.mean()
    theirs.fit(readings.X, readings.values - location)
    mean, std = theirs.predict(points, return_std=True)
    ours_mean, ours_std = ours.posterior(points)
    assert np.allclose(ours_mean, location + mean, atol=1e-6)
    assert np.allclose(ours_std, std, atol=1e-6)
    assert ours.evidence == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-5)


def test_gradient_of_the_evidence_is_its_slope(readings):
    from scipy.optimize import approx_fprime

    trend = readings.X[:, :1] ** 2
    model = Surrogate(dataclasses.replace(readings, trend=trend), HYPER)._model
    theta = model.kernel_.theta
    _, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    slope = approx_fprime(theta, model.log_marginal_likelihood, 1e-6)
    assert np.allclose(gradient, slope, atol=1e-3)


def test_covariance_has_the_variances_on_its_diagonal(readings):
    model, points = Surrogate(readings, HYPER), np.random.default_rng(1).random((5, 2))
    _, std = model.posterior(points)
    none = np.zeros((5, 0))
    assert np.allclose(np.diag(model.covariance(points, points, none, none)), std**2, atol=1e-9)


def test_what_is_believed_shrinks_the_uncertainty_as_a_reading_would(readings):
    """Two points are believed to read what they are expected to; compare with telling them so."""
    points = np.random.default_rng(1).random((6, 2))
    outlook = Outlook(Mixture(readings, HYPER), points, np.zeros((6, 0)))
    mean = outlook.mean.copy()
    more = dataclasses.replace(
        readings,
        X=np.vstack([readings.X, points[:2]]),
        values=np.append(readings.values, mean[:2]),
        variances=np.append(readings.variances, [0.01, 0.01]),
        trend=np.zeros((11, 0)),
    )
    for row in (0, 1):
        outlook.believe(row, 0.01 * HYPER.noise_factor)
    _, std = Surrogate(more, HYPER).posterior(points)
    assert np.allclose(outlook.std, std, atol=1e-6) and np.array_equal(outlook.mean, mean)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_posterior_std_is_never_negative_nor_nan(seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 3, (12, 2)) / 2  # many repeated rows
    known = Readings.of(X, rng.standard_normal(12))
    mean, std = Surrogate(known, HYPER).posterior(X)
    assert np.all(std >= 0) and np.all(np.isfinite(std)) and np.all(np.isfinite(mean))


def test_std_shrinks_where_something_was_read(readings):
    surrogate = Surrogate(readings, HYPER)
    _, at = surrogate.posterior(readings.X)
    _, far = surrogate.posterior(np.array([[9.0, 9.0]]))
    assert at.max() < far[0]


def test_an_uncertain_reading_weighs_less(readings):
    variances = readings.variances * np.array([10.0] + [1.0] * 8)
    short = dataclasses.replace(readings, variances=variances)
    _, full = Surrogate(readings, HYPER).posterior(readings.X[:1])
    _, less = Surrogate(short, HYPER).posterior(readings.X[:1])
    assert less[0] > full[0]


def test_equal_values_fit_without_warnings():
    X = np.random.default_rng(0).random((6, 3))
    known = Readings.of(X, np.full(6, 5.0))
    mean, std = Surrogate(known, estimate(known)).posterior(X)
    assert np.allclose(mean, 5.0) and np.all(std < 0.1)


def test_noise_is_learned_from_repeated_readings():
    rng = np.random.default_rng(2)
    X = np.repeat(rng.random((8, 2)), 4, axis=0)
    signal = 0.2 * np.sin(4 * X[:, 0])
    noisy = signal + 0.08 * rng.standard_normal(len(X))
    low = estimate(Readings.of(X, signal)).noise_factor
    high = estimate(Readings.of(X, noisy)).noise_factor
    assert low < 1 < 9 < high < 20


def test_what_is_known_of_the_noise_counts_where_readings_are_few():
    X = np.random.default_rng(0).random((4, 2))
    known = Readings.of(X, np.array([0.0, 0.05, 0.1, 0.02]))
    quiet, loud = (
        estimate(dataclasses.replace(known, variances=np.full(4, noise**2))).noise_factor * noise**2
        for noise in (0.005, 0.05)
    )
    assert quiet < 0.02**2 < loud


def test_fixed_noise_stays_fixed(readings):
    assert estimate(readings, noise_factor=0.37).noise_factor == pytest.approx(0.37)


def test_one_dimension_is_enough():
    X = np.linspace(0, 1, 7)[:, None]
    assert estimate(Readings.of(X, X[:, 0] ** 2)).length_scales.shape == (1,)


def test_readings_that_are_not_finite_are_an_error_of_its_own(readings):
    broken = dataclasses.replace(readings, values=np.full(9, np.nan))
    with pytest.raises(SurrogateError, match="factorised"):
        Surrogate(broken, HYPER)


# ---- the trend ----------------------------------------------------------------------------------

GRID = np.linspace(0, 1, 41)[:, None]


def truth(X: np.ndarray) -> np.ndarray:
    return -2.0 * np.square(X[:, 0] - 0.8)


def told(trend, *, at=(0.1, 0.3)) -> Readings:
    X = np.array(at)[:, None]
    return Readings(X=X, values=truth(X), variances=np.full(len(X), 4e-4), trend=trend(X))


def test_a_right_trend_finds_the_best_far_from_all_readings():
    known = told(lambda X: truth(X)[:, None])
    mean, _ = Mixture(known, typical(1)).posterior(GRID, truth(GRID)[:, None])
    plain, _ = Mixture(told(lambda X: np.zeros((len(X), 0))), typical(1)).posterior(
        GRID, np.zeros((41, 0))
    )
    assert abs(GRID[np.argmax(mean), 0] - 0.8) < 0.06
    assert abs(GRID[np.argmax(plain), 0] - 0.8) > 0.1


def test_a_wrong_trend_is_discounted_by_a_few_readings():
    at = (0.1, 0.3, 0.5, 0.7, 0.9)
    known = told(lambda X: -truth(X)[:, None], at=at)
    mean, _ = Mixture(known, typical(1)).posterior(GRID, -truth(GRID)[:, None])
    assert abs(GRID[np.argmax(mean), 0] - 0.8) < 0.1


def test_readings_decide_between_rival_models():
    def rivals(X):
        return np.column_stack([-truth(X), truth(X), np.sin(9 * X[:, 0])])

    model = Mixture(told(rivals, at=(0.1, 0.3, 0.6)), typical(1))
    assert model.most_evident == 1
    assert sum(weight for weight, _, _ in model.models) == pytest.approx(1)


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
    known = Readings.of(X, values, 0.05)
    smooth = typical(1)
    own = dataclasses.replace(smooth, cell_variance=0.05**2)
    at = np.array([[0.5], [0.45], [0.52]])
    plain, _ = Surrogate(known, smooth).posterior(at)
    mean, std = Surrogate(known, own).posterior(at)
    assert mean[0] - mean[1] > 1.5 * (plain[0] - plain[1])
    assert std[2] > std[0]  # what was not read may have something of its own, too
