"""Tables of the SQLite log, and how values become rows and come back.

::

    runs 1──n trials          one tuning run; its trials in order of finishing
      │  1──n samples         every window that was read, also for re-readings and certificate pairs
      └──1──n certificates    the comparison of default and incumbent: gain with interval

Units are those of ``trial.py``; times are ISO 8601, UTC; ``seed`` is text because it may be wider
than 64 bits. The file carries an application id, so no other database is mistaken for ours.

Version 2 added gains to ``trials``, and what a run holds for the best to ``runs``; version 3 the
name of the table of parameters that a run tunes, and the columns of all tables but the first. Files
of earlier versions are read as they are, with those values unknown, and get the columns when a job
writes to them. A parameter of another table than the run's is null.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autotune.space import HOROVOD, Parameter
from autotune.tables import every_parameter, settings_of
from autotune.tables.ddp import DDP
from autotune.tables.further import FURTHER
from autotune.tables.nccl import NCCL_PARAMETERS
from autotune.trial import (
    Certificate,
    Fingerprint,
    Gain,
    RunState,
    Sample,
    SampleKind,
    Trial,
    TrialState,
)

APPLICATION_ID = 0x48564154
SCHEMA_VERSION = 6
MAGIC = b"SQLite format 3\0"

OTHERS: dict[str, Parameter] = {
    name: row for name, row in every_parameter().items() if name not in HOROVOD.by_name
}
"""The parameters of all tables but the first."""


def _kind(row: Parameter) -> type:
    return float if row.type is float else int


RUNS: dict[str, type] = {
    "run_id": int,
    "state": str,
    "started_at": str,
    "finished_at": str,
    "host": str,
    "pid": int,
    "size": int,
    "local_size": int,
    "cross_size": int,
    "versions": str,
    "fingerprint": str,
    "fingerprint_hash": str,
    "seed": str,
    "settings": str,
    "csv_path": str,
    "csv_key": str,
    "retune": int,
    "best_trial_id": int,
    "best_score": float,
    "best_gain": float,
    "best_gain_low": float,
    "best_gain_high": float,
    "best_proven": int,
    "parameter_table": str,
}
TRIALS: dict[str, type] = {
    "id": int,
    "run_id": int,
    "trial_id": int,
    **{row.name: _kind(row) for row in HOROVOD.parameters},
    "state": str,
    "score": float,
    "finished_at": str,
    "gain": float,
    "gain_low": float,
    "gain_high": float,
    **{name: _kind(row) for name, row in OTHERS.items()},
}
SAMPLES: dict[str, type] = {
    "id": int,
    "run_id": int,
    "trial_id": int,
    "epoch": int,
    "kind": str,
    "pair": int,
    "steps": int,
    "duration_us": float,
    "payload_bytes": int,
    "exposed_us": float,
    "score": float,
    "finished_at": str,
}
CERTIFICATES: dict[str, type] = {
    "id": int,
    "run_id": int,
    "trial_id": int,
    "pairs": int,
    "gain": float,
    "gain_low": float,
    "gain_high": float,
    "alpha": float,
    "certified": int,
    "reason": str,
    "finished_at": str,
}


Row = sqlite3.Row | dict[str, Any]
"""One row, as sqlite3 and as sqlite-utils hand it over."""

ADDED: dict[int, dict[str, tuple[str, ...]]] = {
    2: {
        "runs": ("best_score", "best_gain", "best_gain_low", "best_gain_high", "best_proven"),
        "trials": ("gain", "gain_low", "gain_high"),
    },
    3: {
        "runs": ("parameter_table",),
        "trials": tuple(DDP.by_name),
    },
    4: {"trials": tuple(row.name for row in NCCL_PARAMETERS)},
    6: {"trials": tuple(row.name for row in FURTHER.values())},
}
"""{version: {table: columns that files of earlier versions lack}}"""


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """One row of ``runs``; ``csv_key`` is the CSV's path as seen from the database's folder.

    What begins with ``best_`` is what the run ended with or, as long as it is unfinished, holds for
    the best: the trial, its score and its gain by all that is known.
    """

    run_id: int
    state: RunState
    started_at: str
    finished_at: str | None
    host: str
    pid: int
    size: int
    local_size: int
    cross_size: int
    versions: Mapping[str, str]
    fingerprint: Mapping[str, Any]
    fingerprint_hash: str
    seed: int
    settings: Mapping[str, Any]
    csv_path: str | None
    csv_key: str | None
    retune: bool
    best_trial_id: int | None
    best_score: float | None
    best_gain: Gain | None
    best_proven: bool
    parameter_table: str


def fingerprint_json(fingerprint: Fingerprint) -> str:
    """Return the canonical text: equal fingerprints give equal text."""
    return json.dumps(fingerprint.as_dict(), sort_keys=True, separators=(",", ":"))


def fingerprint_hash(fingerprint: Fingerprint) -> str:
    """Return the name under which a job is looked up."""
    return hashlib.sha256(fingerprint_json(fingerprint).encode()).hexdigest()


def run_from_row(row: sqlite3.Row) -> StoredRun:
    """Return the run that ``row`` holds."""
    content = {name: _value(row, name) for name in RUNS if not name.startswith("best_gain")}
    for name in ("versions", "fingerprint", "settings"):
        content[name] = json.loads(content[name])
        if not isinstance(content[name], dict):
            raise TypeError(f"{name}: expected an object, got {content[name]!r}")
    for name in ("size", "local_size", "cross_size"):
        content[name] = int(content[name])
    content["state"] = RunState(content["state"])
    content["seed"] = int(content["seed"])
    if content["best_score"] is not None:
        content["best_score"] = float(content["best_score"])
    content["parameter_table"] = content["parameter_table"] or HOROVOD.name
    for name in ("retune", "best_proven"):
        content[name] = bool(content[name])
    return StoredRun(**content, best_gain=gain_from_row(row, "best_gain"))


def best_to_row(best: Trial, gain: Gain | None, *, proven: bool) -> dict[str, Any]:
    """Return the columns of ``runs`` for the best: its trial's number comes from the log."""
    return {
        "best_score": best.score,
        **_gain_to_row(gain, "best_gain"),
        "best_proven": int(proven),
    }


