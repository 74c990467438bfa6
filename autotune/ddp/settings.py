"""What a job's environment says about its tuning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import AutotuneError
from autotune.result import read_result
from autotune.service import variables
from autotune.space import Value
from autotune.storage.placeholders import expand
from autotune.tables.ddp import DdpParams
from autotune.tables.nccl import DDP_NCCL, DdpNcclParams, names_nccl
from autotune.tuning.steps.records import TunerSettings

LOG, DB = f"{variables.PREFIX}_LOG", f"{variables.PREFIX}_DB"
REPLAY = f"{variables.PREFIX}_REPLAY"
CHECK = f"{REPLAY}_CHECK"


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """One rank's settings.

    Attributes:
        is_on: The job is to be tuned.
        fixed: {parameter name: value} that the user set: they are put in force and not explored.
        csv_path, db_path: The logs, or None.
        replay: Path of the log whose answer is put in force, or None.
        check: The replayed setting is to be compared with what the script sets.
        tuner: The tuner's settings.
    """

    is_on: bool
    fixed: Mapping[str, Value]
    csv_path: str | None
    db_path: str | None
    replay: str | None
    check: bool
    tuner: TunerSettings

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to do in this job."""
        return self.is_on or self.replay is not None or bool(self.fixed)


def read_settings(environ: Mapping[str, str]) -> JobSettings:
    """Return what ``environ`` says.

    Raises:
        AutotuneError: A value is not what its variable wants; all of them are named.
    """
    values = variables.read_variables(environ)
    replay = replayed_log(environ)
    return JobSettings(
        is_on=values[variables.PREFIX] and replay is None,
        fixed={
            row.name: row.parse(environ[row.env])
            for row in DDP_NCCL.parameters
            if environ.get(row.env, "").strip()
        },
        csv_path=variables.log_path(values[LOG], LOG, environ),
        db_path=variables.log_path(values[DB], DB, environ),
        replay=replay,
        check=values[CHECK],
        tuner=variables.tuner_settings(values),
    )


def replayed(settings: JobSettings) -> dict[str, Any] | None:
    """Return {parameter: value} of the log that is replayed, what is fixed over it; None: no log.

    Raises:
        AutotuneError: It cannot be read, or is of another table.
    """
    if settings.replay is None:
        return None
    params = read_result(settings.replay).params
    if not isinstance(params, DdpParams):
        raise AutotuneError(
            f"{settings.replay}: the log is of the table {params.table.name!r}: expected 'ddp'"
        )
    return {**params.as_dict(), **settings.fixed}


def kind_for(values: Mapping[str, Any] | None, *, is_explored: bool) -> type[DdpParams]:
    """Return the kind of setting of a job: with NCCL's parameters where it needs them.

    Args:
        values: {parameter: value} that the job starts with, or None.
        is_explored: NCCL's parameters are tuned.
    """
    known = DdpNcclParams.table.by_name
    given = DdpNcclParams.from_dict({k: v for k, v in (values or {}).items() if k in known})
    return DdpNcclParams if is_explored or names_nccl(given) else DdpParams


def replayed_log(environ: Mapping[str, str]) -> str | None:
    """Return the path of the log that the job replays; None: it replays none.

    Raises:
        AutotuneError: A placeholder in it is not known.
    """
    given = environ.get(REPLAY, "").strip()
    if not given:
        return None
    return os.path.expanduser(expand(given, REPLAY, environ, host=os.uname().nodename))
