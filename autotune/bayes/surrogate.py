"""The surrogate: a Gaussian process over the unit cube around what a prior model expects.

``value = location + prior @ weights + g(x) + noise``: the weights of the prior's columns are
learned, so a prior that is wrong is discounted as soon as readings contradict it. All quantities
are log scores: 0.01 is one percent.

scikit-optimize estimates the constants. With five to twenty readings the maximum of the likelihood
is often absurd (no noise at all, a length scale of nothing), so what is maximised is the posterior
density under weak priors that stand below. The surrogate's own posterior is a page of linear
algebra, kept here so that a setting whose reading is still out can be added without a new estimate,
and so that library quirks (warnings, negative variances, numpy scalars) end in this file.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.bayes.encoding import FloatArray

TYPICAL_NOISE = 0.02
"""Standard deviation of one reading where nothing is known about it."""
TYPICAL_SIGNAL = 0.15
LENGTH_SCALE_BOUNDS = (0.1, 5.0)
SIGNAL_VARIANCE_BOUNDS = (1e-4, 1.0)
NOISE_VARIANCE_BOUNDS = (1e-6, 1.0)
LENGTH_SCALE_PRIOR = (0.6, 0.6)
"""Median, and standard deviation of the logarithm."""
SIGNAL_SPREAD = 1.2
NOISE_SPREAD = 0.8
"""Standard deviations of the logarithm of the two variances."""
WEIGHT_PRIOR = (0.8, 0.4)
"""Mean and standard deviation of the weight of a prior's column."""
SMALLEST_WEIGHT = 0.01
"""Models less probable than this are left out."""
MOST_EVALUATIONS = 40
JITTER = 1e-9


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The GP's constants, in units of log scores.

    ``cell_variance``: of what each setting has of its own, beside what is smooth.
    """

    length_scales: FloatArray
    signal_variance: float
    noise_variance: float
    cell_variance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What was read.

    Attributes:
        X: ``(n, d)`` in the unit cube.
        values: ``(n,)`` finite log scores.
        shares: ``(n,)`` length of each reading's window, in units of a full one.
        prior: ``(n, p)`` what ``p`` rival prior models expect there; p is 0 without one.
    """

    X: FloatArray
    values: FloatArray
    shares: FloatArray
    prior: FloatArray

    def under(self, model: int) -> Readings:
        """Return these readings beside one of the prior's models only."""
        return replace(self, prior=self.prior[:, model : model + 1])

    @classmethod
    def of(cls, X: FloatArray, values: FloatArray) -> Readings:
        """Return readings of full windows, without a prior."""
        n = len(values)
        return cls(X=X, values=values, shares=np.ones(n), prior=np.zeros((n, 0)))


def typical(d: int, noise: float = TYPICAL_NOISE) -> Hyperparameters:
    """Return the constants that are assumed before anything was read."""
    return Hyperparameters(
        length_scales=np.full(d, LENGTH_SCALE_PRIOR[0]),
        signal_variance=TYPICAL_SIGNAL**2,
        noise_variance=noise**2,
    )


def matern52(a: FloatArray, b: FloatArray, length_scales: FloatArray) -> FloatArray:
    """Return the Matern 5/2 correlation ``(len(a), len(b))`` with one length scale per dimension.

    Source: Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, eq. 4.17.
    """
    difference = (a[:, None, :] - b[None, :, :]) / length_scales
    r = np.sqrt(5.0 * np.square(difference).sum(axis=2))
    result: FloatArray = (1.0 + r + r * r / 3.0) * np.exp(-r)
    return result


def covariance_of(a: FloatArray, b: FloatArray, hyper: Hyperparameters) -> FloatArray:
    """Return the prior covariance ``(len(a), len(b))`` of the noise-free log scores."""
    smooth = hyper.signal_variance * matern52(a, b, hyper.length_scales)
    if hyper.cell_variance == 0:
        return smooth
    same = np.abs(a[:, None, :] - b[None, :, :]).max(axis=2) < 1e-9
    result: FloatArray = smooth + hyper.cell_variance * same
    return result