def trial_to_row(trial: Trial) -> dict[str, Any]:
    """Return the columns of a trial, without those that the log adds."""
    params = {name: _plain(value) for name, value in trial.params.as_dict().items()}
    row = {"trial_id": trial.trial_id, **params, "state": str(trial.state), "score": trial.score}
    return row | _gain_to_row(trial.gain, "gain")


def trial_from_row(row: Row, table: str) -> Trial:
    """Return the trial that ``row`` holds, of a run that tunes ``table``."""
    kind = settings_of(table)
    params = kind.from_dict({name: row[name] for name in kind.table.by_name})
    return Trial(
        trial_id=row["trial_id"],
        params=params,
        state=TrialState(row["state"]),
        score=row["score"],
        gain=gain_from_row(row, "gain"),
    )


def gain_from_row(row: Row, name: str) -> Gain | None:
    """Return the gain in the columns ``name``, ``name_low`` and ``name_high``; None: no gain."""
    estimate, low, high = (_value(row, f"{name}{end}") for end in ("", "_low", "_high"))
    return None if estimate is None else Gain(estimate=estimate, low=low, high=high)


def sample_to_row(sample: Sample) -> dict[str, Any]:
    """Return the columns of a sample, without those that the log adds."""
    return {**asdict(sample), "kind": str(sample.kind)}


def sample_from_row(row: sqlite3.Row) -> Sample:
    """Return the sample that ``row`` holds."""
    content = {name: row[name] for name in Sample.__dataclass_fields__}
    content["kind"] = SampleKind(content["kind"])
    return Sample(**content)


def certificate_to_row(certificate: Certificate) -> dict[str, Any]:
    """Return the columns of a certificate, without those that the log adds."""
    return {name: _plain(value) for name, value in asdict(certificate).items()}


def certificate_from_row(row: sqlite3.Row) -> Certificate:
    """Return the certificate that ``row`` holds."""
    content = {name: row[name] for name in Certificate.__dataclass_fields__}
    content["certified"] = bool(content["certified"])
    for name in ("trial_id", "pairs"):
        content[name] = int(content[name])
    content["alpha"], content["reason"] = float(content["alpha"]), str(content["reason"])
    return Certificate(**content)


def _gain_to_row(gain: Gain | None, name: str) -> dict[str, Any]:
    values = (gain.estimate, gain.low, gain.high) if gain else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _value(row: Row, name: str) -> Any:
    """Return the row's value; None: a file of an earlier version lacks the column."""
    return row[name] if name in row.keys() else None


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value
