"""The certificate: fresh windows of default and incumbent in pairs, and a test on them.

Each pair gives one log-ratio of step times. The test may stop after any pair (it is *anytime
valid*): under "the incumbent is not faster" it certifies with a probability of at most ``ALPHA``,
however long it runs and whenever it stops.

Stopping when the evidence suffices flatters the estimate. So a few more pairs are read after that,
and the estimate is shrunk by its own uncertainty.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.trial import Certificate, Trial
from autotune.tuning.scoring import Reading

ALPHA = 0.01
FEWEST_PAIRS = 6
MOST_PAIRS = 30
PAIRS_AFTER_PROOF = 2
"""Pairs read after the evidence suffices."""
EFFECT_PRECISION = 0.25
"""Prior precision of the effect (mean over standard deviation of a pair): 2 is typical."""
HABIT = 4
"""From so many slow steps on they are a habit of the machine, and count in the claimed gain."""
SMALLEST_SPREAD = 1e-6
LARGEST = 20.0
"""Largest log-ratio that is printed as a gain."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Log-ratio of step times, default over incumbent: above 0 the incumbent is faster."""

    mean: float
    low: float
    high: float

    @property
    def gain(self) -> float:
        """Return ``time(default) / time(incumbent) - 1``."""
        return math.expm1(self.mean)


@functools.cache
def critical_ratio(pairs: int, alpha: float) -> float:
    """Return the largest ``S**2 / V`` of ``pairs`` values that is no evidence at level ``alpha``.

    ``S`` is the sum of the values and ``V`` the sum of their squares. With a normal prior of
    precision ``g`` on the effect, and none on the scale, the Bayes factor against mean zero is
    ``sqrt(g / (n + g)) (1 - S**2 / ((n + g) V)) ** (-n / 2)``: a martingale that exceeds
    ``1 / (2 alpha)`` with a probability of at most ``2 alpha``, upwards and downwards alike.

    Source: Wang and Ramdas (2024), Anytime-valid t-tests and confidence sequences for Gaussian
    means with unknown variance, section 4 (after Lai 1976); Howard et al. (2021), Time-uniform,
    nonparametric, nonasymptotic confidence sequences, for mixtures of this kind.
    """
    g = EFFECT_PRECISION
    log_bar = 0.5 * math.log((pairs + g) / g) - math.log(2 * alpha)
    return (pairs + g) * -math.expm1(-2 * log_bar / pairs)


def confidence(log_ratios: Sequence[float], alpha: float) -> Estimate:
    """Return mean and bounds of the paired log-ratios ``(k,)``, each bound at ``alpha``.

    The bounds hold for all ``k`` at once; they are infinite while there are too few values.
    """
    values = np.asarray(log_ratios, dtype=float)
    n = len(values)
    mean = float(values.mean()) if n else 0.0
    ratio = critical_ratio(n, alpha) if n else 0.0
    if n < 2 or ratio >= n:
        return Estimate(mean=mean, low=-math.inf, high=math.inf)
    rest = max(float(np.square(values - mean).sum()), n * SMALLEST_SPREAD**2)
    half = math.sqrt(ratio * rest / (n * (n - ratio)))
    return Estimate(mean=mean, low=mean - half, high=mean + half)


def shrunk(log_ratios: Sequence[float]) -> float:
    """Return the mean of ``(k,)`` values, k >= 2, drawn towards 0 by its own uncertainty.

    Source: James and Stein (1961), Estimation with quadratic loss, in one dimension.
    """
    values = np.asarray(log_ratios, dtype=float)
    mean, variance = float(values.mean()), float(values.var(ddof=1)) / len(values)
    return mean * max(0.0, 1 - variance / mean**2) if mean else 0.0


def pairs_to_proof(log_ratios: Sequence[float], alpha: float, most: int) -> int:
    """Return how many pairs will be evidence if the values go on like this; ``most + 1``: too many.

    An optimistic guess: the mean is taken one standard error higher than it is.
    """
    values = np.asarray(log_ratios, dtype=float)
    spread = max(float(values.std(ddof=1)), SMALLEST_SPREAD)
    effect = float(values.mean()) / spread + 1 / math.sqrt(len(values))
    counts = range(len(values), most + 1)
    enough = (n for n in counts if n * effect**2 >= critical_ratio(n, alpha) * (1 + effect**2))
    return next(enough, most + 1) if effect > 0 else most + 1