def estimate(
    readings: Readings,
    *,
    noise_variance: float | None = None,
    noise: float = TYPICAL_NOISE,
    start: Hyperparameters | None = None,
) -> Hyperparameters:
    """Return the most probable constants.

    Args:
        readings: What was read.
        noise_variance: Fixed noise of one full window; None: learned.
        noise: Its standard deviation as far as it is known before; the centre of its prior.
        start: Where the search for them starts; None: at the centre of their priors.

    Source: Rasmussen and Williams (2006), eq. 5.8 and 5.9 for the likelihood.
    """
    from skopt.learning import GaussianProcessRegressor
    from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    d = readings.X.shape[1]
    centre, spread = _log_priors(typical(d, noise), noise_variance is not None)
    start = start or typical(d, noise)
    fixed = noise_variance is not None
    level = noise_variance if noise_variance is not None else start.noise_variance
    kernel = ConstantKernel(start.signal_variance, SIGNAL_VARIANCE_BOUNDS) * Matern(
        start.length_scales, [LENGTH_SCALE_BOUNDS] * d, nu=2.5
    ) + WhiteKernel(level, "fixed" if fixed else NOISE_VARIANCE_BOUNDS)
    model = GaussianProcessRegressor(
        kernel,
        alpha=JITTER + level * (1 / readings.shares - 1),
        normalize_y=False,
        optimizer=partial(_most_probable, centre=centre, spread=spread),
    )
    with warnings.catch_warnings(), threadpool_limits(limits=1):
        # Several threads of linear algebra make matrices this small five times slower.
        # A constant at its bound, a flat likelihood: expected with five readings.
        warnings.simplefilter("ignore")
        model.fit(readings.X, _residual(readings))
    fitted = model.kernel_
    return Hyperparameters(
        length_scales=np.broadcast_to(np.asarray(fitted.k1.k2.length_scale, dtype=float), (d,)),
        signal_variance=float(fitted.k1.k1.constant_value),
        noise_variance=float(fitted.k2.noise_level),
    )


def _log_priors(start: Hyperparameters, fixed: bool) -> tuple[FloatArray, FloatArray]:
    """Return median and spread of the logarithms of the constants, in the kernel's order."""
    d = len(start.length_scales)
    centre = [math.log(start.signal_variance), *np.log(start.length_scales)]
    spread = [SIGNAL_SPREAD, *[LENGTH_SCALE_PRIOR[1]] * d]
    if not fixed:
        centre, spread = [*centre, math.log(start.noise_variance)], [*spread, NOISE_SPREAD]
    return np.array(centre), np.array(spread)


