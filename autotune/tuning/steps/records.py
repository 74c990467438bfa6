"""What the tuner is fed with: its settings, finished training steps, verdicts on results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One or several consecutive whole steps.

    Attributes:
        step: Number of the first step (counted from 0 on rank 0).
        count: Number of steps merged.
        duration_us: Total duration in microseconds.
        payload_bytes: Total bytes of data collectives.
        exposed_us: Total time the training thread waited for communication.
        epoch: Epoch in force during all of them; -1: changed within the step.
        signature: Hash of what was communicated (how often which operation, type, shape and process
            set); 0: scoring was paused.
        samples: Samples that the script says were trained on in them; 0: it does not say.
        is_explicit: An optimizer or ``hvd.autotune.step()`` ended them; else repetition did.
    """

    step: int
    count: int
    duration_us: float
    payload_bytes: int
    exposed_us: float
    epoch: int
    signature: int
    samples: int = 0
    is_explicit: bool = True


@dataclass(frozen=True, kw_only=True)
class TunerSettings:
    """The tuner's own settings (``HOROVOD_AUTOTUNE_*``); None means "as documented, automatic"."""

    warmup_samples: int | None = None
    steps_per_sample: int | None = None
    max_samples: int = 20
    noise: float | None = None
    budget: float = 0.05
    seed: int | None = None
    prior: bool = True


@dataclass(frozen=True, kw_only=True)
class ResultCheck:
    """One collective of the first step of ``epoch`` was reduced a second time, independently.

    Or it could not be carried out as the setting wants it, see ``reason``.

    Attributes:
        epoch: Epoch of the step.
        name: Name of the operation.
        ok: Whether the results agree on all ranks.
        worst_error: Largest relative difference of an element, on any rank.
        reason: Why the setting does not suit the job, although no result was wrong; not ``ok``
            then. Empty: it was checked.
    """

    epoch: int
    name: str
    ok: bool
    worst_error: float
    reason: str = ""
