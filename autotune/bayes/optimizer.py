"""``BayesianOptimizer``: ``ask`` for the next setting, ``tell`` what it gained."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.bayes.acquisition import expected_improvement
from autotune.bayes.encoding import FloatArray, SearchSpace
from autotune.bayes.initial_design import initial_design
from autotune.bayes.surrogate import (
    TYPICAL_NOISE,
    Hyperparameters,
    Mixture,
    Outlook,
    Readings,
    SurrogateError,
    estimate,
    typical,
    unrelated,
)
from autotune.bayes.trend import InterpolatedTrend, Trend
from autotune.trial import Setting

WORST_RATIO = 10.0
"""Anything worse than a tenth of the best is only "bad"."""
KNEE = 0.25
"""Log ratios are compressed from about here below the best: how bad would bend the surrogate."""
OF_ITS_OWN = 0.02
"""Standard deviation of what a setting has of its own: where readings decide which of the settings
that were tried is the best, its neighbours count less than its own readings. The search does
without: there is always something of its own to find, and it would never end."""
PESSIMISM = 1.64
"""Standard deviations below the mean that a setting may turn out: one in twenty is worse."""
SMALLEST_VARIANCE = 1e-8
"""A reading is never more certain than to a hundredth of a percent."""
LARGEST_VARIANCE = 1.0
NO_EFFECT = 0.005
"""A parameter whose value changes less than this has no effect."""

Price = Callable[[FloatArray], FloatArray]
"""Steps of the default that a trial costs beside its own, by step time over the default's."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A setting worth trying.

    Attributes:
        params: The setting.
        improvement: Expected gain over the incumbent (0.01: one percent); infinite in the initial
            design.
        worst_ratio: Step time over the default's that it may turn out to have.
    """

    params: Setting
    improvement: float
    worst_ratio: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Incumbent:
    """The best setting so far by posterior mean.

    Attributes:
        params: The setting; always one that was told and not rejected, or the default.
        gain: Its posterior mean over the default: ``score / score of the default - 1``.
        std: Standard deviation of the logarithm of ``1 + gain``.
    """

    params: Setting
    gain: float
    std: float


@dataclass(frozen=True, kw_only=True)
class Simplified:
    """A setting without what has no effect.

    Attributes:
        params: The setting.
        no_effect: Names of the parameters that were put back to their defaults, in that order.
    """

    params: Setting
    no_effect: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Told:
    """One reading of a setting: log ratio of its score over the default's, and its variance."""

    params: Setting
    log_ratio: float
    variance: float
    is_hearsay: bool = False


def compressed(values: FloatArray, best: float | FloatArray) -> FloatArray:
    """Return log ratios where what is far below ``best`` is drawn towards it."""
    result: FloatArray = best - KNEE * np.arcsinh((best - values) / KNEE)
    return result


def expanded(values: FloatArray, best: float) -> FloatArray:
    """Invert ``compressed``."""
    result: FloatArray = best - KNEE * np.sinh((best - values) / KNEE)
    return result


def stretch(values: FloatArray, best: float) -> FloatArray:
    """Return the derivative of ``expanded``: what a small difference there means outside."""
    result: FloatArray = np.cosh((best - values) / KNEE)
    return result


def usable(told: Sequence[Told]) -> FloatArray:
    """Return finite log ratios ``(n,)``: those that are not finite count as the worst.

    Values below a tenth of the best are raised to it, see ``WORST_RATIO``.
    """
    values = np.array([one.log_ratio for one in told])
    values[~np.isfinite(values)] = -math.inf
    floor = max(0.0, values.max(initial=-math.inf)) - math.log(WORST_RATIO)
    result: FloatArray = np.maximum(values, floor)
    return result


