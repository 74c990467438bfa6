"""Frozen values that the tuner, the logs and the runtime exchange; validated at construction.

Vocabulary: a *parameter setting* (``Setting``) is tried in a *trial*; a trial is read in one or
more *samples* (windows of whole training steps); the value of a sample is its *score* in bytes/us,
higher is better. The *epoch* counts parameter changes of one job, so every step belongs to exactly
one setting.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from autotune.errors import InvalidSettingError
from autotune.space import BY_NAME, HOROVOD, Parameter, Table, Value


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One full setting of the parameters of a table; a subclass has a field for each of them.

    Fields stand in the order in which people read them.

    Attributes:
        table: The table.

    Raises:
        InvalidSettingError: A value is outside its parameter's valid domain.
    """

    table: ClassVar[Table]

    def __post_init__(self) -> None:
        for one in fields(self):
            checked = self.table.by_name[one.name].check(getattr(self, one.name))
            object.__setattr__(self, one.name, checked)

    def as_dict(self) -> dict[str, Value]:
        """Return {parameter name: value} in the order of the table (JSON-safe types)."""
        return {row.name: getattr(self, row.name) for row in self.table.parameters}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the setting with ``values`` over the defaults.

        Raises:
            InvalidSettingError: An unknown name or a value outside its domain.
        """
        known = cls.table.by_name
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise InvalidSettingError(
                f"unknown parameter {unknown[0]!r}: expected one of {', '.join(known)}"
            )
        return cls(**values)

    def with_values(self, values: Mapping[str, Value]) -> Self:
        """Return this setting with some values replaced."""
        return replace(self, **values)

    @classmethod
    def reading_order(cls) -> tuple[Parameter, ...]:
        """Return the table in the order in which people read a setting: that of its fields."""
        return tuple(cls.table.by_name[one.name] for one in fields(cls))

    @property
    def as_engine(self) -> CommParams | None:
        """The setting of this package's engine that costs about the same; None: there is none.

        It is what the cost model is asked about.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class CommParams(Setting):
    """One full setting of the communication parameters of the runtime ``horovod``."""

    table: ClassVar[Table] = HOROVOD

    fusion_threshold_bytes: int = int(BY_NAME["fusion_threshold_bytes"].default)
    cycle_time_ms: float = float(BY_NAME["cycle_time_ms"].default)
    cache_capacity: int = int(BY_NAME["cache_capacity"].default)
    hierarchical_allreduce: bool = bool(BY_NAME["hierarchical_allreduce"].default)
    hierarchical_allgather: bool = bool(BY_NAME["hierarchical_allgather"].default)

    @property
    def as_engine(self) -> CommParams:
        """This setting."""
        return self


class TrialState(enum.StrEnum):
    """How a trial ended."""

    COMPLETE = "complete"
    ABANDONED = "abandoned"
    """Clearly bad: ended before its window was full; the score is what it reached."""
    REJECTED = "rejected"
    """Its results were wrong or its score unusable; the score is 0."""


class SampleKind(enum.StrEnum):
    """What a window was read for."""

    SEARCH = "search"
    REREAD = "reread"
    CERTIFY = "certify"


class RunState(enum.StrEnum):
    """State of one tuning run."""

    RUNNING = "running"
    UNFINISHED = "unfinished"
    """The job ended before the tuner did; a restarted job resumes."""
    DONE = "done"
    """Finalised: the last line of the CSV is the best configuration."""


