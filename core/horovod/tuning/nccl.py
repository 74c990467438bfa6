"""Whether NCCL's own parameters are a job's to tune or to replay (``docs/nccl.md``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from autotune.nccl import settle as start_settings
from autotune.nccl.links import can_matter, link_of
from autotune.nccl.offer import decided, offer, offered
from autotune.space import HOROVOD, Table
from autotune.tables.nccl import HOROVOD_NCCL, NCCL_PARAMETERS
from horovod.common import cuda_libraries, rounds
from horovod.common.settings import Settings
from horovod.common.world import Topology
from horovod.tuning.replaying import REPLAY, replayed_start_up


def offer_if_wanted(
    settings: Settings, topology: Topology, environ: MutableMapping[str, str]
) -> str:
    """**Local**, every rank. Have NCCL load the tuner in a job that tunes or replays on GPUs.

    Over links where its choices cannot matter, only where a setting may name them.

    Returns:
        Why it does not; "": it does, or nobody wants it to.
    """
    link = link_of(environ, is_one_host=topology.cross_size == 1)
    names = {row.name for row in NCCL_PARAMETERS}
    is_named = bool(settings[REPLAY] or names & set(settings.fixed))
    is_wanted = is_named or (settings["HOROVOD_AUTOTUNE"] and can_matter(link))
    return offer(environ) if is_wanted and link != "none" else ""


def settle(
    settings: Settings | None,
    topology: Topology,
    exchange: Callable[[Any], list[Any]],
    environ: MutableMapping[str, str],
) -> str:
    """**Collective.** Put NCCL's start-up settings in force: the best ones over the job's links.

    A job that replays takes those of its log.

    Args:
        settings: Of this rank; None: they are wrong.
        topology: Of the job.
        exchange: Returns what every rank has given, by rank.
        environ: The environment, which is changed.

    Returns:
        A line for rank 0 to say; "": there is nothing to say.
    """
    is_wanted = settings is not None and bool(settings["HOROVOD_AUTOTUNE"] and not settings[REPLAY])
    link = link_of(environ, is_one_host=topology.cross_size == 1) if is_wanted else "none"
    replayed = None
    if settings is not None and topology.rank == 0 and settings[REPLAY]:
        replayed = replayed_start_up(settings)
    if rounds.has_been_reset():
        link, replayed = "none", None  # NCCL has read its variables in this process
    return start_settings.settle(
        link,
        exchange,
        rank=topology.rank,
        size=topology.size,
        gpu=topology.local_rank,
        hosts=topology.cross_size,
        nccl=cuda_libraries.find_libraries().nccl if link != "none" else "",
        environ=environ,
        replayed=replayed,
    )


def explored(
    settings: Settings, topology: Topology, environ: Mapping[str, str], obstacle: str
) -> tuple[Table, dict[str, str], str]:
    """**Rank 0 only.** Return the table that is tuned, what of NCCL is inert, and a line to say.

    Args:
        settings: Of this rank.
        topology: Of the job.
        environ: The environment.
        obstacle: What ``offer_if_wanted`` returned.
    """
    link = link_of(environ, is_one_host=topology.cross_size == 1)
    given = {row.name for row in NCCL_PARAMETERS} & set(settings.fixed)
    if not (given or can_matter(link)):
        return HOROVOD, {}, ""
    if not offered(environ):
        return HOROVOD, {}, f"NCCL's own parameters are not tuned: {obstacle}" if obstacle else ""
    return HOROVOD_NCCL, decided(environ), ""
