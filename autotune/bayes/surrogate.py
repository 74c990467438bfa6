"""The surrogate: a Gaussian process over the unit cube around what a trend expects.

``value = location + weight * trend + g(x) + noise``: the weight of the trend is uncertain and
integrated out, so a trend that is wrong is discounted as soon as readings contradict it. All
quantities are log ratios: 0.01 is one percent. Every reading has a variance of its own; one factor
on all of them is learned.

scikit-optimize and scikit-learn do the arithmetic: one kernel (below) says how settings are related
and ``GaussianProcessRegressor`` gives the posterior, the evidence and the search for the constants.
With five to twenty readings the maximum of the likelihood is often absurd (no noise at all, a
length scale of nothing), so what is maximised is the posterior density under weak priors that stand
below.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.bayes.encoding import FloatArray

if TYPE_CHECKING:
    from sklearn.gaussian_process import GaussianProcessRegressor

TYPICAL_NOISE = 0.02
"""Standard deviation of one reading where nothing is known about it."""
TYPICAL_SIGNAL = 0.15
LENGTH_SCALE_BOUNDS = (0.1, 5.0)
SIGNAL_VARIANCE_BOUNDS = (1e-4, 1.0)
NOISE_FACTOR_BOUNDS = (0.05, 20.0)
LENGTH_SCALE_PRIOR = (0.6, 0.6)
"""Median, and standard deviation of the logarithm."""
SIGNAL_SPREAD = 1.2
NOISE_SPREAD = 0.8
"""Standard deviations of the logarithm of the signal's variance and of the factor on the noise."""
WEIGHT_PRIOR = (0.8, 0.4)
"""Mean and standard deviation of the weight of a trend's column."""
SMALLEST_WEIGHT = 0.01
"""Models less probable than this are left out."""
MOST_EVALUATIONS = 15
"""Of the likelihood, in one estimate; the next one goes on where it ended."""
JITTERS = (1e-9, 1e-6, 1e-4)
"""Added to the diagonal of the covariance; the next one where a factorisation fails."""


class SurrogateError(ArithmeticError):
    """The covariance could not be factorised, or the result is not finite."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Hyperparameters:
    """The GP's constants, in units of log ratios.

    Attributes:
        length_scales: ``(d,)``, in the unit cube.
        signal_variance: Prior variance of what is smooth.
        noise_factor: On the variances of all readings.
        cell_variance: Of what each setting has of its own, beside what is smooth.
        model: The trend's column that explained the readings best.
    """

    length_scales: FloatArray
    signal_variance: float
    noise_factor: float = 1.0
    cell_variance: float = 0.0
    model: int = 0


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What was read.

    Attributes:
        X: ``(n, d)`` in the unit cube.
        values: ``(n,)`` finite log ratios.
        variances: ``(n,)`` of the readings, as far as they are known before.
        trend: ``(n, p)`` what the ``p`` rival models of the trend expect there; p is 0 without one.
    """

    X: FloatArray
    values: FloatArray
    variances: FloatArray
    trend: FloatArray

    def under(self, model: int) -> Readings:
        """Return these readings beside one of the trend's models only."""
        return replace(self, trend=self.trend[:, model : model + 1])

    @classmethod
    def of(cls, X: FloatArray, values: FloatArray, noise: float = TYPICAL_NOISE) -> Readings:
        """Return readings of equal ``noise`` (standard deviation), without a trend."""
        n = len(values)
        return cls(X=X, values=values, variances=np.full(n, noise**2), trend=np.zeros((n, 0)))


def typical(d: int) -> Hyperparameters:
    """Return the constants that are assumed before anything was read."""
    return Hyperparameters(
        length_scales=np.full(d, LENGTH_SCALE_PRIOR[0]), signal_variance=TYPICAL_SIGNAL**2
    )


