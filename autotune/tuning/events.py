"""What the tuner tells its driver, besides protocol messages and the values of ``trial``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.bayes import Proposal
from autotune.bayes.surrogate import Hyperparameters
from autotune.trial import Certificate, CommParams, RunState, Sample, SampleKind, Trial
from autotune.tuning.changes import Apply, Done, Line, Progress
from autotune.tuning.scoring import Reading, Window


@dataclass(frozen=True, kw_only=True)
class Identified:
    """The training signature is known: the driver answers with ``Tuner.begin``.

    Attributes:
        signature: Of the training steps.
        parts: Signatures of the steps that one training step consists of; usually it alone.
        retune: The job was tuned before and has changed since: a new run replaces the result.
    """

    signature: int
    parts: tuple[int, ...]
    retune: bool = False


@dataclass(frozen=True, kw_only=True)
class RunFinished:
    """The run ends; ``best`` stays in force, or is the best so far (None without a trial)."""

    state: RunState
    best: Trial | None


Event = Apply | Line | Progress | Done | Sample | Trial | Certificate | RunFinished | Identified


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What ``Tuner.work`` found: the next setting (None: all were tried) and the constants.

    ``trouble``: why the proposal is worse than it should be, in one sentence; None where it is not.
    """

    proposal: Proposal | None
    constants: Hyperparameters | None
    trouble: str | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the present window is read for; ``rival_us``: step time of the incumbent."""

    kind: SampleKind
    trial_id: int
    params: CommParams
    window: Window
    pair: int | None = None
    rival_us: float = math.inf
    limit_us: float = math.inf


def sample(task: Task, reading: Reading) -> Sample:
    """Return the reading of a task's window as the trial log wants it."""
    return Sample(
        trial_id=task.trial_id,
        epoch=task.window.epoch,
        kind=task.kind,
        pair=task.pair,
        steps=reading.steps,
        duration_us=reading.duration_us,
        payload_bytes=reading.payload_bytes,
        exposed_us=reading.exposed_us,
        score=reading.score,
    )
