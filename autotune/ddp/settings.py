"""What a job's environment says about its tuning."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from autotune.errors import AutotuneError, InvalidSettingError
from autotune.result import read_result
from autotune.service import variables
from autotune.space import Value
from autotune.storage.placeholders import expand
from autotune.tables.ddp import DdpParams
from autotune.tables.further import (
    COMPRESSION,
    FURTHER,
    extended,
    refusal_of,
    words_named,
)
from autotune.tables.nccl import DDP_NCCL, DdpNcclParams, names_nccl
from autotune.tuning.steps.records import TunerSettings

LOG, DB = f"{variables.PREFIX}_LOG", f"{variables.PREFIX}_DB"
REPLAY = f"{variables.PREFIX}_REPLAY"
CHECK = f"{REPLAY}_CHECK"
EXPLORE = f"{variables.PREFIX}_EXPLORE"


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """One rank's settings.

    Attributes:
        is_on: The job is to be tuned.
        fixed: {parameter name: value} that the user set: they are put in force and not explored.
        explored: Words of ``tables.further``: what is explored beside the buckets, if the job is
            tuned.
        csv_path, db_path: The logs, or None.
        replay: Path of the log whose answer is put in force, or None.
        check: The replayed setting is to be compared with what the script sets.
        tuner: The tuner's settings.
    """

    is_on: bool
    fixed: Mapping[str, Value]
    explored: tuple[str, ...]
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
    is_on = values[variables.PREFIX] and replay is None
    fixed = {
        row.name: row.parse(environ[row.env])
        for row in (*DDP_NCCL.parameters, *FURTHER.values())
        if environ.get(row.env, "").strip()
    }
    explored = tuple(word for word in values[EXPLORE] if FURTHER[word].name not in fixed)
    _check_words({*words_named(fixed), *(explored if is_on else ())})
    return JobSettings(
        is_on=is_on,
        fixed=fixed,
        explored=explored,
        csv_path=variables.log_path(values[LOG], LOG, environ),
        db_path=variables.log_path(values[DB], DB, environ),
        replay=replay,
        check=values[CHECK],
        tuner=variables.tuner_settings(values),
    )


def replayed(settings: JobSettings) -> dict[str, Any] | None:
    """Return {parameter: value} of the log that is replayed, what is fixed over it; None: no log.

    Raises:
        AutotuneError: It cannot be read, is of another table, or does not go with what is fixed.
    """
    if settings.replay is None:
        return None
    params = read_result(settings.replay).params
    if not isinstance(params, DdpParams):
        raise AutotuneError(
            f"{settings.replay}: the log is of the table {params.table.name!r}: expected 'ddp'"
        )
    values = {**params.as_dict(), **settings.fixed}
    _check_words(words_named(values))
    return values


def kind_for(
    values: Mapping[str, Any] | None, *, is_explored: bool, explored: Collection[str] = ()
) -> type[DdpParams]:
    """Return the kind of setting of a job: with the further parameters that it needs.

    Args:
        values: {parameter: value} that the job starts with, or None.
        is_explored: NCCL's parameters are tuned.
        explored: Words of what else is tuned beside the buckets.
    """
    start = values or {}
    known = DdpNcclParams.table.by_name
    given = DdpNcclParams.from_dict({k: v for k, v in start.items() if k in known})
    base = DdpNcclParams if is_explored or names_nccl(given) else DdpParams
    return cast("type[DdpParams]", extended(base, {*explored, *words_named(start)}))


def _check_words(words: Collection[str]) -> None:
    """Raise where parameters of these words cannot be in force in one job.

    Raises:
        InvalidSettingError: Two halves.
    """
    if refusal_of(words):
        variables_named = " and ".join(row.env for row in COMPRESSION.values())
        raise InvalidSettingError(
            f"{variables_named}: gradients travel in one of fp16 and bf16, both are in force or "
            f"explored ({EXPLORE}); set one of them to 0"
        )


def replayed_log(environ: Mapping[str, str]) -> str | None:
    """Return the path of the log that the job replays; None: it replays none.

    Raises:
        AutotuneError: A placeholder in it is not known.
    """
    given = environ.get(REPLAY, "").strip()
    if not given:
        return None
    return os.path.expanduser(expand(given, REPLAY, environ, host=os.uname().nodename))
