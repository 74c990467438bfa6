"""Is the tuned setting faster? Runs default and tuned in turn and compares steps within the jobs.

Notation: a *run* is one job; its *epoch median* is the median step time of one epoch; run A
(default) and run B (tuned) of equal seed are a *pair*. Start-up and the first epoch of each run are
left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Medians = NDArray[np.float64]
"""Epoch medians of one run in ms, shape (epochs,)."""

LEAST_PAIRS = 3


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result of the pairs.

    Attributes:
        default_ms, tuned_ms: Median over runs of the run's median step time.
        default_range, tuned_range: Fastest and slowest run.
        ratio: default / tuned, geometric mean over pairs; above 1: the tuned setting is faster.
        low, high: 95 % bootstrap interval of ``ratio``.
        pairs: Number of pairs.
    """

    default_ms: float
    tuned_ms: float
    default_range: tuple[float, float]
    tuned_range: tuple[float, float]
    ratio: float
    low: float
    high: float
    pairs: int

    def lines(self) -> list[str]:
        """Return the result for people."""
        return [
            f"default: {self.default_ms:6.2f} ms a step ({_between(self.default_range)})",
            f"tuned:   {self.tuned_ms:6.2f} ms a step ({_between(self.tuned_range)})",
            f"gain:    {_gain(self.ratio)} % over the default "
            f"(95 % interval {_gain(self.low)} to {_gain(self.high)})",
            f"verdict: {self.verdict()}",
        ]

    def verdict(self) -> str:
        """Return what these runs can say, and no more."""
        if self.pairs < LEAST_PAIRS:
            return f"{self.pairs} pairs are too few to say anything (at least {LEAST_PAIRS})"
        if self.low > 1:
            share = 100 * (1 - 1 / self.ratio)
            return f"the tuned setting is faster: a step takes {share:.1f} % less time"
        if self.high < 1:
            share = 100 * (1 / self.ratio - 1)
            return f"the tuned setting is slower: a step takes {share:.1f} % more time"
        return "no difference that these runs can show"


def read_medians(path: Path) -> Medians:
    """Return the epoch medians of a run, without its first epoch."""
    epochs = json.loads(path.read_text())["step_ms"]
    return np.array([np.median(epoch) for epoch in epochs[1:]])


def compare(
    default: Sequence[Medians], tuned: Sequence[Medians], rng: np.random.Generator
) -> Comparison:
    """Return the comparison of pairs (default[i], tuned[i]).

    The interval is a two-level bootstrap: pairs are drawn with replacement, and inside each pair
    the epochs of both runs (2,000 draws, 2.5 % and 97.5 % quantiles of the mean log ratio).
    """
    pairs = list(zip(default, tuned, strict=True))
    draws = _draws(pairs, rng, 2000)
    low, high = np.exp(np.quantile(draws, [0.025, 0.975]))
    ratio = np.exp(np.mean([_log_ratio(a, b) for a, b in pairs]))
    slow, fast = ([float(np.median(run)) for run in runs] for runs in (default, tuned))
    return Comparison(
        default_ms=float(np.median(slow)),
        tuned_ms=float(np.median(fast)),
        default_range=(min(slow), max(slow)),
        tuned_range=(min(fast), max(fast)),
        ratio=float(ratio),
        low=float(low),
        high=float(high),
        pairs=len(pairs),
    )


def _draws(
    pairs: Sequence[tuple[Medians, Medians]], rng: np.random.Generator, count: int
) -> NDArray[np.float64]:
    """Return ``count`` draws of the mean log ratio."""
    chosen = rng.integers(len(pairs), size=(count, len(pairs)))
    ratios = np.empty(chosen.shape)
    for number, (default, tuned) in enumerate(pairs):
        here = chosen == number
        again = (rng.choice(run, (int(here.sum()), len(run))) for run in (default, tuned))
        slow, fast = (np.log(np.median(runs, axis=1)) for runs in again)
        ratios[here] = slow - fast
    means: NDArray[np.float64] = ratios.mean(axis=1)
    return means


def _log_ratio(default: Medians, tuned: Medians) -> float:
    return float(np.log(np.median(default)) - np.log(np.median(tuned)))


def _gain(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"


def _between(bounds: tuple[float, float]) -> str:
    return f"runs {bounds[0]:.2f} to {bounds[1]:.2f}"
