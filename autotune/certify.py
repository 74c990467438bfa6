"""The certificate: fresh windows of default and incumbent in pairs, and a test on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.scoring import Reading
from autotune.trial import Certificate, Trial

ALPHA = 0.01
LOOKS = (6, 9, 13, 20)
"""Numbers of pairs after which the test looks; ``ALPHA`` is split evenly over the looks, which
keeps the whole error at most ``ALPHA`` however often it stops early (Bonferroni)."""
SCALE_OF_EQUALITY = 1e-6


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


def estimate(log_ratios: Sequence[float], alpha: float) -> Estimate:
    """Return mean and one-sided bounds, each at ``alpha``, of paired log-ratios ``(k,)``, k >= 2.

    Source: Student's paired t interval; on the log scale a ratio's error is symmetric.
    """
    from scipy.special import stdtrit

    values = np.asarray(log_ratios, dtype=float)
    mean = float(values.mean())
    spread = max(float(values.std(ddof=1)), SCALE_OF_EQUALITY) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, 1 - alpha)) * spread
    return Estimate(mean=mean, low=mean - half, high=mean + half)


class PairedTest:
    """Sequence of pairs with a decision at each look.

    Attributes:
        log_ratios: One per finished pair.
    """

    def __init__(self) -> None:
        """Start without a pair."""
        self.log_ratios: list[float] = []
        self._slow_default = 0
        self._slow_incumbent = 0

    @property
    def pairs(self) -> int:
        """Number of finished pairs."""
        return len(self.log_ratios)

    def add(self, *, default: float, incumbent: float, slow: tuple[int, int] = (0, 0)) -> None:
        """Record one pair of scores (bytes/us) and of slow steps (default, incumbent).

        A pair with an unusable score counts as equal: it proves nothing.
        """
        usable = default > 0 and incumbent > 0
        self.log_ratios.append(math.log(incumbent / default) if usable else 0.0)
        self._slow_default += slow[0]
        self._slow_incumbent += slow[1]

    def decision(self) -> bool | None:
        """Return True: certified; False: not; None: more pairs are needed.

        At a look before the last the test also gives up on an incumbent that is not even ahead.
        """
        if self.pairs not in LOOKS:
            return None
        result = estimate(self.log_ratios, ALPHA / len(LOOKS))
        if self._is_jumpy():
            return False
        if result.low > 0:
            return True
        hopeless = result.mean <= 0 and self.pairs > LOOKS[0]
        return False if hopeless or self.pairs == LOOKS[-1] else None

    def certificate(self, trial_id: int) -> Certificate:
        """Return the result of the comparison for the incumbent ``trial_id``."""
        certified = self.decision() is True
        result = estimate(self.log_ratios, ALPHA / len(LOOKS))
        low, high = math.expm1(result.low), math.expm1(result.high)
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
            alpha=ALPHA,
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
        self.test.add(default=default.score, incumbent=incumbent.score, slow=slow)
        return self.test.decision()


def no_certificate(reason: str, *, bound: float) -> Certificate:
    """Return the certificate of a run that compared nothing: the default stays.

    Args:
        reason: One sentence for people.
        bound: The largest gain that was possible.
    """
    return Certificate(
        trial_id=0,
        pairs=0,
        gain=0.0,
        gain_low=0.0,
        gain_high=bound,
        alpha=ALPHA,
        certified=False,
        reason=reason,
    )
