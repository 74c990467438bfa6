"""What every trial log promises. One test class (tests/unit/autotune/storage) runs for all of them.

A *store* receives what the tuner finds, in the order in which it happens:

1. ``begin_run`` once; then ``add_sample``, ``add_trial``, ``set_best`` and ``add_certificate`` in
   any order; then ``finish_run`` at most once; then ``close``. ``reject_trial`` may come at any
   time before that, for a trial that was added.
2. When ``add_trial`` or ``add_sample`` returns, the entry survives ``kill -9`` of this process.
3. A setting has at most one trial in a run.
4. ``finish_run(RunState.DONE, best)`` makes the result final, with the score that ``best`` has in
   the end; its trial stays as it was recorded. Without it the run is unfinished and a later job
   with the same fingerprint resumes it.
5. ``reject_trial`` makes a trial rejected, with score 0. A run that is done with it is unfinished
   from then on, without a certificate: a later job resumes it, and keeps something else.
6. An entry that cannot be written is a ``LogError`` and changes nothing: it can be tried again. A
   ``RefusedEntryError`` never can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from autotune.trial import (
    Certificate,
    Fingerprint,
    RunState,
    Sample,
    Setting,
    Standing,
    Trial,
)


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What identifies a run.

    Attributes:
        fingerprint: The job.
        host, pid: Rank 0's host name and process.
        seed: Seed of the optimizer.
        settings: The tuner's settings, JSON-safe.
    """

    fingerprint: Fingerprint
    host: str
    pid: int
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)


class TrialStore(Protocol):
    """Receives the events of one run; see the module's contract."""

    def begin_run(self, run: RunInfo) -> None: ...

    def add_sample(self, sample: Sample) -> None: ...

    def add_trial(self, trial: Trial) -> None: ...

    def reject_trial(self, trial: Trial) -> None: ...

    def set_best(self, standing: Standing) -> None: ...

    def add_certificate(self, certificate: Certificate) -> None: ...

    def finish_run(self, state: RunState, best: Trial | None) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What an earlier job that resembles this one learned.

    Attributes:
        path, run_id: Where it is recorded.
        similarity: Of the two jobs, in (0, 1].
        why: In what they are alike and in what not: ``the same tensors on 4 ranks instead of 2``.
        trials: With the gain that is known of each at last; no gain: the default, and rejected
            ones. A log of tables 1 knows no gains: there they come from scores of different times,
            and their intervals are as wide as a machine's speed changes.
        best: The setting that its job kept or, if it was not finished, held for the best.
        certificate: The comparison of default and incumbent, if it came to that.
        step_us: Time of a training step under the default, in microseconds; None: not known.
        exposed_share: Share of it in which the training waited for communication.
    """

    path: str
    run_id: int
    similarity: float
    why: str
    trials: tuple[Trial, ...]
    best: Setting | None = None
    certificate: Certificate | None = None
    step_us: float | None = None
    exposed_share: float | None = None

    @property
    def ended_with_default(self) -> bool:
        """Whether none of the settings that its job tried was held for better than its default."""
        return any(trial.trial_id == 0 and trial.params == self.best for trial in self.trials)


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """A new run begins.

    Attributes:
        moved_to: Where a log of another job went, if there was one.
        memory: What jobs that resemble this one learned, the most similar first.
    """

    moved_to: str | None = None
    memory: tuple[Remembered, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Resume:
    """An unfinished run of the same fingerprint goes on: its finished trials and all samples.

    ``standing``: what the earlier job held for the best of these trials.
    """

    trials: tuple[Trial, ...]
    samples: tuple[Sample, ...]
    seed: int
    standing: Standing | None = None

    @property
    def best(self) -> Trial | None:
        """The trial that the earlier job held for the best."""
        return self.standing.best if self.standing is not None else None

    @property
    def comparisons(self) -> int:
        """How often the default was begun to be compared in pairs, without an end."""
        numbers = [one.pair for one in self.samples if one.pair is not None and one.trial_id == 0]
        return numbers.count(min(numbers, default=0))


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A finished run of the same fingerprint: nothing to tune, ``best`` is put in force."""

    best: Trial
    certificate: Certificate | None


Start = Fresh | Resume | Replay