def _expect_score(score: float) -> None:
    if not math.isfinite(score) or score < 0:
        raise InvalidSettingError(f"score must be finite and >= 0 bytes/us, got {score}")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One reading: a window of whole training steps under one epoch.

    Attributes:
        trial_id: The trial whose setting was in force (0 is the default).
        epoch: Epoch number of the job.
        kind: What the window was read for.
        pair: Number of the certificate pair, else None.
        steps: Scored steps in the window.
        duration_us: Time of those steps, in microseconds.
        payload_bytes: Bytes of all data collectives in those steps.
        exposed_us: Time that the training thread waited for communication in those steps.
        score: bytes/us, robust against single slow steps.
    """

    trial_id: int
    epoch: int
    kind: SampleKind = SampleKind.SEARCH
    pair: int | None = None
    steps: int
    duration_us: float
    payload_bytes: int
    exposed_us: float
    score: float

    def __post_init__(self) -> None:
        if self.trial_id < 0 or self.epoch < 0 or self.steps < 0 or self.payload_bytes < 0:
            raise InvalidSettingError(f"negative count in {self}")
        _expect_score(self.score)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A gain in step time over the default at the same time: ``time(default) / time(this) - 1``.

    Attributes:
        estimate: The most probable value.
        low, high: Bounds of its nominal 90 % interval.
    """

    estimate: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not -1 <= self.low <= self.estimate <= self.high < math.inf:
            raise InvalidSettingError(f"expected -1 <= low <= estimate <= high, got {self}")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting and how it ended.

    Attributes:
        trial_id: 0 is the default setting; then in order of finishing.
        params: The setting.
        state: How it ended.
        score: bytes/us; higher is better; 0 for rejected trials. Of trial 0 it is what was read
            first; of any other trial ``(1 + gain) * score of trial 0``, so the scores of one run
            compare with each other whatever the machine's speed did meanwhile.
        gain: Over the default just before and just after; None: the default itself, a rejected
            trial, or a log that does not say.
    """

    trial_id: int
    params: Setting
    state: TrialState = TrialState.COMPLETE
    score: float
    gain: Gain | None = None

    @property
    def rejected(self) -> Trial:
        """The same trial after its results were found to be wrong."""
        return replace(self, state=TrialState.REJECTED, score=0.0, gain=None)

    def __post_init__(self) -> None:
        if self.trial_id < 0:
            raise InvalidSettingError(f"trial_id must be >= 0, got {self.trial_id}")
        _expect_score(self.score)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a run holds for the best while it is not finished.

    Attributes:
        best: The incumbent's trial, with the score and the gain that are known of it now.
        gain: Of the incumbent by all that is known; None: it is the default, or nothing is known.
        proven: The incumbent is better than the default beyond doubt, also without a certificate.
    """

    best: Trial
    gain: Gain | None = None
    proven: bool = False


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Result of the paired comparison of default and incumbent.

    Attributes:
        trial_id: The incumbent that was compared (0: nothing beat the default in the search).
        pairs: Number of pairs of windows.
        gain: Estimated relative gain of the incumbent in step time:
            ``time(default) / time(incumbent) - 1``.
        gain_low, gain_high: Bounds of its interval; ``gain_low`` is one-sided at ``alpha``.
        alpha: Error probability of ``gain_low``.
        certified: ``gain_low > 0``: the incumbent is kept; else the default is.
        reason: One sentence for people.
    """

    trial_id: int
    pairs: int
    gain: float
    gain_low: float
    gain_high: float
    alpha: float
    certified: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What makes two jobs the same for the tuner.

    Attributes:
        tensors: Payload bytes of the training step's collectives, as sorted (operation, bytes).
        size, local_size, cross_size: Ranks of the job, on this host, hosts.
        versions: Versions that matter ({"hvd-autotune": ..., "mpi": ...}).
        fixed: Parameters that the user set explicitly.
        table: Name of the table of parameters.
        baseline: What the script itself sets, where that is explored: trial 0 differs with it.
    """

    tensors: tuple[tuple[str, int], ...]
    size: int
    local_size: int
    cross_size: int
    versions: Mapping[str, str]
    fixed: Mapping[str, Value]
    table: str = HOROVOD.name
    baseline: Mapping[str, Value] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-safe content; equal fingerprints give equal dictionaries.

        A job of the runtime ``horovod`` has neither table nor baseline in it, as ever.
        """
        content = asdict(self)
        if self.table == HOROVOD.name:
            del content["table"]
        content["baseline"] = dict(sorted(self.baseline.items()))
        if not self.baseline:
            del content["baseline"]
        content["tensors"] = [list(entry) for entry in self.tensors]
        content["versions"] = dict(sorted(self.versions.items()))
        content["fixed"] = dict(sorted(self.fixed.items()))
        return content
