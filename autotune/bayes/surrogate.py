"""The surrogate: a Gaussian process over the unit cube, with noise learned from the readings.

scikit-optimize estimates the constants (it maximises the marginal likelihood); the posterior itself
is a page of linear algebra, kept here so that a setting whose reading is still out can be added
without a new estimate, and so that library quirks (warnings, negative variances, numpy scalars) end
in this file.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from autotune.bayes.encoding import FloatArray

LENGTH_SCALE_BOUNDS = (0.15, 5.0)
SIGNAL_VARIANCE_BOUNDS = (0.25, 10.0)
NOISE_VARIANCE_BOUNDS = (1e-4, 1.0)
JITTER = 1e-9
SMALLEST_SCALE = 0.005
"""Log scores that all lie within half a percent are treated as equal but for noise."""


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The GP's constants, for standardised ``y``."""

    length_scales: FloatArray
    signal_variance: float
    noise_variance: float


def standardise(values: FloatArray) -> tuple[FloatArray, float, float]:
    """Return ``(y, location, scale)`` with ``values = location + scale * y``."""
    location = float(np.mean(values))
    scale = max(float(np.std(values)), SMALLEST_SCALE)
    return (values - location) / scale, location, scale


def matern52(a: FloatArray, b: FloatArray, length_scales: FloatArray) -> FloatArray:
    """Return the Matern 5/2 correlation ``(len(a), len(b))`` with one length scale per dimension.

    Source: Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, eq. 4.17.
    """
    difference = (a[:, None, :] - b[None, :, :]) / length_scales
    r = np.sqrt(5.0 * np.square(difference).sum(axis=2))
    result: FloatArray = (1.0 + r + r * r / 3.0) * np.exp(-r)
    return result


def estimate(
    X: FloatArray, y: FloatArray, *, noise_variance: float | None, seed: int
) -> Hyperparameters:
    """Return the constants that maximise the marginal likelihood.

    Args:
        X: ``(n, d)`` in the unit cube.
        y: ``(n,)`` standardised.
        noise_variance: Fixed noise, in units of ``y``; None: learned.
        seed: Of the restart of the likelihood's maximisation.

    Source: Rasmussen and Williams (2006), eq. 5.8 and 5.9.
    """
    from skopt.learning import GaussianProcessRegressor
    from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    d = X.shape[1]
    noise_bounds = NOISE_VARIANCE_BOUNDS if noise_variance is None else "fixed"
    kernel = ConstantKernel(1.0, SIGNAL_VARIANCE_BOUNDS) * Matern(
        np.full(d, 0.7), [LENGTH_SCALE_BOUNDS] * d, nu=2.5
    ) + WhiteKernel(0.1 if noise_variance is None else noise_variance, noise_bounds)
    model = GaussianProcessRegressor(
        kernel, alpha=JITTER, normalize_y=False, n_restarts_optimizer=1, random_state=seed
    )
    with warnings.catch_warnings(), threadpool_limits(limits=1):
        # Several threads of linear algebra make matrices this small five times slower.
        # A constant at its bound, a flat likelihood: expected with five readings.
        warnings.simplefilter("ignore")
        model.fit(X, y)
    fitted = model.kernel_
    return Hyperparameters(
        length_scales=np.broadcast_to(np.asarray(fitted.k1.k2.length_scale, dtype=float), (d,)),
        signal_variance=float(fitted.k1.k1.constant_value),
        noise_variance=float(fitted.k2.noise_level),
    )


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """What the readings say about every setting.

    Attributes:
        X: ``(n, d)``; y: ``(n,)``; hyper: the constants.
        location, scale: The log score is ``location + scale * y``.
    """

    X: FloatArray
    y: FloatArray
    hyper: Hyperparameters
    location: float
    scale: float

    @classmethod
    def fit(
        cls, X: FloatArray, values: FloatArray, *, noise_variance: float | None, seed: int
    ) -> Surrogate:
        """Return the surrogate of finite log scores ``values (n,)`` at ``X (n, d)``."""
        y, _, _ = standardise(values)
        hyper = estimate(X, y, noise_variance=noise_variance, seed=seed)
        return cls.given(X, values, hyper)

    @classmethod
    def given(cls, X: FloatArray, values: FloatArray, hyper: Hyperparameters) -> Surrogate:
        """Return the surrogate of the readings under known constants (cheap)."""
        y, location, scale = standardise(values)
        return cls(X=X, y=y, hyper=hyper, location=location, scale=scale)

    def posterior(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ``mean (m,)`` and ``std (m,)`` of the noise-free log score at ``points (m, d)``.

        Source: Rasmussen and Williams (2006), algorithm 2.1.
        """
        hyper = self.hyper
        covariance = hyper.signal_variance * matern52(self.X, self.X, hyper.length_scales)
        noise = (hyper.noise_variance + JITTER) * np.eye(len(self.X))
        L = np.linalg.cholesky(covariance + noise)
        cross = hyper.signal_variance * matern52(self.X, points, hyper.length_scales)
        V = np.linalg.solve(L, cross)
        mean = V.T @ np.linalg.solve(L, self.y)
        variance = np.maximum(hyper.signal_variance - np.square(V).sum(axis=0), 0.0)
        return self.location + self.scale * mean, self.scale * np.sqrt(variance)

    def believing(self, points: FloatArray) -> Surrogate:
        """Return this surrogate as if ``points (k, d)`` had been read at their posterior mean.

        Source: Ginsbourger, Le Riche and Carraro (2010), Kriging is well-suited to parallelize
        optimization, section 4.2 ("kriging believer").
        """
        mean, _ = self.posterior(points)
        X = np.vstack([self.X, points])
        return replace(self, X=X, y=np.append(self.y, (mean - self.location) / self.scale))


def preload() -> None:
    """Import what ``estimate`` needs (more than a second), ahead of its first call."""
    import skopt.learning
    import skopt.learning.gaussian_process.kernels  # noqa: F401