def unrelated(d: int) -> Hyperparameters:
    """Return constants under which no setting says anything about another."""
    return Hyperparameters(
        length_scales=np.full(d, LENGTH_SCALE_BOUNDS[0]), signal_variance=TYPICAL_SIGNAL**2
    )


@cache
def _kernel_class() -> type[Any]:
    """Return the kernel; a class within a function, because scikit-optimize imports for a second.

    Its rows are ``(d + 2,)``: a point of the unit cube, what the trend expects there, the variance
    of the reading (0: the noise-free log ratio). Its covariance is the sum of

    * ``signal_variance`` times Matern 5/2 with a length scale per dimension (Rasmussen and Williams
      (2006), Gaussian Processes for Machine Learning, eq. 4.17),
    * ``cell_variance`` where two points are the same,
    * ``h h' std**2`` for a weight ``N(mean, std**2)`` of the trend's column (ibid., section 2.7),
    * ``noise_factor`` times the variances, on the diagonal.
    """
    from sklearn.gaussian_process.kernels import Hyperparameter
    from skopt.learning.gaussian_process.kernels import Matern

    class SettingKernel(Matern):  # type: ignore[misc]
        def __init__(
            self,
            length_scale: Any = 1.0,
            signal_variance: float = 1.0,
            noise_factor: float = 1.0,
            noise_factor_bounds: Any = NOISE_FACTOR_BOUNDS,
            cell_variance: float = 0.0,
        ) -> None:
            super().__init__(length_scale, LENGTH_SCALE_BOUNDS, nu=2.5)
            self.signal_variance = signal_variance
            self.noise_factor = noise_factor
            self.noise_factor_bounds = noise_factor_bounds
            self.cell_variance = cell_variance

        @property
        def hyperparameters(self) -> list[Any]:  # the base class searches all attributes for them
            return [
                self.hyperparameter_length_scale,
                self.hyperparameter_noise_factor,
                self.hyperparameter_signal_variance,
            ]

        @property
        def hyperparameter_noise_factor(self) -> Any:
            return Hyperparameter("noise_factor", "numeric", self.noise_factor_bounds)

        @property
        def hyperparameter_signal_variance(self) -> Any:
            return Hyperparameter("signal_variance", "numeric", SIGNAL_VARIANCE_BOUNDS)

        def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
            a, b = X[:, :-2], None if Y is None else Y[:, :-2]
            other = X if Y is None else Y
            correlation = super().__call__(a, b, eval_gradient)
            correlation, gradient = correlation if eval_gradient else (correlation, None)
            smooth = self.signal_variance * correlation
            K = smooth + WEIGHT_PRIOR[1] ** 2 * np.outer(X[:, -2], other[:, -2])
            if self.cell_variance > 0:
                K += self.cell_variance * (correlation > 1 - 1e-12)
            noise = self.noise_factor * X[:, -1]
            if Y is None:
                K[np.diag_indices_from(K)] += noise
            if gradient is None:
                return K
            parts = [self.signal_variance * gradient, smooth[:, :, None]]
            if not self.hyperparameter_noise_factor.fixed:
                parts.insert(1, np.diag(noise)[:, :, None])
            return K, np.concatenate(parts, axis=2)

        def diag(self, X: Any) -> Any:
            variance = self.signal_variance + self.cell_variance + self.noise_factor * X[:, -1]
            return variance + WEIGHT_PRIOR[1] ** 2 * np.square(X[:, -2])

    return SettingKernel


def _kernel(hyper: Hyperparameters, *, is_noise_fixed: bool = False) -> Any:
    return _kernel_class()(
        length_scale=hyper.length_scales,
        signal_variance=hyper.signal_variance,
        noise_factor=hyper.noise_factor,
        noise_factor_bounds="fixed" if is_noise_fixed else NOISE_FACTOR_BOUNDS,
        cell_variance=hyper.cell_variance,
    )


