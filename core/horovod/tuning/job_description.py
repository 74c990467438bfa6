"""What the tuner's service is told about the job, and what is not worth tuning in it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.errors import AutotuneError
from autotune.nccl.start import versions_of
from autotune.service import protocol, variables
from autotune.service.variables import tuner_settings
from autotune.space import HOROVOD, PARAMETERS, Table
from autotune.tables import settings_of
from autotune.tables.further import COMPRESSION, extended, words_named
from autotune.tables.nccl import HOROVOD_NCCL, NCCL_PARAMETERS
from horovod import __version__
from horovod.common import rounds
from horovod.common.settings import Settings
from horovod.common.world import Topology
from horovod.tuning.table import EXPLORE

RESET_PATIENCE_S = 20.0
"""After a reset of an elastic job the tuner of the last rank 0 may still be ending elsewhere."""


def inert_parameters(topology: Topology) -> dict[str, str]:
    """**Local.** Return {parameter: reason} of those that cannot matter in a job of this shape."""
    if topology.cross_size == 1:
        reason = "all ranks are on one host"
    elif topology.local_size == 1 and topology.homogeneous:
        reason = "one rank per host"
    else:
        return {}
    return {name: reason for name in ("hierarchical_allreduce", "hierarchical_allgather")}


def explored_words(settings: Settings) -> tuple[tuple[str, ...], str]:
    """**Local.** Return the further parameters that the user wants tuned, and a line to say.

    One that is fixed is part of the table all the same: it is in force.
    """
    given = settings[EXPLORE]
    others = [word for word in given if word not in COMPRESSION]
    words = {*given, *words_named(settings.fixed)} - {*others}
    said = f"{', '.join(others)}: not known here but to DistributedDataParallel" if others else ""
    return tuple(word for word in COMPRESSION if word in words), said


def with_words(table: Table, words: Sequence[str]) -> Table:
    """**Local.** Return ``table`` with what ``words`` name."""
    return extended(settings_of(table.name), words).table


def replayed_table(params: Mapping[str, Any]) -> Table:
    """**Local.** Return the table that a replayed setting needs."""
    table = HOROVOD_NCCL if any(params.get(row.name) for row in NCCL_PARAMETERS) else HOROVOD
    return with_words(table, words_named(params))


def nothing_to_tune(
    size: int, fixed: Mapping[str, Any], inert: Mapping[str, str], words: Sequence[str] = ()
) -> str | None:
    """**Local.** Return why there is nothing to tune, or None."""
    if size == 1:
        return "a job of 1 rank does not communicate"
    parameters = (*PARAMETERS, *(COMPRESSION[word] for word in words))
    if any(p.name not in fixed and p.name not in inert for p in parameters):
        return None
    variables = ", ".join(p.env for p in PARAMETERS if p.name in fixed)
    others = "".join(f"; {name}: {why}" for name, why in inert.items() if name not in fixed)
    return f"all parameters that matter are set explicitly ({variables}){others}"


def of_table(values: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """**Local.** Return those of {parameter: value} that are of a table."""
    return {name: value for name, value in values.items() if name in table.by_name}


def job_versions(mpi_version: str) -> dict[str, str]:
    """**Local.** Return the versions that make a result what it is."""
    return {"hvd-autotune": __version__, "mpi": mpi_version}


def log_path(settings: Settings, variable: str) -> str | None:
    """**Local.** Return the path in ``variable`` with ``{job_id}`` and ``{host}`` filled in.

    Raises:
        ValueError: No queue says what the job's id is.
    """
    try:
        return variables.log_path(settings[variable], variable, os.environ)
    except AutotuneError as error:
        raise ValueError(str(error)) from None


def make_hello(
    settings: Settings,
    topology: Topology,
    inert: Mapping[str, str],
    mpi_version: str,
    *,
    check: Mapping[str, Any] | None = None,
    table: Table = HOROVOD,
) -> protocol.Hello:
    """**Local.** Return the message that describes the job to the service.

    Args:
        settings: Of this rank.
        topology: Of the job.
        inert: {parameter: reason} of those that cannot matter.
        mpi_version: Of the MPI library.
        check: Only compare this setting with the default, without a log; None: tune.
        table: The parameters that are tuned.

    Raises:
        ValueError: A log's path cannot be filled in.
    """
    prefix = "HOROVOD_AUTOTUNE_"
    start_up = versions_of(os.environ) if "nccl_channels" in table.by_name else {}
    return protocol.Hello(
        csv_path=log_path(settings, prefix + "LOG") if check is None else None,
        db_path=log_path(settings, prefix + "DB") if check is None else None,
        check=check,
        table=table.name,
        settings=tuner_settings(settings.values),
        fixed=of_table(settings.fixed, table),
        inert={name: why for name, why in inert.items() if name not in settings.fixed},
        size=topology.size,
        local_size=topology.local_size,
        cross_size=topology.cross_size,
        versions=job_versions(mpi_version) | start_up,
        host=socket.gethostname(),
        pid=os.getpid(),
        patience_s=RESET_PATIENCE_S if rounds.has_been_reset() else None,
    )