class BayesianOptimizer:
    """Proposes settings: the default, then an initial design, then by expected improvement.

    With a trend there is no initial design. ``ask``, ``incumbent`` and the other questions are
    pure: asking twice gives the same answer (what they cannot compute as they should they say in
    ``trouble``). ``tell``, ``amend``, ``reject``, ``expect``, ``learn`` and ``adopt`` change the
    state. Two optimizers built from equal generators and told the same agree.

    ``learn`` estimates the surrogate's constants and imports scikit-optimize, which takes a second.
    Where that must not delay the caller, ``snapshot().learn()`` runs elsewhere and its constants
    are handed back by ``adopt``.

    Attributes:
        space: The settings that may be proposed.
        constants: The surrogate's constants; None until ``learn`` or ``adopt``.
        noise: Standard deviation of the log ratio of one typical reading, as far as it is known.
        trouble: Why the surrogate is worse than it should be, in one sentence; None where it is
            not.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        rng: np.random.Generator,
        noise_variance: float | None = None,
        max_trials: int = 20,
    ) -> None:
        """Start without any reading.

        Args:
            space: The settings that may be proposed.
            rng: Decides the initial design; not used after construction.
            noise_variance: Fixed noise of one typical reading in units of the readings' variance;
                None: a factor on the variances that are told is learned.
            max_trials: Trials that will be made at most; at most half of them are initial design.
        """
        self.space = space
        self.constants: Hyperparameters | None = None
        self.noise = TYPICAL_NOISE
        self.trouble: str | None = None
        self._noise_variance = noise_variance
        count = min(len(space.dimensions) + 1, max(1, max_trials // 2), space.size - 1)
        self._design = [space.decode(k) for k in initial_design(space.candidates, count, rng=rng)]
        self._trend: Trend | None = None
        self._interpolated: list[InterpolatedTrend] = []
        self._typical = typical(len(space.dimensions))
        self._latest: tuple[tuple[object, ...], Mixture] | None = None
        self._told: list[Told] = []
        self._forgotten: set[int] = set()
        self._rejected: list[Setting] = []

    @property
    def tried(self) -> list[Setting]:
        """Different settings that were told, in the order of their first reading."""
        return list(dict.fromkeys(one.params for one in self._told if not one.is_hearsay))

    @property
    def _known_readings(self) -> list[Told]:
        return [one for k, one in enumerate(self._told) if k not in self._forgotten]

    @property
    def in_initial_design(self) -> bool:
        """Whether there are too few settings for a surrogate of one's own."""
        return len(self.tried) < 1 + len(self._design)

    # ---- telling --------------------------------------------------------------------------------

    def expect(self, trend: Trend) -> None:
        """Search around what ``trend`` expects, and skip the initial design."""
        self._trend, self._design, self._interpolated = trend, [], []

    def tell(
        self,
        params: Setting,
        log_ratio: float,
        variance: float | None = None,
        *,
        is_hearsay: bool = False,
    ) -> int:
        """Record one reading; a setting may be read several times.

        Args:
            params: The setting.
            log_ratio: Logarithm of its score over the default's near it in time; higher is better
                and 0.01 is one percent; what is not finite counts as the worst. The default's is 0.
            variance: Of this reading: 0 for the default, which defines the scale; None: that of a
                typical one (``noise``).
            is_hearsay: Another job's: it says where to look, and its setting was not tried here.

        Returns:
            The number of the reading, for ``amend`` and ``forget``.
        """
        told = self._reading(params, log_ratio, variance)
        self._told.append(replace(told, is_hearsay=is_hearsay))
        return len(self._told) - 1

    def forget(self, index: int) -> None:
        """Leave out the reading that ``tell`` numbered ``index``."""
        self._forgotten.add(index)

    def amend(self, index: int, log_ratio: float, variance: float | None = None) -> None:
        """Replace the reading that ``tell`` numbered ``index``: more is known about it now."""
        known = self._told[index]
        told = self._reading(known.params, log_ratio, variance)
        self._told[index] = replace(told, is_hearsay=known.is_hearsay)

    def _reading(self, params: Setting, log_ratio: float, variance: float | None) -> Told:
        known = self.noise**2 if variance is None else variance
        if not math.isfinite(known):
            known = LARGEST_VARIANCE
        known = min(max(known, SMALLEST_VARIANCE), LARGEST_VARIANCE)
        return Told(params=params, log_ratio=log_ratio, variance=known)

    def reject(self, params: Setting) -> None:
        """Record that ``params`` (wrong results, no score) must never be the incumbent."""
        self._rejected.append(params)
        if params not in self.tried:
            self.tell(params, -math.inf)

    def learn(self) -> None:
        """Estimate the surrogate's constants; does nothing in the initial design."""
        if len(self.tried) < 3 or self.in_initial_design:
            return
        model = self._model().most_evident if self.constants is None else self.constants.model
        constants = self._estimated(self._readings(), model)
        mixture = self._model_under(constants)
        self.constants = replace(constants, model=mixture.most_evident)
        self._latest = (self._key(self.constants, 0.0), mixture)

    def _estimated(self, readings: Readings, model: int) -> Hyperparameters:
        """Return the constants under one of the trend's models; typical ones where that fails."""
        for start in (self.constants, None):
            try:
                return estimate(
                    readings.under(model), noise_factor=self._fixed_noise(readings), start=start
                )
            except SurrogateError as error:
                self.trouble = f"the surrogate has typical constants: {error}"
        return self._typical

    def adopt(self, constants: Hyperparameters | None) -> None:
        """Use ``constants`` that a snapshot learned; None keeps the present ones."""
        self.constants = constants or self.constants

    def snapshot(self) -> BayesianOptimizer:
        """Return an independent copy, e.g. to ask in another thread while this one is told more."""
        twin = copy.copy(self)
        twin._told, twin._rejected = list(self._told), list(self._rejected)
        twin._forgotten = set(self._forgotten)
        return twin

    # ---- asking ---------------------------------------------------------------------------------

    def ask(self, pending: Sequence[Setting] = (), price: Price | None = None) -> Proposal | None:
        """Return the next setting, or None when every setting was tried.

        Args:
            pending: Settings whose reading is still out; they are not proposed again.
            price: What a trial may cost; where two settings promise the same, the cheaper one is
                proposed. None: nothing.
        """
        return next(iter(self.ask_many(pending, price, 1)), None)

    def ask_many(
        self, pending: Sequence[Setting] = (), price: Price | None = None, count: int = 1
    ) -> list[Proposal]:
        """Return the next ``count`` settings, or fewer where all others were tried.

        Each is chosen as if those before it had been read, at the cost of nearly one ``ask``.

        Args:
            pending: As in ``ask``.
            price: As in ``ask``.
            count: Settings wanted.
        """
        if not self.tried:  # the default defines the scale: nothing need be waited for
            twin = self.snapshot()
            twin.tell(self.space.default, 0.0, 0.0)
            first = [Proposal(params=self.space.default, improvement=math.inf)]
            if self.space.default in pending:
                return twin.ask_many(pending, price, count)
            return first + (twin.ask_many(pending, price, count - 1) if count > 1 else [])
        taken = [*self.tried, *pending]
        result = self._of_design(taken, count)
        taken += [proposal.params for proposal in result]
        free = self.space.untried(taken)
        if len(result) == count or len(free) == 0:
            return result
        believed = [params for params in taken if params not in self.tried]
        return result + self._ask_surrogate(free, believed, price, count - len(result))

    def proposal(self, params: Setting) -> Proposal:
        """Return a given setting as a proposal, with what it may turn out to cost."""
        mean, std = self._known([params])
        (ratio,) = self._ratios(mean - PESSIMISM * std)
        return Proposal(params=params, improvement=math.inf, worst_ratio=float(ratio))

    def incumbent(self, among: Sequence[Setting] | None = None) -> Incumbent:
        """Return the best setting by posterior mean; ties go to the default.

        Args:
            among: Settings that come into question; None: all that were tried.
        """
        tried = self.tried if among is None else [p for p in self.tried if p in among]
        settings = [params for params in tried if params not in self._rejected]
        if self.space.default not in settings:
            return Incumbent(params=self.space.default, gain=0.0, std=0.0)
        settings.sort(key=lambda params: params != self.space.default)
        mean, std = self.posterior(settings)
        best = int(np.argmax(mean))
        return Incumbent(
            params=settings[best], gain=math.expm1(mean[best] - mean[0]), std=float(std[best])
        )

    def rivals(self) -> list[tuple[Setting, float]]:
        """Return settings that were told with the probability-like weight of being the best.

        The weight is the expected improvement over the incumbent; the most promising ones first.
        """
        settings = [params for params in self.tried if params not in self._rejected]
        mean, std = self._known(settings)
        improvement = expected_improvement(mean, std, float(mean.max()))
        order = np.argsort(-improvement, kind="stable")
        return [(settings[int(k)], float(improvement[k])) for k in order]

    def means(self, settings: Sequence[Setting]) -> FloatArray:
        """Return the posterior means ``(k,)`` of the log ratios of ``settings`` to the default."""
        return self.posterior(settings)[0]

    def posterior(self, settings: Sequence[Setting]) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation ``(k,)`` of the log ratios to the default.

        Args:
            settings: ``k`` settings, whether they were read or not. The standard deviation is of
                the truth, not of a further reading.
        """
        mean, std = self._known(settings)
        return expanded(mean, self._best), std * stretch(mean, self._best)

    def difference(
        self, params: Setting, other: Setting, *, is_smooth: bool = True
    ) -> tuple[float, float]:
        """Return mean and standard deviation of the log ratio of ``params`` to ``other``.

        Above 0 ``params`` is faster. What the two have in common cancels, so the standard deviation
        is smaller than theirs alone would say.

        Args:
            params: A setting, whether it was read or not.
            other: What it is compared with.
            is_smooth: Leave out what each setting has of its own beside its neighbours.
        """
        model = self._model(cell_variance=0.0 if is_smooth else OF_ITS_OWN**2)
        mean = square = 0.0
        for weight, means, C in model.joint(*self._points([params, other])):
            wide, slope = expanded(means, self._best), stretch(means, self._best)
            gap = float(wide[0] - wide[1])
            signed = slope * np.array([1.0, -1.0])
            mean += weight * gap
            square += weight * (gap * gap + max(float(signed @ C @ signed), 0.0))
        return mean, math.sqrt(max(square - mean * mean, 0.0))

    def simplified(self, params: Setting) -> Simplified:
        """Put every parameter back to its default whose value has no effect.

        No effect: the default's value is expected to lose less than ``NO_EFFECT``, and less than a
        standard deviation of that difference. One parameter at a time, the one that loses least
        first.
        """
        names: list[str] = []
        while True:
            losses = [
                (loss, name)
                for name in self.space.names
                if (loss := self._loss_without(params, name)) is not None
            ]
            if not losses:
                return Simplified(params=params, no_effect=tuple(names))
            _, name = min(losses)
            names.append(name)
            params = self._without(params, name)

    def _without(self, params: Setting, name: str) -> Setting:
        return params.with_values({name: self.space.default.as_dict()[name]})

    def _loss_without(self, params: Setting, name: str) -> float | None:
        """Return what the default's value of a parameter loses; None where it is an effect."""
        simpler = self._without(params, name)
        if simpler == params or simpler in self._rejected:
            return None
        X, trend = self._points([params, simpler])
        model, best = self._model(), self._best
        mean, std = model.difference(X, trend)
        scale = float(stretch(model.posterior(X[:1], trend[:1])[0], best)[0])
        return mean * scale if mean * scale < NO_EFFECT and mean < std else None

    # ---- the surrogate --------------------------------------------------------------------------

    def _known(self, settings: Sequence[Setting]) -> tuple[FloatArray, FloatArray]:
        """Return the posterior of ``settings``, each with something of its own; compressed."""
        return self._model(cell_variance=OF_ITS_OWN**2).posterior(*self._points(settings))

    def _model(self, cell_variance: float = 0.0) -> Mixture:
        """Return the surrogate; it is kept until more is known."""
        key = self._key(self._hyper, cell_variance)
        if self._latest is None or self._latest[0] != key:
            self._latest = (key, self._model_under(self._hyper, cell_variance))
        return self._latest[1]

    def _key(self, constants: Hyperparameters, cell_variance: float) -> tuple[object, ...]:
        return (tuple(self._known_readings), constants, cell_variance, self._trend)

    def _model_under(self, constants: Hyperparameters, cell_variance: float = 0.0) -> Mixture:
        """Return the surrogate; where the constants do not work, with others that do.

        Raises:
            SurrogateError: None works.
        """
        readings = self._readings()
        for tried in (constants, self._typical):
            try:
                return Mixture(readings, replace(tried, cell_variance=cell_variance))
            except SurrogateError as error:
                self.trouble = f"the surrogate does without what it learned: {error}"
        return Mixture(readings, unrelated(len(self.space.dimensions)))

    def _of_design(self, taken: Sequence[Setting], count: int) -> list[Proposal]:
        """Return the next points of the initial design, at most ``count``."""
        missing = min(count, 1 + len(self._design) - len(set(taken)))
        if missing <= 0:
            return []
        known = {self.space.encode(params).tobytes() for params in taken}
        points = [p for p in self._design if self.space.encode(p).tobytes() not in known][:missing]
        if not points:
            return []
        mean, std = self._known(points)
        ratios = self._ratios(mean - PESSIMISM * std)
        return [
            Proposal(params=params, improvement=math.inf, worst_ratio=float(ratio))
            for params, ratio in zip(points, ratios, strict=True)
        ]

    def _ask_surrogate(
        self,
        free: NDArray[np.intp],
        pending: Sequence[Setting],
        price: Price | None,
        count: int,
    ) -> list[Proposal]:
        told, m = [*self.tried, *pending], len(free)
        X, trend = self._points(told)
        points = np.vstack([self.space.candidates[free], X])
        expected = np.vstack([self._expected_of_candidates[free], trend])
        outlook, noise = Outlook(self._model(), points, expected), self.noise**2
        for row in range(m + len(self.tried), m + len(told)):
            outlook.believe(row, noise)
        mean = outlook.mean
        best, open_rows = float(mean[m:].max()), np.ones(m, dtype=bool)
        result: list[Proposal] = []
        while True:
            std = outlook.std
            improvement = np.where(open_rows, expected_improvement(mean, std, best)[:m], -1.0)
            ratios = self._ratios((mean - PESSIMISM * std)[:m])
            worth = improvement if price is None else improvement / (1 + price(ratios))
            row = int(np.argmax(worth))
            result.append(
                Proposal(
                    params=self.space.decode(int(free[row])),
                    improvement=float(improvement.max()),
                    worst_ratio=float(ratios[row]),
                )
            )
            open_rows[row] = False
            if len(result) == count or not open_rows.any():
                return result
            outlook.believe(row, noise)
            best = max(best, float(mean[row]))

    def _ratios(self, low: FloatArray) -> FloatArray:
        """Return step times over the default's of settings with log ratios ``low (m,)``."""
        result: FloatArray = np.exp(np.minimum(-expanded(low, self._best), math.log(WORST_RATIO)))
        return result

    @property
    def _best(self) -> float:
        """The best log ratio that was read; the default's is 0."""
        told = self._known_readings
        return max(0.0, float(usable(told).max())) if told else 0.0

    def _fixed_noise(self, readings: Readings) -> float | None:
        """Return the factor on the variances that the caller fixed, if so."""
        if self._noise_variance is None:
            return None
        typical_one = float(np.median(readings.variances))
        return max(self._noise_variance * float(np.var(readings.values)), 1e-9) / typical_one

    @property
    def _hyper(self) -> Hyperparameters:
        return self.constants or self._typical

    def _readings(self) -> Readings:
        told = self._known_readings
        X, trend = self._points([one.params for one in told])
        values = compressed(usable(told), self._best)
        variances = np.array([one.variance for one in told])
        return Readings(X=X, values=values, variances=variances, trend=trend)

    def _points(self, settings: Sequence[Setting]) -> tuple[FloatArray, FloatArray]:
        """Return ``settings`` in the unit cube ``(k, d)`` and what the trend expects ``(k, p)``."""
        X = np.array([self.space.encode(params) for params in settings])
        trend = self._expectation
        return X, np.zeros((len(X), 0)) if trend is None else compressed(trend(X), trend.best)

    @property
    def _expected_of_candidates(self) -> FloatArray:
        """What the trend expects of all candidates ``(m, p)``."""
        trend = self._expectation
        if trend is None:
            return np.zeros((len(self.space.candidates), 0))
        return compressed(trend.of_candidates, trend.best)

    @property
    def _expectation(self) -> InterpolatedTrend | None:
        """What the trend expects; shared with all snapshots: whoever is first evaluates it."""
        if self._trend is not None and not self._interpolated:
            self._interpolated.append(InterpolatedTrend(self.space, self._trend))
        return self._interpolated[0] if self._interpolated else None
