"""HOROVOD_AUTOTUNE_REPLAY: a job that takes its settings from a log, on all ranks, at init."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

from autotune.errors import AutotuneError, LogError
from autotune.result import Result, differences, read_result, start_up_of_log
from autotune.space import HOROVOD, PARAMETERS
from autotune.storage.placeholders import expand
from autotune.tables.further import refusal_of, words_named
from autotune.trial import CommParams
from horovod.common.settings import Settings

logger = logging.getLogger("horovod.autotune")

REPLAY = "HOROVOD_AUTOTUNE_REPLAY"


def replayed_params(
    settings: Settings, *, size: int, local_size: int, versions: Mapping[str, str], host: str
) -> dict[str, Any] | None:
    """**Rank 0 only.** Return {parameter: value} of the replayed log; None: nothing is replayed.

    What the user set explicitly wins. Where that is everything, the log only tells where it came
    from, and one that cannot be read is no more than a warning.

    Raises:
        ValueError: The log cannot be read or holds no answer; the message names the path.
    """
    given = settings[REPLAY]
    if given is None:
        if settings[REPLAY + "_CHECK"]:
            logger.warning("%s_CHECK=1 has no effect without %s", REPLAY, REPLAY)
        return None
    fixed = settings.fixed
    try:
        result = read_result(_path(given, host))
        _check_table(result)
    except AutotuneError as error:
        if len(fixed) < len(PARAMETERS):
            raise ValueError(f"{REPLAY}: {error}") from None
        logger.warning("%s: %s; the explicit settings are in force", REPLAY, error)
        return dict(fixed)
    params = {**result.params.as_dict(), **fixed}
    if why := refusal_of(words_named(params)):
        raise ValueError(f"{REPLAY}: {given} and the explicit settings: {why}")
    other = differences(result, size=size, local_size=local_size, versions=versions)
    _warn(given, result, settings, other)
    return params


def replayed_start_up(settings: Settings) -> dict[str, str]:
    """**Rank 0 only.** Return {variable of NCCL: text} of the replayed log.

    {}: nothing is replayed, or there is nothing to be had; what is wrong with a log
    ``replayed_params`` says.
    """
    given = settings[REPLAY]
    try:
        return start_up_of_log(_path(given, socket.gethostname())) if given is not None else {}
    except AutotuneError:
        return {}


def _path(given: str, host: str) -> str:
    return os.path.expanduser(expand(given, REPLAY, os.environ, host=host))


def _check_table(result: Result) -> None:
    table = result.params.table
    if not isinstance(result.params, CommParams):
        raise LogError(
            f"the log is of the table {table.name!r}: expected {HOROVOD.name!r}; its settings are "
            f"put in force by {table.outside}"
        )


def _warn(given: str, result: Result, settings: Settings, other: str) -> None:
    for text in result.warnings:
        logger.warning("%s", text)
    if other:
        logger.warning(
            "%s=%s was tuned in another job (%s): its settings may not be the best here; tune "
            "again, or set %s_CHECK=1 to compare them with the default",
            REPLAY,
            given,
            other,
            REPLAY,
        )
    if settings["HOROVOD_AUTOTUNE"]:
        logger.warning("HOROVOD_AUTOTUNE is switched off by %s", REPLAY)
