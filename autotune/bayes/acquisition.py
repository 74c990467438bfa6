"""The acquisition: how much a further reading is expected to improve on what is known."""

from __future__ import annotations

import math

import numpy as np

from autotune.bayes.encoding import FloatArray


def normal_density(z: FloatArray) -> FloatArray:
    """Return the standard normal density at ``z (m,)``."""
    result: FloatArray = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return result


def normal_distribution(z: FloatArray) -> FloatArray:
    """Return the standard normal distribution function at ``z (m,)``."""
    from scipy.special import ndtr

    result: FloatArray = ndtr(z)
    return result


def expected_improvement(mean: FloatArray, std: FloatArray, best: float) -> FloatArray:
    """Return ``E[max(f - best, 0)]`` for ``f ~ N(mean, std**2)``; higher is better; never negative.

    ``best`` is the best *posterior mean* of the settings that were read, not the best reading: with
    noisy readings the highest is mostly luck, and measuring against it stops the search too early.

    Args:
        mean: ``(m,)`` posterior mean of the log score.
        std: ``(m,)`` posterior standard deviation; 0 is allowed.
        best: Posterior mean of the incumbent.

    Returns:
        ``(m,)``, in units of the log score: 0.01 is one percent.

    Source: Jones, Schonlau and Welch (1998), Efficient global optimization, eq. 15; the plug-in
    ``best`` as in Picheny, Wagner and Ginsbourger (2013), A benchmark of kriging-based infill
    criteria for noisy optimization, section 3.1.
    """
    gain = mean - best
    safe = np.maximum(std, 1e-12)
    z = np.clip(gain / safe, -38.0, 38.0)
    uncertain = gain * normal_distribution(z) + safe * normal_density(z)
    result: FloatArray = np.maximum(np.where(std > 1e-12, uncertain, gain), 0.0)
    return result
