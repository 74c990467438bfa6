"""``BayesianOptimizer``: ``ask`` for the next setting, ``tell`` its score."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.bayes.acquisition import expected_improvement
from autotune.bayes.encoding import FloatArray, SearchSpace
from autotune.bayes.initial_design import initial_design
from autotune.bayes.surrogate import Hyperparameters, Surrogate
from autotune.trial import CommParams

WORST_RATIO = 3.0
"""Anything worse than a third of the best score is only "bad": how bad would bend the surrogate."""
CLEAR_GAIN = 0.1
"""Before there is a surrogate, a reading leads only if it beats the default by this log score."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A setting worth trying.

    Attributes:
        params: The setting.
        improvement: Expected gain over the incumbent (0.01: one percent); infinite in the initial
            design.
    """

    params: CommParams
    improvement: float


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


def log_scores(scores: Sequence[float]) -> FloatArray:
    """Return finite log scores ``(n,)``: unusable ones (NaN, infinite, <= 0) count as the worst.

    Values below a third of the best are raised to it, see ``WORST_RATIO``.
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

    ``ask`` and ``incumbent`` are pure: asking twice gives the same answer. ``tell``, ``reject``,
    ``learn`` and ``adopt`` change the state. Two optimizers built from equal generators and told
    the same agree.

    Only ``learn`` is expensive (it estimates the surrogate's constants and imports
    scikit-optimize). Where that must not delay the caller, ``snapshot().learn()`` runs elsewhere
    and its constants are handed back by ``adopt``; ``tell`` and ``incumbent`` then cost
    microseconds.

    Attributes:
        space: The settings that may be proposed.
        constants: The surrogate's constants; None until ``learn`` or ``adopt``.
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
            rng: Decides the initial design and the restarts; not used after construction.
            noise_variance: Fixed noise of one reading in units of the standardised scores; None:
                learned.
            max_trials: Trials that will be made at most; at most half of them are initial design.
        """
        self.space = space
        self.constants: Hyperparameters | None = None
        self._noise_variance = noise_variance
        count = min(len(space.dimensions) + 2, max(1, max_trials // 2), space.size - 1)
        self._design = [space.decode(k) for k in initial_design(space.candidates, count, rng=rng)]
        self._seed = int(rng.integers(2**31))
        self._settings: list[CommParams] = []
        self._scores: list[float] = []
        self._rejected: list[CommParams] = []

    @property
    def tried(self) -> list[CommParams]:
        """Different settings that were told, in the order of their first reading."""
        return list(dict.fromkeys(self._settings))

    @property
    def in_initial_design(self) -> bool:
        """Whether there are too few settings for a surrogate."""
        return len(self.tried) < 1 + len(self._design)

    def tell(self, params: CommParams, score: float) -> None:
        """Record one reading; a setting may be read several times.

        Args:
            params: The setting.
            score: bytes/us, higher is better; NaN, infinite and non-positive ones count as the
                worst.
        """
        self._settings.append(params)
        self._scores.append(score)

    def reject(self, params: CommParams) -> None:
        """Record that ``params`` (wrong results, no score) must never be the incumbent."""
        self._rejected.append(params)
        self.tell(params, 0.0)

    def learn(self) -> None:
        """Estimate the surrogate's constants; does nothing in the initial design."""
        if not self.in_initial_design:
            self.constants = self._estimate()

    def adopt(self, constants: Hyperparameters | None) -> None:
        """Use ``constants`` that a snapshot learned; None keeps the present ones."""
        self.constants = constants or self.constants

    def snapshot(self) -> BayesianOptimizer:
        """Return an independent copy, e.g. to ask in another thread while this one is told more."""
        twin = copy.copy(self)
        twin._settings, twin._scores = list(self._settings), list(self._scores)
        twin._rejected = list(self._rejected)
        return twin

    def ask(self, pending: Sequence[CommParams] = ()) -> Proposal | None:
        """Return the next setting, or None when every setting was tried.

        Args:
            pending: Settings whose reading is still out; they are not proposed again.
        """
        taken = [*self.tried, *pending]
        if not taken:
            return Proposal(params=self.space.default, improvement=math.inf)
        free = self.space.untried(taken)
        if len(free) == 0:
            return None
        design = self._next_design_point(taken)
        if design is not None:
            return Proposal(params=design, improvement=math.inf)
        return self._ask_surrogate(free, pending)

    def incumbent(self) -> Incumbent:
        """Return the best setting by posterior mean; ties go to the default."""
        settings = [params for params in self.tried if params not in self._rejected]
        if self.space.default not in settings:
            return Incumbent(params=self.space.default, score=0.0, gain=0.0)
        settings.sort(key=lambda params: params != self.space.default)
        mean = self._means(settings)
        best = int(np.argmax(mean))
        return Incumbent(
            params=settings[best],
            score=math.exp(mean[best]) if any(score > 0 for score in self._scores) else 0.0,
            gain=math.expm1(mean[best] - mean[0]),
        )

    def _next_design_point(self, taken: Sequence[CommParams]) -> CommParams | None:
        if len(set(taken)) >= 1 + len(self._design):
            return None
        known = {self.space.encode(params).tobytes() for params in taken}
        points = (p for p in self._design if self.space.encode(p).tobytes() not in known)
        return next(points, None)

    def _ask_surrogate(self, free: NDArray[np.intp], pending: Sequence[CommParams]) -> Proposal:
        surrogate = self._surrogate(self.constants or self._estimate())
        if pending:
            surrogate = surrogate.believing(np.array([self.space.encode(p) for p in pending]))
        best = float(np.max(surrogate.posterior(surrogate.X)[0]))
        mean, std = surrogate.posterior(self.space.candidates[free])
        improvement = expected_improvement(mean, std, best)
        row = int(np.argmax(improvement))
        params = self.space.decode(int(free[row]))
        return Proposal(params=params, improvement=float(improvement[row]))

    def _means(self, settings: Sequence[CommParams]) -> FloatArray:
        if self.constants is not None:
            points = np.array([self.space.encode(params) for params in settings])
            return self._surrogate(self.constants).posterior(points)[0]
        return self._cautious_means(settings)

    def _cautious_means(self, settings: Sequence[CommParams]) -> FloatArray:
        """Return plain means, where only a clear lead over the default (the first one) counts."""
        values = log_scores(self._scores)
        rows = [
            [v for p, v in zip(self._settings, values, strict=True) if p == s] for s in settings
        ]
        means = np.array([float(np.mean(row)) for row in rows])
        leads = means >= means[0] + CLEAR_GAIN
        return np.where(leads, means, np.minimum(means, means[0]))

    def _estimate(self) -> Hyperparameters:
        X, values = self._readings()
        return Surrogate.fit(X, values, noise_variance=self._noise_variance, seed=self._seed).hyper

    def _surrogate(self, constants: Hyperparameters) -> Surrogate:
        X, values = self._readings()
        return Surrogate.given(X, values, constants)

    def _readings(self) -> tuple[FloatArray, FloatArray]:
        X = np.array([self.space.encode(params) for params in self._settings])
        return X, log_scores(self._scores)
