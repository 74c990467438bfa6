"""JSON lines between the runtime (rank 0) and the tuner's service: one message per line, UTF-8.

The runtime starts the service, writes to its standard input and reads from its standard output.
Neither side ever waits for the other on the training thread.

::

    runtime                                   service
      Hello (job, settings, log paths)  ->
                                        <-  Ready | Refused (a sentence: path, live job, setting)
      Signature (once per kind of step) ->
      Steps (batches of finished steps) ->
      Check (a result that was verified) ->
                                        <-  Apply (epoch, params): between two steps, on all ranks
                                        <-  Line | Progress (text for rank 0's terminal)
                                        <-  Done (the params that stay in force)
      Finish (the job shuts down)       ->  (closes the logs, exits)

* *Epoch*: the service numbers parameter changes 1, 2, ... and sends the number with ``Apply``. The
  engine carries it through the response sequence; every ``StepRecord`` says which epoch was in
  force during the whole step, or -1 when it spans a change. Epoch 0 is what the job started with.
* *Step*: what the runtime calls a training step (see ``horovod.autotuning``); consecutive short
  steps of one epoch and signature are merged into one record until it is 1 ms long.
* *Signature*: a hash of the set of operations of a step. Steps that are not training steps
  (evaluation, checkpoint) have another signature; the service scores the most frequent one only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.errors import ProtocolError

VERSION = 1


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
        signature: Hash of the set of operations.
        samples: Samples that the script says were trained on in them; 0: it does not say.
    """

    step: int
    count: int
    duration_us: float
    payload_bytes: int
    exposed_us: float
    epoch: int
    signature: int
    samples: int = 0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The tuner's own settings (``HOROVOD_AUTOTUNE_*``); None means "as documented, automatic"."""

    warmup_samples: int | None = None
    steps_per_sample: int | None = None
    max_samples: int = 20
    noise: float | None = None
    budget: float = 0.05
    seed: int | None = None
    prior: bool = True


@dataclass(frozen=True, kw_only=True)
class Hello:
    """First message: what the job is.

    Attributes:
        version: Protocol version.
        csv_path: ``HOROVOD_AUTOTUNE_LOG`` or None.
        db_path: ``HOROVOD_AUTOTUNE_DB`` or None (then: beside the CSV; without a CSV: none).
        settings: The tuner's settings.
        fixed: {parameter name: value} that the user set explicitly.
        inert: {parameter name: reason} that cannot matter in this job.
        size, local_size, cross_size: Ranks of the job, on rank 0's host, hosts.
        versions: Versions for the fingerprint.
        check: Only compare this setting, which the job starts with, with the default; None: tune.
        host, pid: Rank 0's host name and process.
    """

    version: int = VERSION
    csv_path: str | None = None
    db_path: str | None = None
    settings: Settings = field(default_factory=Settings)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    inert: Mapping[str, str] = field(default_factory=dict)
    size: int
    local_size: int
    cross_size: int
    versions: Mapping[str, str] = field(default_factory=dict)
    check: Mapping[str, Any] | None = None
    host: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The operations of one kind of step: (operation, payload bytes), one entry per collective.

    An operation is "allreduce", "allgather", ..., with "cuda " before it where the tensors are.
    """

    signature: int
    operations: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A batch of finished steps, in order."""

    records: tuple[StepRecord, ...]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One collective of the first step of ``epoch`` was reduced a second time, independently.

    Attributes:
        epoch: Epoch of the step.
        name: Name of the operation.
        ok: Whether the results agree on all ranks.
        worst_error: Largest relative difference of an element, on any rank.
    """

    epoch: int
    name: str
    ok: bool
    worst_error: float


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The job shuts down; the service closes its logs and exits."""

    reason: str = "shutdown"


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The service took the job."""

    version: int = VERSION
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The service cannot take the job; the runtime raises ``message`` on every rank."""

    message: str


@dataclass(frozen=True, kw_only=True)
class Apply:
    """Put ``params`` in force, as ``epoch``, between two steps on all ranks.

    ``incumbent`` is the best setting known so far (None: the job's starting values): should the
    service die, the runtime goes on with it, not with the setting that happened to be under trial.
    When a step of this epoch waits longer than ``limit_us`` for communication, the runtime puts
    ``incumbent`` in force itself, as ``epoch + 1``; the service comes to the same conclusion.
    """

    epoch: int
    params: Mapping[str, Any]
    incumbent: Mapping[str, Any] | None = None
    limit_us: float | None = None


def is_beyond(change: Apply, record: StepRecord) -> bool:
    """Return whether ``record`` is a step of ``change`` that waited longer than its limit."""
    limit = change.limit_us
    same = record.epoch == change.epoch and record.count > 0
    return limit is not None and same and record.exposed_us > limit * record.count


@dataclass(frozen=True, kw_only=True)
class Line:
    """Text for rank 0's log."""

    text: str
    level: str = "info"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Live progress: may overwrite the previous one on a terminal."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Done:
    """Tuning is over; ``params`` (epoch ``epoch``) stay in force."""

    epoch: int
    params: Mapping[str, Any]
    certified: bool
    text: str


Message = (
    Hello | Signature | Steps | Check | Finish | Ready | Refused | Apply | Line | Progress | Done
)

_TYPES: dict[str, type[Any]] = {
    "hello": Hello,
    "signature": Signature,
    "steps": Steps,
    "check": Check,
    "finish": Finish,
    "ready": Ready,
    "refused": Refused,
    "apply": Apply,
    "line": Line,
    "progress": Progress,
    "done": Done,
}
_NAMES = {cls: name for name, cls in _TYPES.items()}
_RECORD_FIELDS = tuple(StepRecord.__dataclass_fields__)


def encode(message: Message) -> bytes:
    """Return ``message`` as one line, newline included."""
    if isinstance(message, Steps):
        rows = [[getattr(one, name, 0) for name in _RECORD_FIELDS] for one in message.records]
        content: dict[str, Any] = {"records": rows}
    else:
        content = asdict(message)
    content["type"] = _NAMES[type(message)]
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes | str) -> Message:
    """Return the message in ``line``.

    Raises:
        ProtocolError: Not JSON, an unknown type, or a wrong field.
    """
    try:
        content = json.loads(line)
        cls = _TYPES[content.pop("type")]
        if cls is Steps:
            rows = content["records"]
            records = (StepRecord(**dict(zip(_RECORD_FIELDS, row, strict=True))) for row in rows)
            return Steps(records=tuple(records))
        if cls is Hello:
            content["settings"] = Settings(**content["settings"])
        if cls is Signature:
            content["operations"] = tuple(
                (str(op), int(size)) for op, size in content["operations"]
            )
        if cls is Ready:
            content["lines"] = tuple(content["lines"])
        message: Message = cls(**content)
        return message
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProtocolError(
            f"not a message of protocol {VERSION}: {line[:200]!r} ({error})"
        ) from error
