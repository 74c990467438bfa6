"""JSON lines between the runtime (rank 0) and the tuner's service: one message per line, UTF-8.

The runtime starts the service, writes to its standard input and reads from its standard output.
Neither side ever waits for the other on the training thread.

::

    runtime                                   service
      Hello (job, settings, log paths)  ->
                                        <-  Ready | Refused (a sentence: path, live job, setting)
      Inert (parameters)                ->
      Signature (once per kind of step) ->
      Steps (batches of finished steps) ->
      ResultCheck (a result verified) ->
                                        <-  Apply (epoch, params): between two steps, on all ranks
                                        <-  Line | Progress (text for rank 0's terminal)
                                        <-  Done (the params that stay in force)
      Finish (the job shuts down)       ->  (closes the logs, exits)

* *Epoch*: the service numbers parameter changes 1, 2, ... and sends the number with ``Apply``. The
  engine carries it through the response sequence; every ``StepRecord`` says which epoch was in
  force during the whole step, or -1 when it spans a change. Epoch 0 is what the job started with.
* *Table*: ``Hello`` says which parameters are tuned; ``Apply`` and ``Done`` hold settings of it.
* *Step*: what the runtime calls a training step (docs/concepts.md says when it ends); consecutive
  short steps of one epoch and signature are merged into one record until it is 1 ms long.
* *Signature*: a hash of what a step communicates, whatever the names. Steps that are not training
  steps (evaluation, checkpoint) have another signature; the service scores the training steps only
  (see ``autotune.tuning.steps.identify``). What it consists of is told when it has come twice.
* While no step has ended, ``Steps`` without a record says that the job communicates.
"""

from __future__ import annotations

import json
import math
import operator
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_args, get_origin

from autotune.errors import ProtocolError
from autotune.space import HOROVOD
from autotune.tables import settings_of
from autotune.trial import CommParams, Setting
from autotune.tuning.changes import Apply, Done, Line, Progress
from autotune.tuning.steps.records import ResultCheck, StepRecord, TunerSettings

VERSION = 2

__all__ = [
    "Apply",
    "Done",
    "Finish",
    "Hello",
    "Inert",
    "Line",
    "Message",
    "Progress",
    "Ready",
    "Refused",
    "ResultCheck",
    "Signature",
    "StepRecord",
    "Steps",
    "TunerSettings",
    "decode",
    "encode",
]


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
        table: Name of the table of parameters that is tuned (``autotune.tables``).
        baseline: {parameter name: value} that the job starts with and that is explored.
        check: Only compare this setting, which the job starts with, with the default; None: tune.
        host, pid: Rank 0's host name and process.
        patience_s: How long a log that is in use is waited for, in seconds; None: as usual.
    """

    version: int = VERSION
    csv_path: str | None = None
    db_path: str | None = None
    settings: TunerSettings = field(default_factory=TunerSettings)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    inert: Mapping[str, str] = field(default_factory=dict)
    size: int
    local_size: int
    cross_size: int
    versions: Mapping[str, str] = field(default_factory=dict)
    check: Mapping[str, Any] | None = None
    table: str = HOROVOD.name
    baseline: Mapping[str, Any] = field(default_factory=dict)
    host: str
    pid: int
    patience_s: float | None = None

    @property
    def start(self) -> Setting:
        """The setting that the job starts with where the user fixes nothing.

        Raises:
            InvalidSettingError: No such table, or a value outside its domain.
        """
        return settings_of(self.table).from_dict(self.baseline)


@dataclass(frozen=True, kw_only=True)
class Inert:
    """What was only found in the first training step; before it has ended.

    Attributes:
        reasons: {parameter name: reason} that is not to be explored, beside those of ``Hello``.
    """

    reasons: Mapping[str, str]


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


Message = (
    Hello
    | Inert
    | Signature
    | Steps
    | ResultCheck
    | Finish
    | Ready
    | Refused
    | Apply
    | Line
    | Progress
    | Done
)

T = typing.TypeVar("T")

_TYPES: dict[str, type[Any]] = {
    "hello": Hello,
    "inert": Inert,
    "signature": Signature,
    "steps": Steps,
    "check": ResultCheck,
    "finish": Finish,
    "ready": Ready,
    "refused": Refused,
    "apply": Apply,
    "line": Line,
    "progress": Progress,
    "done": Done,
}
_NAMES = {cls: name for name, cls in _TYPES.items()}
_HINTS = {cls: typing.get_type_hints(cls) for cls in (*_NAMES, StepRecord, TunerSettings)}
_encoded = json.JSONEncoder(separators=(",", ":")).encode
_RECORD_FIELDS = [each.name for each in fields(StepRecord)]
_row = operator.attrgetter(*_RECORD_FIELDS)
"""Also of the engine's records."""


def encode(message: Message) -> bytes:
    """Return ``message`` as one line, newline included."""
    if isinstance(message, Steps):
        content: dict[str, Any] = {"records": [*map(_row, message.records)]}
    else:
        content = asdict(message)
    content["type"] = _NAMES[type(message)]
    return _encoded(content).encode() + b"\n"


def decode(line: bytes | str, kind: type[Setting] = CommParams) -> Message:
    """Return the message in ``line``.

    Args:
        line: One line, or its text.
        kind: The kind of setting that the job is tuned with.

    Raises:
        ProtocolError: Not JSON, an unknown type, or a wrong field: missing, of another type, or
            beyond what there can be.
    """
    try:
        content = json.loads(line)
        cls = _TYPES[content.pop("type")]
        if cls is Steps:
            rows = content["records"]
            records = (_step_record(row) for row in rows)
            return Steps(records=tuple(records))
        if cls is Hello:
            content["settings"] = _checked(TunerSettings(**content["settings"]))
        if cls is Signature:
            content["operations"] = tuple(tuple(each) for each in content["operations"])
        if cls is Ready:
            content["lines"] = tuple(content["lines"])
        message: Message = _checked(cls(**content))
        if isinstance(message, Apply | Done):
            kind.from_dict(message.params)
        if isinstance(message, Apply) and message.incumbent is not None:
            kind.from_dict(message.incumbent)
        return message
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ProtocolError(
            f"not a message of protocol {VERSION}: {line[:200]!r} ({str(error)[:300]})"
        ) from error


def _step_record(row: list[Any]) -> StepRecord:
    record = _checked(StepRecord(**dict(zip(_RECORD_FIELDS, row, strict=True))))
    for name in ("duration_us", "exposed_us"):
        if not math.isfinite(getattr(record, name)):
            raise ValueError(f"expected a finite {name}, got {getattr(record, name)!r}")
    return record


def _checked(message: T) -> T:
    """Return ``message``, whose fields are of the types that its class says.

    Raises:
        TypeError: One is not.
    """
    for name, kind in _HINTS[type(message)].items():
        value = getattr(message, name)
        if not _fits(value, kind):
            shown = getattr(kind, "__name__", str(kind))
            raise TypeError(f"expected {name} of type {shown}, got {value!r}")
    return message


def _fits(value: object, kind: Any) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(v, arguments[1]) for v in value.values())
    if origin is tuple and isinstance(value, tuple):
        if arguments[-1] is ...:
            return all(_fits(each, arguments[0]) for each in value)
        return len(value) == len(arguments) and all(map(_fits, value, arguments))
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int) and kind in (int, float):
        return -(2**63) <= value < 2**64  # what the engine's numbers can be
    return origin is None and isinstance(value, kind)
