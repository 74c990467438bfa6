"""Gains for people, and log ratios to compute with: one made from the other."""

from __future__ import annotations

import math

from autotune.trial import Gain
from autotune.tuning.steps.brackets import LogRatio

NINETY = 1.81
"""Standard deviations on each side of a 90 % interval: Student's t with 10 degrees of freedom, as
noise and surrogate are estimated from few readings themselves."""
LARGEST = 20.0
"""Largest log ratio of an interval."""
SMALLEST_GAIN = -1 + 1e-6
SMALLEST_STD = 1e-4


def gain_of(mean: float, std: float) -> Gain:
    """Return the gain of a log ratio with its 90 % interval.

    The estimate is drawn towards 0 by its own uncertainty, as in a certificate: the best of many
    readings is also the luckiest. The interval is not.

    Source: James and Stein (1961), Estimation with quadratic loss, in one dimension.
    """
    estimate = mean - std * (std / mean) if abs(mean) > std else 0.0
    low, high = mean - NINETY * std, min(mean + NINETY * std, LARGEST)
    estimate = min(max(estimate, low), high)
    return Gain(estimate=math.expm1(estimate), low=math.expm1(low), high=math.expm1(high))


def log_ratio_of(gain: Gain) -> LogRatio:
    """Return the log ratio of a gain that was shown: the middle of its interval, and its width."""
    low, high = (math.log1p(max(bound, SMALLEST_GAIN)) for bound in (gain.low, gain.high))
    std = max((high - low) / (2 * NINETY), SMALLEST_STD)
    return LogRatio(mean=(low + high) / 2, variance=std**2)
