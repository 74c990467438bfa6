"""``BayesianOptimizer``: ``ask`` for the next setting, ``tell`` its score."""

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
    Readings,
    estimate,
    typical,
)
from autotune.trial import CommParams

WORST_RATIO = 10.0
"""Anything worse than a tenth of the best score is only "bad"."""
KNEE = 0.25
"""Log scores are compressed from about here below the best: how bad would bend the surrogate."""
OF_ITS_OWN = 0.03
"""Standard deviation of what a setting has of its own: where readings decide which of the settings
that were tried is the best, its neighbours count less than its own readings. The search does
without: there is always something of its own to find, and it would never end."""
PESSIMISM = 1.64
"""Standard deviations below the mean that a setting may turn out: one in twenty is worse."""

Prior = Callable[[CommParams], FloatArray]
"""What to expect of a setting: log scores ``(p,)``, up to a constant, of ``p`` rival models."""
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

    params: CommParams
    improvement: float
    worst_ratio: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Incumbent:
    """The best setting so far by posterior mean.

    Attributes:
        params: The setting; always one that was told and not rejected, or the default.
        score: Its posterior mean, bytes/us.
        gain: Over the default's posterior mean: ``score / default - 1``.
    """

    params: CommParams
    score: float
    gain: float


def compressed(values: FloatArray, best: float | FloatArray) -> FloatArray:
    """Return log scores where what is far below ``best`` is drawn towards it."""
    result: FloatArray = best - KNEE * np.arcsinh((best - values) / KNEE)
    return result


def expanded(values: FloatArray, best: float) -> FloatArray:
    """Invert ``compressed``."""
    result: FloatArray = best - KNEE * np.sinh((best - values) / KNEE)
    return result


def log_scores(scores: Sequence[float]) -> FloatArray:
    """Return finite log scores ``(n,)``: unusable ones (NaN, infinite, <= 0) count as the worst.

    Values below a tenth of the best are raised to it, see ``WORST_RATIO``.
    """
    usable = [
        math.log(score) if math.isfinite(score) and score > 0 else -math.inf for score in scores
    ]
    best = max(usable, default=-math.inf)
    if best == -math.inf:
        return np.zeros(len(usable))
    floor = best - math.log(WORST_RATIO)
    return np.array([max(value, floor) for value in usable])


