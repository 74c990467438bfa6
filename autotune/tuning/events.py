"""What the tuner tells its driver, besides protocol messages and the values of ``trial``."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.bayes import Proposal
from autotune.bayes.surrogate import Hyperparameters
from autotune.trial import Certificate, RunState, Sample, Trial
from autotune.tuning.changes import Apply, Done, Line, Progress


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
    """What ``Tuner.work`` found: the next settings (none: all were tried) and the constants.

    ``trouble``: why they are worse than they should be, in one sentence; None where they are not.
    """

    proposals: tuple[Proposal, ...]
    constants: Hyperparameters | None
    trouble: str | None = None
