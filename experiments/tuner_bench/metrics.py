"""What is reported of one run: everything from the truth, never from the noisy steps."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from job import Job
from policies.ending import Ending
from surfaces import FloatArray

from autotune.trial import CommParams

LOST_FROM = 200
"""The bound on lost time holds from this step on."""
WORSE = 0.005
STEPS_AT = np.unique(np.round(np.geomspace(10, 20_000, 60)).astype(int))
"""Steps at which curves are kept."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run.

    Attributes:
        policy, kind, surface, source, seed: What was run.
        trials, windows: Search trials; windows of the certificate.
        steps: Steps until the policy was done; unfinished runs: all of them.
        seconds: The same in simulated seconds.
        step_ms: Step time under the default.
        possible: Gain of the oracle over the default.
        gain: True gain of the final choice over the default.
        claimed: Gain that the policy claims.
        certified: Whether a certificate proved the final choice.
        regret: Of the final choice against the oracle.
        worse: Whether the final choice is more than 0.5 % slower than the default.
        lost: Largest share of the default's time lost at any moment after step 200.
        lost_allowed: The same without one abandoned step per trial.
        finished: Whether it ended by itself.
        params: The final choice.
    """

    policy: str
    kind: str
    surface: str
    source: str
    seed: int
    trials: int
    windows: int
    steps: int
    seconds: float
    step_ms: float
    possible: float
    gain: float
    claimed: float
    certified: bool
    regret: float
    worse: bool
    lost: float
    lost_allowed: float
    finished: bool
    params: str

    def as_dict(self) -> dict[str, Any]:
        rounded = {
            name: float(f"{value:.5g}") if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
        flags = {name: int(rounded[name]) for name in ("worse", "finished", "certified")}
        return {**rounded, **flags}


@dataclass(frozen=True, kw_only=True)
class Curves:
    """``(k,)`` at ``STEPS_AT``: regret of what would be kept, cumulative share of time lost."""

    regret: FloatArray
    lost: FloatArray


def slowness(job: Job, upto: int) -> FloatArray:
    """Return ``(upto,)``: how much slower the machine was in each step; 1 after the last."""
    made = job.slowness[:upto]
    return np.concatenate([made, np.ones(upto - len(made))])


def lost_share(job: Job, upto: int) -> FloatArray:
    """Return ``(upto,)``: time lost up to each step, as a share of the default's time so far.

    Both are the times that the machine would have taken for a step at that moment.
    """
    default, factors = job.surface.default_us, slowness(job, upto)
    excess = np.empty(upto)
    ends = [step for step, _ in job.changes[1:]] + [upto]
    for (start, params), end in zip(job.changes, ends, strict=True):
        excess[start:end] = job.surface.truth(params).step_us - default
    return np.cumsum(excess * factors) / np.cumsum(default * factors)


def measure(
    job: Job, ending: Ending, *, policy: str, kind: str, seed: int, steps: int
) -> tuple[Row, Curves]:
    """Return what a run that was done after ``steps`` steps comes to."""
    surface = job.surface
    default, oracle = surface.default_us, surface.oracle.step_us
    final = surface.truth(ending.params).step_us
    upto = max(job.steps, LOST_FROM + 1, int(STEPS_AT[-1]))
    lost, factors = lost_share(job, upto), slowness(job, upto)
    allowed = np.zeros(upto)
    for step, excess in job.abandoned:
        allowed[step:] += excess * factors[min(step, upto - 1)]
    free = lost - allowed / np.cumsum(default * factors)
    row = Row(
        policy=policy,
        kind=kind,
        surface=surface.name,
        source=surface.source,
        seed=seed,
        trials=ending.trials,
        windows=ending.windows,
        steps=steps,
        seconds=job.now_us / 1e6,
        step_ms=default / 1000,
        possible=default / oracle - 1,
        gain=default / final - 1,
        claimed=_claimed(job, ending),
        certified=ending.certified,
        regret=final / oracle - 1,
        worse=final > default * (1 + WORSE),
        lost=float(lost[LOST_FROM:].max()),
        lost_allowed=float(free[LOST_FROM:].max()),
        finished=ending.finished,
        params=_text(ending.params),
    )
    kept = np.full(upto, default)
    for step, params in [*job.recommendations, (steps, ending.params)]:
        kept[step:] = surface.truth(params).step_us
    at = STEPS_AT - 1
    return row, Curves(regret=kept[at] / oracle - 1, lost=lost[at])


def _claimed(job: Job, ending: Ending) -> float:
    if ending.gain is not None:
        return ending.gain
    if ending.best_score is None:
        return math.nan
    return ending.best_score * job.surface.default_us / job.payload_bytes - 1


def _text(params: CommParams) -> str:
    short = f"{params.fusion_threshold_bytes / 2**20:.4g} MiB {params.cycle_time_ms:.3g} ms"
    flags = [
        "no cache" if params.cache_capacity == 0 else "",
        "two-level allreduce" if params.hierarchical_allreduce else "",
        "two-level allgather" if params.hierarchical_allgather else "",
    ]
    return " ".join([short, *filter(None, flags)])