class BayesianOptimizer:
    """Proposes settings: the default, then an initial design, then by expected improvement.

    With a prior there is no initial design. ``ask`` and ``incumbent`` are pure: asking twice gives
    the same answer. ``tell``, ``reject``, ``expect``, ``learn`` and ``adopt`` change the state. Two
    optimizers built from equal generators and told the same agree.

    Only ``learn`` is expensive (it estimates the surrogate's constants and imports
    scikit-optimize). Where that must not delay the caller, ``snapshot().learn()`` runs elsewhere
    and its constants are handed back by ``adopt``.

    Attributes:
        space: The settings that may be proposed.
        constants: The surrogate's constants; None until ``learn`` or ``adopt``.
        noise: Standard deviation of the log score of one full window, as far as it is known.
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
            noise_variance: Fixed noise of one reading in units of the readings' variance; None:
                learned.
            max_trials: Trials that will be made at most; at most half of them are initial design.
        """
        self.space = space
        self.constants: Hyperparameters | None = None
        self.noise = TYPICAL_NOISE
        self._noise_variance = noise_variance
        count = min(len(space.dimensions) + 1, max(1, max_trials // 2), space.size - 1)
        self._design = [space.decode(k) for k in initial_design(space.candidates, count, rng=rng)]
        self._prior: Prior | None = None
        self._prior_of_candidates: list[FloatArray] = []
        self._settings: list[CommParams] = []
        self._scores: list[float] = []
        self._shares: list[float] = []
        self._rejected: list[CommParams] = []

    @property
    def tried(self) -> list[CommParams]:
        """Different settings that were told, in the order of their first reading."""
        return list(dict.fromkeys(self._settings))

    @property
    def in_initial_design(self) -> bool:
        """Whether there are too few settings for a surrogate of one's own."""
        return len(self.tried) < 1 + len(self._design)

    def expect(self, prior: Prior) -> None:
        """Search around what ``prior`` expects, and skip the initial design."""
        self._prior, self._design, self._prior_of_candidates = prior, [], []

    def tell(self, params: CommParams, score: float, share: float = 1.0) -> None:
        """Record one reading; a setting may be read several times.

        Args:
            params: The setting.
            score: bytes/us, higher is better; NaN, infinite and non-positive ones count as the
                worst.
            share: Length of the window, in units of a full one.
        """
        self._settings.append(params)
        self._scores.append(score)
        self._shares.append(min(max(share, 0.05), 10.0))

    def reject(self, params: CommParams) -> None:
        """Record that ``params`` (wrong results, no score) must never be the incumbent."""
        self._rejected.append(params)
        if params not in self._settings:
            self.tell(params, 0.0)

    def learn(self) -> None:
        """Estimate the surrogate's constants; does nothing in the initial design."""
        if len(self.tried) >= 3 and not self.in_initial_design:
            self.constants = self._estimate()

    def adopt(self, constants: Hyperparameters | None) -> None:
        """Use ``constants`` that a snapshot learned; None keeps the present ones."""
        self.constants = constants or self.constants

    def snapshot(self) -> BayesianOptimizer:
        """Return an independent copy, e.g. to ask in another thread while this one is told more."""
        twin = copy.copy(self)
        twin._settings, twin._scores = list(self._settings), list(self._scores)
        twin._shares, twin._rejected = list(self._shares), list(self._rejected)
        return twin

    def ask(
        self, pending: Sequence[CommParams] = (), price: Price | None = None
    ) -> Proposal | None:
        """Return the next setting, or None when every setting was tried.

        Args:
            pending: Settings whose reading is still out; they are not proposed again.
            price: What a trial may cost; where two settings promise the same, the cheaper one is
                proposed. None: nothing.
        """
        taken = [*self.tried, *pending]
        if not taken:
            return Proposal(params=self.space.default, improvement=math.inf)
        free = self.space.untried(taken)
        if len(free) == 0:
            return None
        design = self._next_design_point(taken)
        if not self._settings:  # the default is being read: what it scores does not matter here
            twin = self.snapshot()
            twin.tell(self.space.default, 1.0)
            return twin.ask(pending, price)
        if design is not None:
            (ratio,) = self._worst_ratios([design])
            return Proposal(params=design, improvement=math.inf, worst_ratio=ratio)
        return self._ask_surrogate(free, pending, price)

    def incumbent(self) -> Incumbent:
        """Return the best setting by posterior mean; ties go to the default."""
        settings = [params for params in self.tried if params not in self._rejected]
        if self.space.default not in settings:
            return Incumbent(params=self.space.default, score=0.0, gain=0.0)
        settings.sort(key=lambda params: params != self.space.default)
        mean = self.means(settings)
        best = int(np.argmax(mean))
        return Incumbent(
            params=settings[best],
            score=math.exp(mean[best]) if any(score > 0 for score in self._scores) else 0.0,
            gain=math.expm1(mean[best] - mean[0]),
        )

    def rivals(self) -> list[tuple[CommParams, float]]:
        """Return settings that were told with the probability-like weight of being the best.

        The weight is the expected improvement over the incumbent; the most promising ones first.
        """
        settings = [params for params in self.tried if params not in self._rejected]
        mean, std = self._known(settings)
        improvement = expected_improvement(mean, std, float(mean.max()))
        order = np.argsort(-improvement, kind="stable")
        return [(settings[int(k)], float(improvement[k])) for k in order]

    def means(self, settings: Sequence[CommParams]) -> FloatArray:
        """Return the posterior means ``(k,)`` of the log scores of ``settings``."""
        mean, _ = self._known(settings)
        return expanded(mean, self._best_log_score)

    # ---- the surrogate --------------------------------------------------------------------------

    def _known(self, settings: Sequence[CommParams]) -> tuple[FloatArray, FloatArray]:
        """Return the posterior of ``settings``; cheap, because the prior counts once it is used.

        Evaluating the prior everywhere takes a second, which ``ask`` of a snapshot may spend.
        """
        one = copy.copy(self)
        if not self._prior_of_candidates:
            one._prior = None
        hyper = replace(one._hyper, cell_variance=OF_ITS_OWN**2)
        return Mixture(one._readings(), hyper).posterior(*one._points(settings))

    def _next_design_point(self, taken: Sequence[CommParams]) -> CommParams | None:
        if len(set(taken)) >= 1 + len(self._design):
            return None
        known = {self.space.encode(params).tobytes() for params in taken}
        points = (p for p in self._design if self.space.encode(p).tobytes() not in known)
        return next(points, None)

    def _ask_surrogate(
        self, free: NDArray[np.intp], pending: Sequence[CommParams], price: Price | None
    ) -> Proposal:
        pending = [params for params in pending if params not in self._settings]
        model = self._believing(pending)
        told = [*self.tried, *pending]
        best = float(np.max(model.posterior(*self._points(told))[0]))
        points = self.space.candidates[free]
        mean, std = model.posterior(points, self._expected_of_candidates[free])
        improvement = expected_improvement(mean, std, best)
        ratios = self._ratios(mean - PESSIMISM * std)
        worth = improvement if price is None else improvement / (1 + price(ratios))
        row = int(np.argmax(worth))
        return Proposal(
            params=self.space.decode(int(free[row])),
            improvement=float(improvement.max()),
            worst_ratio=float(ratios[row]),
        )

    def _believing(self, pending: Sequence[CommParams]) -> Mixture:
        """Return the surrogate as if ``pending`` had been read at their posterior mean.

        Source: Ginsbourger, Le Riche and Carraro (2010), Kriging is well-suited to parallelize
        optimization, section 4.2 ("kriging believer").
        """
        readings, hyper = self._readings(), self._hyper
        model = Mixture(readings, hyper)
        if not pending:
            return model
        points, prior = self._points(pending)
        mean, _ = model.posterior(points, prior)
        more = Readings(
            X=np.vstack([readings.X, points]),
            values=np.append(readings.values, mean),
            shares=np.append(readings.shares, np.ones(len(points))),
            prior=np.vstack([readings.prior, prior]),
        )
        return Mixture(more, hyper)

    def _worst_ratios(self, settings: Sequence[CommParams]) -> list[float]:
        mean, std = self._known(settings)
        return [float(ratio) for ratio in self._ratios(mean - PESSIMISM * std)]

    def _ratios(self, low: FloatArray) -> FloatArray:
        """Return step times over the default's of settings with log scores ``low (m,)``."""
        default = self.means([self.space.default])[0]
        gap = default - expanded(low, self._best_log_score)
        result: FloatArray = np.exp(np.minimum(gap, math.log(WORST_RATIO)))
        return result

    @property
    def _best_log_score(self) -> float:
        return float(np.max(log_scores(self._scores))) if self._scores else 0.0

    def _estimate(self) -> Hyperparameters:
        readings = self._readings()
        noise = self._noise_variance
        fixed = None if noise is None else noise * float(np.var(readings.values))
        chosen = readings.under(Mixture(readings, self._hyper).most_evident)
        return estimate(chosen, noise_variance=fixed, noise=self.noise, start=self.constants)

    @property
    def _hyper(self) -> Hyperparameters:
        return self.constants or typical(len(self.space.dimensions), self.noise)

    def _readings(self) -> Readings:
        X, prior = self._points(self._settings)
        values = compressed(log_scores(self._scores), self._best_log_score)
        return Readings(X=X, values=values, shares=np.array(self._shares), prior=prior)

    def _points(self, settings: Sequence[CommParams]) -> tuple[FloatArray, FloatArray]:
        """Return ``settings`` in the unit cube ``(k, d)`` and what the prior expects ``(k, p)``."""
        X = np.array([self.space.encode(params) for params in settings])
        if self._prior is None:
            return X, np.zeros((len(settings), 0))
        raw = np.array([self._prior(params) for params in settings])
        return X, compressed(raw, self._everywhere.max(axis=0))

    @property
    def _expected_of_candidates(self) -> FloatArray:
        """What the prior expects of all candidates ``(m, p)``."""
        if self._prior is None:
            return np.zeros((len(self.space.candidates), 0))
        return compressed(self._everywhere, self._everywhere.max(axis=0))

    @property
    def _everywhere(self) -> FloatArray:
        """What the prior says of all candidates ``(m, p)``: computed once, by whoever is first."""
        if not self._prior_of_candidates:
            assert self._prior is not None
            every = [self._prior(self.space.decode(k)) for k in range(len(self.space.candidates))]
            self._prior_of_candidates.append(np.array(every))
        return self._prior_of_candidates[0]