def _most_probable(
    objective: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    bounds: FloatArray,
    *,
    centre: FloatArray,
    spread: FloatArray,
) -> tuple[FloatArray, float]:
    """Return the minimum of ``objective`` (minus log likelihood) minus the log prior."""
    from scipy.optimize import minimize

    def penalised(theta: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = objective(theta)
        away = (theta - centre) / spread
        return float(value) + 0.5 * float(away @ away), np.asarray(gradient) + away / spread

    options = {"ftol": 1e-4, "maxfun": MOST_EVALUATIONS}
    found = minimize(penalised, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
    return found.x, float(found.fun)


def _residual(readings: Readings) -> FloatArray:
    """Return what the prior does not explain, by ridge regression on its columns."""
    y: FloatArray = readings.values - readings.values.mean()
    if readings.prior.shape[1] == 0:
        return y
    H = readings.prior - readings.prior.mean(axis=0)
    mean, std = WEIGHT_PRIOR
    p = H.shape[1]
    precision = H.T @ H / TYPICAL_SIGNAL**2 + np.eye(p) / std**2
    weights = np.linalg.solve(precision, H.T @ y / TYPICAL_SIGNAL**2 + mean / std**2)
    result: FloatArray = y - H @ weights
    return result


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """What the readings say about every setting.

    Attributes:
        readings: What was read.
        hyper: The constants.
    """

    readings: Readings
    hyper: Hyperparameters

    @property
    def location(self) -> float:
        """The mean log score of all readings."""
        return float(self.readings.values.mean())

    def posterior(
        self, points: FloatArray, prior: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return ``mean (m,)`` and ``std (m,)`` of the noise-free log score at ``points (m, d)``.

        Args:
            points: Settings in the unit cube.
            prior: ``(m, p)`` what the prior model expects there; None without one.

        Source: Rasmussen and Williams (2006), algorithm 2.1, and eq. 2.41 and 2.42 for the weights.
        """
        known, hyper = self.readings, self.hyper
        covariance = covariance_of(known.X, known.X, hyper)
        noise = hyper.noise_variance / known.shares + JITTER
        L = np.linalg.cholesky(covariance + np.diag(noise))
        cross = covariance_of(known.X, points, hyper)
        V = np.linalg.solve(L, cross)
        u = np.linalg.solve(L, known.values - self.location)
        mean: FloatArray = self.location + V.T @ u
        variance = hyper.signal_variance + hyper.cell_variance - np.square(V).sum(axis=0)
        if prior is not None and known.prior.shape[1] > 0:
            more, extra = self._of_prior(L, V, u, prior)
            mean, variance = mean + more, variance + extra
        return mean, np.sqrt(np.maximum(variance, 0.0))

    def _of_prior(
        self, L: NDArray[Any], V: NDArray[Any], u: NDArray[Any], prior: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return what the prior's columns add to mean and variance ``(m,)``."""
        centre = self.readings.prior.mean(axis=0)
        W = np.linalg.solve(L, self.readings.prior - centre)
        mean, std = WEIGHT_PRIOR
        p = W.shape[1]
        A = W.T @ W + np.eye(p) / std**2
        weights = np.linalg.solve(A, W.T @ u + mean / std**2)
        R = (prior - centre) - V.T @ W
        more: FloatArray = R @ weights
        extra: FloatArray = np.einsum("mp,pm->m", R, np.linalg.solve(A, R.T))
        return more, extra

    def evidence(self) -> float:
        """Return the log marginal likelihood of the readings, up to a constant; higher is better.

        Source: Rasmussen and Williams (2006), eq. 2.43, with the weights integrated out.
        """
        known, hyper = self.readings, self.hyper
        H = known.prior - known.prior.mean(axis=0)
        mean, std = WEIGHT_PRIOR
        covariance = covariance_of(known.X, known.X, hyper)
        covariance += np.diag(hyper.noise_variance / known.shares + JITTER) + std**2 * H @ H.T
        L = np.linalg.cholesky(covariance)
        u = np.linalg.solve(L, known.values - self.location - mean * H.sum(axis=1))
        return float(-0.5 * u @ u - np.log(np.diag(L)).sum())


class Mixture:
    """The surrogates under each of the prior's models, weighted by how well they explain things.

    Attributes:
        models: (weight, surrogate); the weights add up to 1.
    """

    def __init__(self, readings: Readings, hyper: Hyperparameters) -> None:
        """Weigh the models by their evidence; without a prior there is one."""
        count = readings.prior.shape[1]
        rivals = [readings.under(k) for k in range(count)] or [readings]
        surrogates = [Surrogate(readings=rival, hyper=hyper) for rival in rivals]
        evidence = np.array([one.evidence() for one in surrogates]) if count > 1 else np.zeros(1)
        weights = np.exp(evidence - evidence.max())
        weights = weights / weights.sum()
        self.models = [(float(w), one) for w, one in zip(weights, surrogates, strict=True)]

    @property
    def most_evident(self) -> int:
        """The model that explains the readings best."""
        return int(np.argmax([weight for weight, _ in self.models]))

    def posterior(self, points: FloatArray, prior: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ``mean (m,)`` and ``std (m,)`` at ``points (m, d)``, given ``prior (m, p)``.

        Where the models disagree the standard deviation is larger than that of any of them.
        """
        mean, square = np.zeros(len(points)), np.zeros(len(points))
        for k, (weight, surrogate) in enumerate(self.models):
            if weight < SMALLEST_WEIGHT:
                continue
            one, std = surrogate.posterior(points, prior[:, k : k + 1])
            mean += weight * one
            square += weight * (one * one + std * std)
        return mean, np.sqrt(np.maximum(square - mean * mean, 0.0))


def preload() -> None:
    """Import what ``estimate`` needs (more than a second), ahead of its first call."""
    import skopt.learning
    import skopt.learning.gaussian_process.kernels  # noqa: F401