class PairedTest:
    """Sequence of pairs with a decision after any of them.

    Attributes:
        log_ratios: One per finished pair.
        alpha: Probability of certifying an incumbent that is not faster, at most.
    """

    def __init__(self, alpha: float = ALPHA) -> None:
        """Start without a pair."""
        self.log_ratios: list[float] = []
        self.alpha = alpha
        self._low, self._high = -math.inf, math.inf
        self._proven_at: int | None = None
        self._slow_default = 0
        self._slow_incumbent = 0
        self._excess: list[tuple[float, float]] = []

    @property
    def pairs(self) -> int:
        """Number of finished pairs."""
        return len(self.log_ratios)

    def add(
        self,
        *,
        default: float,
        incumbent: float,
        slow: tuple[int, int] = (0, 0),
        excess: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Record one pair of windows; one with an unusable score counts as equal.

        Args:
            default: Score of the default's window, bytes/us.
            incumbent: Score of the incumbent's.
            slow: Their slow steps (default, incumbent), which do not count in the scores.
            excess: Shares by which these would make the mean step longer.
        """
        self._excess.append(excess)
        usable = default > 0 and incumbent > 0
        self.log_ratios.append(math.log(incumbent / default) if usable else 0.0)
        self._slow_default += slow[0]
        self._slow_incumbent += slow[1]
        bounds = confidence(self.log_ratios, self.alpha)
        self._low, self._high = max(self._low, bounds.low), min(self._high, bounds.high)
        if self._low > 0 and self._proven_at is None:
            self._proven_at = self.pairs

    def decision(self) -> bool | None:
        """Return True: certified; False: not; None: more pairs are needed.

        The test also gives up on an incumbent that will not be proven faster in time.
        """
        if self.pairs < FEWEST_PAIRS:
            return None
        if self._high <= 0 or self._is_jumpy():
            return False
        if self._proven_at is not None:
            enough = min(self._proven_at + PAIRS_AFTER_PROOF, MOST_PAIRS)
            return True if self.pairs >= enough else None
        if self.pairs >= MOST_PAIRS:
            return False
        needed = pairs_to_proof(self.log_ratios, self.alpha, MOST_PAIRS)
        return None if needed <= MOST_PAIRS else False

    def estimate(self) -> Estimate:
        """Return the gain so far, with the best bounds of all pairs so far."""
        mean = shrunk(self.log_ratios) if self.pairs > 1 else 0.0
        low, high = min(self._low, mean), max(self._high, mean)
        return Estimate(mean=min(max(mean + self._of_slow_steps(), low), high), low=low, high=high)

    def _of_slow_steps(self) -> float:
        """Return what the slow steps add to the log-ratio, where they are a habit.

        A few of them are chance: counting them in would only add noise.
        """
        if self._slow_default + self._slow_incumbent < HABIT:
            return 0.0
        default, incumbent = np.mean(self._excess, axis=0)
        return math.log1p(float(default)) - math.log1p(float(incumbent))

    def certificate(self, trial_id: int) -> Certificate:
        """Return the result of the comparison for the incumbent ``trial_id``."""
        certified = self.decision() is True
        result = self.estimate()
        low, high = math.expm1(result.low), math.expm1(min(result.high, LARGEST))
        interval = f"gain {result.gain:+.1%}, between {low:+.1%} and {high:+.1%}"
        if certified:
            reason = f"kept: {interval} in {self.pairs} pairs of windows"
        elif self._is_jumpy():
            reason = f"default kept: the incumbent has more slow steps ({interval})"
        else:
            reason = f"default kept: not proven faster in {self.pairs} pairs ({interval})"
        return Certificate(
            trial_id=trial_id,
            pairs=self.pairs,
            gain=result.gain,
            gain_low=low,
            gain_high=high,
            alpha=self.alpha,
            certified=certified,
            reason=reason,
        )

    def _is_jumpy(self) -> bool:
        # Slow steps are dropped from scores because they strike both alike; an excess of three
        # standard deviations of a Poisson count under the incumbent is its own doing.
        excess = self._slow_incumbent - self._slow_default
        return excess > 3 * math.sqrt(self._slow_incumbent + self._slow_default + 1)


class Comparison:
    """Which window to read next, and what the pairs say so far.

    Attributes:
        default, incumbent: The two trials that are compared.
        test: The test on their pairs.
    """

    def __init__(
        self,
        default: Trial,
        incumbent: Trial,
        *,
        rng: np.random.Generator,
        test: PairedTest | None = None,
    ) -> None:
        """Compare two different trials.

        Args:
            default: The trial with number 0.
            incumbent: The other one.
            rng: Decides the order within each pair.
            test: Takes the pairs and decides; None: the test for a certificate.
        """
        self.default = default
        self.incumbent = incumbent
        self.test = PairedTest() if test is None else test
        self._rng = rng
        self._arms: list[Trial] = []
        self._readings: dict[int, Reading] = {}

    def next_arm(self) -> Trial:
        """Return the trial whose window is read next; pair after pair."""
        if not self._arms:
            pair = [self.default, self.incumbent]
            self._arms = [pair[int(k)] for k in self._rng.permutation(2)]
        return self._arms[0]

    def take(self, reading: Reading) -> bool | None:
        """Take the reading of ``next_arm``; return the test's decision."""
        self._readings[self._arms.pop(0).trial_id] = reading
        if self._arms:
            return None
        default = self._readings[self.default.trial_id]
        incumbent = self._readings[self.incumbent.trial_id]
        slow = (default.slow_steps, incumbent.slow_steps)
        excess = (default.slow_excess, incumbent.slow_excess)
        self.test.add(default=default.score, incumbent=incumbent.score, slow=slow, excess=excess)
        return self.test.decision()


def no_certificate(reason: str, *, bound: float, alpha: float = ALPHA) -> Certificate:
    """Return the certificate of a run that compared nothing: the default stays.

    Args:
        reason: One sentence for people.
        bound: The largest gain that was possible.
        alpha: Error probability that the run was allowed.
    """
    return Certificate(
        trial_id=0,
        pairs=0,
        gain=0.0,
        gain_low=0.0,
        gain_high=bound,
        alpha=alpha,
        certified=False,
        reason=reason,
    )
