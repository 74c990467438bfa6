"""The certificate: a test on fresh pairs of windows of default and incumbent.

Each pair gives one log-ratio of step times. The test may stop after any pair (it is *anytime
valid*): under "the incumbent is not faster" it certifies with a probability of at most ``ALPHA``,
however long it runs and whenever it stops.

Stopping when the evidence suffices flatters the estimate. So more pairs are read after that, until
the estimate is precise, and it is shrunk by its own uncertainty. What decides is the mean of all
pairs; the estimate that is told leans less on the few pairs between which the machine's speed has
changed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.trial import Certificate

ALPHA = 0.01
FEWEST_PAIRS = 6
MOST_PAIRS = 48
PAIRS_AFTER_PROOF = 2
"""Pairs read after the evidence suffices, at least."""
PRECISE_ENOUGH = 0.03
"""... or below this, where an earlier job has read the gain before, or where every change of the
setting costs steps."""
PRECISE, MOST_STRETCHED = 0.017, 1.4
"""... and until the standard error of the gain is below this; that of large gains may be larger."""
MOST_AFTER_PROOF = 40
"""... or until there are so many pairs."""
PAIRS_BEFORE_DOUBT = 16
"""Pairs before an incumbent is given up for want of evidence, where pairs are noisy."""
HUBER = 1.5
"""Robust standard deviations from the middle beyond which a pair counts less."""
EFFECT_PRECISION = 0.25
"""Prior precision of the effect (mean over standard deviation of a pair): 2 is typical."""
HABIT, CLEAR_HABIT = 4, 3.0
"""From so many slow steps on they may be a habit of one of the settings, and count in the claimed
gain if its pairs differ in them by so many standard errors."""
SMALLEST_SPREAD = 1e-6
SETTLED = 1e-10
"""Step of the middle, in robust standard deviations, below which it stays where it is."""
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


def middle(log_ratios: Sequence[float]) -> tuple[float, float]:
    """Return the middle of ``(k,)`` values, k >= 2, and its standard error.

    Values far from the middle count less. Few values, or values without scatter, have their mean.

    Source: Huber (1964), Robust estimation of a location parameter, section 3; the standard error
    as there, of the values drawn in over the share of those that were not.
    """
    values = np.asarray(log_ratios, dtype=float)
    n, mean = len(values), float(np.mean(values))
    centre = float(np.median(values))
    scale = 1.4826 * float(np.median(np.abs(values - centre)))
    if n < FEWEST_PAIRS or scale < SMALLEST_SPREAD:
        return mean, float(values.std(ddof=1)) / math.sqrt(n)
    half = HUBER * scale
    for _ in range(50):
        drawn = np.clip(values - centre, -half, half)
        step = float(drawn.mean())
        centre += step
        if abs(step) < SETTLED * scale:
            break
    share = max(float(np.mean(np.abs(drawn) < half)), 1 / n)
    return centre, math.sqrt(float(np.square(drawn).sum()) / (n - 1) / n) / share


def shrunk(log_ratios: Sequence[float]) -> float:
    """Return the middle of ``(k,)`` values, k >= 2, drawn towards 0 by its own uncertainty.

    Source: James and Stein (1961), Estimation with quadratic loss, in one dimension.
    """
    centre, error = middle(log_ratios)
    return centre * max(0.0, 1 - (error / centre) ** 2) if centre else 0.0


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

    def __init__(
        self, alpha: float = ALPHA, *, clip: float = math.inf, precise: float = PRECISE
    ) -> None:
        """Start without a pair.

        Args:
            alpha: Probability of certifying an incumbent that is not faster, at most.
            clip: Log-ratios beyond this count as this in the test, on both sides alike: what is
                symmetric without a gain stays so, and a change of speed between the windows of a
                pair cannot hide a gain. It must be known before the first pair.
            precise: Standard error of the gain from which on a proven one is precise enough.
        """
        self.log_ratios: list[float] = []
        self.alpha = alpha
        self._clip, self._precise = clip, precise
        self._low, self._high = -math.inf, math.inf
        self._is_not_faster = False
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
        log_ratio: float,
        *,
        slow: tuple[int, int] = (0, 0),
        excess: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Record one pair of windows; one that is not finite counts as equal.

        Args:
            log_ratio: Log of the default's step time over the incumbent's.
            slow: Slow steps (of the default, of the incumbent) that do not count in it.
            excess: Shares by which these would make the mean step longer.
        """
        self._excess.append(excess)
        self.log_ratios.append(log_ratio if math.isfinite(log_ratio) else 0.0)
        self._slow_default += slow[0]
        self._slow_incumbent += slow[1]
        bounds = confidence(self.log_ratios, self.alpha)
        clipped = confidence(self._clipped, self.alpha)
        self._low = max(self._low, bounds.low, clipped.low)
        self._high = min(self._high, bounds.high)
        self._is_not_faster = self._is_not_faster or clipped.high <= 0
        if clipped.low > 0 and self._proven_at is None:
            self._proven_at = self.pairs

    def decision(self) -> bool | None:
        """Return True: certified; False: not; None: more pairs are needed.

        The test also gives up on an incumbent that will not be proven faster in time.
        """
        if self.pairs < FEWEST_PAIRS:
            return None
        if self._is_refuted:
            return False
        if self._proven_at is not None:
            centre, error = middle(self.log_ratios)
            is_precise = error * min(math.exp(centre), MOST_STRETCHED) <= self._precise
            enough = is_precise or self.pairs >= MOST_AFTER_PROOF
            is_over = self.pairs >= self._proven_at + PAIRS_AFTER_PROOF and enough
            return True if is_over or self.pairs >= MOST_PAIRS else None
        if self.pairs >= MOST_PAIRS:
            return False
        centre, error = middle(self._clipped)
        if self.pairs < PAIRS_BEFORE_DOUBT and centre + error > 0 and error > PRECISE:
            return None
        needed = pairs_to_proof(self._clipped, self.alpha, MOST_PAIRS)
        return None if needed <= MOST_PAIRS else False

    @property
    def is_proven(self) -> bool:
        """Whether the pairs so far certify the incumbent, should there be no more of them."""
        if self.pairs < FEWEST_PAIRS or self._proven_at is None:
            return False
        return not self._is_refuted

    @property
    def _is_refuted(self) -> bool:
        return self._is_not_faster or self._high <= 0 or self._has_more_slow_steps()

    @property
    def _clipped(self) -> list[float]:
        return [min(max(ratio, -self._clip), self._clip) for ratio in self.log_ratios]

    def estimate(self) -> Estimate:
        """Return the gain so far, with the best bounds of all pairs so far."""
        mean = shrunk(self.log_ratios) if self.pairs > 1 else 0.0
        low, high = min(self._low, mean), max(self._high, mean)
        return Estimate(mean=min(max(mean + self._of_slow_steps(), low), high), low=low, high=high)

    def _of_slow_steps(self) -> float:
        """Return what the slow steps add to the log-ratio, where they are a setting's habit.

        A few of them are chance, and so is what both settings have alike: counting that in would
        only add noise.
        """
        if self._slow_default + self._slow_incumbent < HABIT:
            return 0.0
        logs = np.log1p(np.asarray(self._excess))
        differences = logs[:, 0] - logs[:, 1]
        mean = float(differences.mean())
        error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
        return mean if abs(mean) > CLEAR_HABIT * error else 0.0

    def certificate(self, trial_id: int) -> Certificate:
        """Return the result of the comparison for the incumbent ``trial_id``.

        Where the job ends before the test does, the pairs so far decide.
        """
        certified = self.is_proven
        result = self.estimate()
        low, high = math.expm1(result.low), math.expm1(min(result.high, LARGEST))
        interval = f"gain {result.gain:+.1%}, between {low:+.1%} and {high:+.1%}"
        if certified:
            end = "" if self.decision() else ", when the job ended"
            reason = f"kept: {interval} in {self.pairs} pairs of windows{end}"
        elif self._has_more_slow_steps():
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

    def _has_more_slow_steps(self) -> bool:
        # Slow steps are dropped from scores because they strike both alike; an excess of three
        # standard deviations of a Poisson count under the incumbent is its own doing. That does
        # not matter where the incumbent is proven faster with all of them counted in.
        excess = self._slow_incumbent - self._slow_default
        if excess <= 3 * math.sqrt(self._slow_incumbent + self._slow_default + 1):
            return False
        logs = np.log1p(np.asarray(self._excess))
        whole = np.asarray(self.log_ratios) + logs[:, 0] - logs[:, 1]
        clipped = np.clip(whole, -self._clip, self._clip)
        return confidence(clipped.tolist(), self.alpha).low <= 0


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