@cache
def _threads() -> Any:
    """Return what knows the threads of linear algebra; looking for them takes milliseconds."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


@contextmanager
def _quietly() -> Iterator[None]:
    """Let the libraries work on small matrices.

    One thread: several make matrices this small five times slower. No checks of the input: they
    take longer than the arithmetic; results are checked where they matter. No warnings: a constant
    at its bound, a flat likelihood and a variance of -1e-18 are expected with five readings.
    """
    import sklearn

    with (
        warnings.catch_warnings(),
        _threads().limit(limits=1),
        sklearn.config_context(assume_finite=True, skip_parameter_validation=True),
    ):
        warnings.simplefilter("ignore")
        yield


def _fitted(
    kernel: Any, readings: Readings, optimizer: Callable[..., Any] | None = None
) -> GaussianProcessRegressor:
    """Return the regressor of ``readings`` beside at most one trend's column.

    Raises:
        SurrogateError: The covariance cannot be factorised, whatever is added to its diagonal.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor

    y = readings.values - readings.values.mean()
    rows = np.column_stack([readings.X, np.zeros(len(y)), readings.variances])
    if readings.trend.shape[1] > 0:
        rows[:, -2] = readings.trend[:, 0] - readings.trend[:, 0].mean()
        y = y - WEIGHT_PRIOR[0] * rows[:, -2]
    for jitter in JITTERS:
        model = GaussianProcessRegressor(kernel, alpha=jitter, optimizer=optimizer)
        try:
            with _quietly():
                model.fit(rows, y)
        except (np.linalg.LinAlgError, ValueError):
            continue
        found = [*model.alpha_, *model.kernel_.theta, model.log_marginal_likelihood_value_]
        if np.isfinite(found).all():
            return model
    raise SurrogateError("the covariance of the readings cannot be factorised")


def estimate(
    readings: Readings,
    *,
    noise_factor: float | None = None,
    start: Hyperparameters | None = None,
) -> Hyperparameters:
    """Return the most probable constants.

    Args:
        readings: What was read, beside at most one trend's column.
        noise_factor: Fixed factor on the variances; None: learned.
        start: Where the search for them starts; None: at the centre of their priors.

    Raises:
        SurrogateError: The constants cannot be estimated.

    Source: Rasmussen and Williams (2006), eq. 5.8 and 5.9 for the likelihood.
    """
    start = start or typical(readings.X.shape[1])
    if noise_factor is not None:
        start = replace(start, noise_factor=noise_factor)
    kernel = _kernel(start, is_noise_fixed=noise_factor is not None)
    model = _fitted(kernel, readings, partial(_most_probable, kernel=kernel))
    found = model.kernel_
    return replace(
        start,
        length_scales=np.broadcast_to(found.length_scale, start.length_scales.shape).astype(float),
        signal_variance=float(found.signal_variance),
        noise_factor=float(found.noise_factor),
    )


def _most_probable(
    objective: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    bounds: FloatArray,
    *,
    kernel: Any,
) -> tuple[FloatArray, float]:
    """Return the minimum of ``objective`` (minus log likelihood) minus the log prior."""
    from scipy.optimize import minimize

    centre, spread = _log_priors(kernel)

    def penalised(theta: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = objective(theta)
        away = (theta - centre) / spread
        return float(value) + 0.5 * float(away @ away), np.asarray(gradient) + away / spread

    options = {"ftol": 1e-3, "maxfun": MOST_EVALUATIONS}
    start = np.clip(start, bounds[:, 0], bounds[:, 1])
    found = minimize(penalised, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
    return found.x, float(found.fun)


def _log_priors(kernel: Any) -> tuple[FloatArray, FloatArray]:
    """Return median and spread of the logarithms of the constants, in the kernel's order."""
    median, scale_spread = LENGTH_SCALE_PRIOR
    centres = {
        "length_scale": (math.log(median), scale_spread),
        "noise_factor": (0.0, NOISE_SPREAD),
        "signal_variance": (2 * math.log(TYPICAL_SIGNAL), SIGNAL_SPREAD),
    }
    rows = [
        centres[one.name]
        for one in kernel.hyperparameters
        if not one.fixed
        for _ in range(one.n_elements)
    ]
    table = np.array(rows)
    return table[:, 0], table[:, 1]


class Surrogate:
    """What the readings say about every setting, beside at most one trend's column.

    Attributes:
        readings: What was read.
        evidence: Log marginal likelihood of the readings, the trend's weight integrated out;
            higher is better. Source: Rasmussen and Williams (2006), eq. 2.30.
    """

    def __init__(self, readings: Readings, hyper: Hyperparameters) -> None:
        """Factorise the covariance of the readings.

        Raises:
            SurrogateError: That is not possible.
        """
        self.readings = readings
        self._model = _fitted(_kernel(hyper), readings)
        self.evidence = float(self._model.log_marginal_likelihood_value_)

    def posterior(
        self, points: FloatArray, trend: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return ``mean (m,)`` and ``std (m,)`` of the noise-free log ratio at ``points (m, d)``.

        Args:
            points: Settings in the unit cube.
            trend: ``(m, p)`` what the trend's model expects there; None without one.

        Source: Rasmussen and Williams (2006), algorithm 2.1.
        """
        rows, expected = self._rows(points, trend)
        with _quietly():
            mean, std = self._model.predict(rows, return_std=True)
        return expected + mean, std

    def covariance(
        self, points: FloatArray, other: FloatArray, trend: FloatArray, other_trend: FloatArray
    ) -> FloatArray:
        """Return the posterior covariance ``(m, k)`` of ``points (m, d)`` and ``other (k, d)``."""
        from scipy.linalg import cho_solve

        a, b = self._rows(points, trend)[0], self._rows(other, other_trend)[0]
        model = self._model
        kernel, X = model.kernel_, model.X_train_
        explained = cho_solve((model.L_, True), kernel(X, b), check_finite=False)
        result: FloatArray = kernel(a, b) - kernel(a, X) @ explained
        return result

    def _rows(self, points: FloatArray, trend: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return the kernel's rows ``(m, d + 2)`` and the mean without readings ``(m,)``."""
        m = len(points)
        rows = np.column_stack([points, np.zeros((m, 2))])
        if trend is not None and trend.shape[1] > 0:
            rows[:, -2] = trend[:, 0] - self.readings.trend[:, 0].mean()
        return rows, self.readings.values.mean() + WEIGHT_PRIOR[0] * rows[:, -2]


class Mixture:
    """The surrogates under each of the trend's models, weighted by how well they explain things.

    Attributes:
        models: (weight, number of the trend's column, surrogate); the weights add up to 1. Models
            that are hardly probable are left out.
    """

    def __init__(self, readings: Readings, hyper: Hyperparameters) -> None:
        """Weigh the models by their evidence; without a trend there is one.

        Raises:
            SurrogateError: The covariance of the readings cannot be factorised.
        """
        count = readings.trend.shape[1]
        rivals = [readings.under(k) for k in range(count)] or [readings]
        surrogates = [Surrogate(rival, hyper) for rival in rivals]
        evidence = np.array([one.evidence for one in surrogates])
        weights = np.exp(evidence - evidence.max())
        weights[weights < SMALLEST_WEIGHT * weights.sum()] = 0.0
        weights /= weights.sum()
        self.models = [
            (float(weight), k, surrogates[k]) for k, weight in enumerate(weights) if weight > 0
        ]

    @property
    def most_evident(self) -> int:
        """The trend's column that explains the readings best."""
        return max(self.models, key=lambda entry: entry[0])[1]

    def posterior(self, points: FloatArray, trend: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ``mean (m,)`` and ``std (m,)`` at ``points (m, d)``, given ``trend (m, p)``.

        Where the models disagree the standard deviation is larger than that of any of them.
        """
        outlook = Outlook(self, points, trend)
        return outlook.mean, outlook.std

    def joint(
        self, points: FloatArray, trend: FloatArray
    ) -> Iterator[tuple[float, FloatArray, FloatArray]]:
        """Yield weight, means ``(m,)`` and covariance ``(m, m)`` of ``points (m, d)`` by model."""
        for weight, k, surrogate in self.models:
            column = trend[:, k : k + 1]
            means, _ = surrogate.posterior(points, column)
            yield weight, means, surrogate.covariance(points, points, column, column)

    def difference(self, points: FloatArray, trend: FloatArray) -> tuple[float, float]:
        """Return mean and standard deviation of the first of two ``points (2, d)`` less the other.

        Args:
            points: Settings in the unit cube.
            trend: ``(2, p)`` what the trend's models expect there.
        """
        mean = square = 0.0
        for weight, means, C in self.joint(points, trend):
            gap = float(means[0] - means[1])
            variance = float(C[0, 0] + C[1, 1] - 2 * C[0, 1])
            mean += weight * gap
            square += weight * (gap * gap + max(variance, 0.0))
        return mean, math.sqrt(max(square - mean * mean, 0.0))


class Outlook:
    """The posterior at some points, while more and more of them are believed to have been read.

    A point is believed to read what it is expected to: no mean changes, and the standard deviations
    shrink.

    Source: Ginsbourger, Le Riche and Carraro (2010), Kriging is well-suited to parallelize
    optimization, section 4.2 ("kriging believer"); Chevalier, Ginsbourger and Emery (2014),
    Corrected kriging update formulae, for the update by one point.
    """

    def __init__(self, mixture: Mixture, points: FloatArray, trend: FloatArray) -> None:
        """Compute the posterior.

        Args:
            mixture: The models.
            points: ``(m, d)`` settings in the unit cube.
            trend: ``(m, p)`` what the trend's models expect there.
        """
        self._mixture, self._points, self._trend = mixture, points, trend
        found = [
            surrogate.posterior(points, trend[:, k : k + 1]) for _, k, surrogate in mixture.models
        ]
        self._weights = np.array([weight for weight, _, _ in mixture.models])[:, None]
        self._means = np.array([mean for mean, _ in found])
        self._variances = np.square(np.array([std for _, std in found]))
        self._shrunk: list[list[FloatArray]] = [[] for _ in mixture.models]

    @property
    def mean(self) -> FloatArray:
        """``(m,)``."""
        result: FloatArray = (self._weights * self._means).sum(axis=0)
        return result

    @property
    def std(self) -> FloatArray:
        """``(m,)``."""
        square = (self._weights * (np.square(self._means) + self._variances)).sum(axis=0)
        result: FloatArray = np.sqrt(np.maximum(square - np.square(self.mean), 0.0))
        return result

    def believe(self, row: int, variance: float) -> None:
        """Take a reading of the point ``row``, with this variance, as made."""
        at = slice(row, row + 1)
        for model, (_, k, surrogate) in enumerate(self._mixture.models):
            trend = self._trend[:, k : k + 1]
            covariance = surrogate.covariance(
                self._points, self._points[at], trend, trend[at]
            ).ravel()
            for earlier in self._shrunk[model]:
                covariance = covariance - earlier * earlier[row]
            shrunk = covariance / math.sqrt(max(covariance[row], 0.0) + variance)
            self._shrunk[model].append(shrunk)
            self._variances[model] = np.maximum(self._variances[model] - np.square(shrunk), 0.0)


def preload() -> None:
    """Import what ``estimate`` needs (more than a second) and fit once, ahead of its first call."""
    import scipy.special  # noqa: F401

    X = np.linspace(0.0, 1.0, 4)[:, None]
    readings = Readings.of(X, np.array([0.0, 0.1, 0.05, 0.02]))
    Mixture(readings, estimate(readings)).posterior(X, readings.trend)
