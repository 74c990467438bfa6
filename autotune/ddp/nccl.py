"""NCCL's own parameters under DistributedDataParallel: one choice for all ranks, or none.

A choice that a rank makes at another operation than the others would end the job in a hang. So a
change is made where a training step has ended, the same one everywhere: every rank holds the next
operation of each communicator of all ranks, all tell each other how far these have come, in one sum
that is waited for, and only where all say the same do all of them put the choice in force, from
the operation on that is held. A rank whose NCCL has not loaded the tuner has no communicator to
speak of, and so keeps all of them from it.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from autotune.ddp.settings import replayed_log
from autotune.nccl.links import Link, can_matter, link_of
from autotune.nccl.offer import offer, offered
from autotune.nccl.plugin import Plugin
from autotune.nccl.probe import LIMIT_S, Exchange
from autotune.nccl.settle import nccl_path, settle
from autotune.result import start_up_of_log
from autotune.service import variables
from autotune.tables.nccl import NCCL_PARAMETERS

PATIENCE_S = 30.0
"""How long the others are waited for."""
_PART_BITS = 21
"""Squares of such numbers, summed over a million ranks, are below 2**63."""
_PARTS = 3

_obstacle = ""


def prepare(environ: MutableMapping[str, str]) -> None:
    """**Local.** Have NCCL load the tuner; before torch makes its first communicator.

    Over links where its choices cannot matter, only where a setting may name them.
    """
    global _obstacle
    link = _link(environ)
    given = [f"{variables.PREFIX}_REPLAY", *(row.env for row in NCCL_PARAMETERS)]
    is_named = link != "none" and any(environ.get(name, "").strip() for name in given)
    _obstacle = offer(environ) if can_matter(link) or is_named else ""


def link_here(environ: Mapping[str, str] = os.environ) -> str:
    """Return over what this rank's GPUs talk, where NCCL has loaded the tuner; else "".

    It has with its first communicator, over which the constructor of the first module has talked.
    """
    path = offered(environ)
    return _link(environ) if path and Plugin(path).seen().communicators else ""


def obstacle() -> str:
    """Return why NCCL was not told to load the tuner, "" where nothing stood in the way."""
    return _obstacle


def is_worth_it(links: Sequence[str]) -> bool:
    """Return whether NCCL's parameters are tuned, by what the ranks' ``link_here`` returned."""
    return all(links) and any(can_matter(link) for link in links)  # type: ignore[arg-type]


def _link(environ: Mapping[str, str]) -> Link:
    sizes = [environ.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    return link_of(environ, is_one_host=sizes[0] == sizes[1] or not all(sizes))


def settle_start(
    torch_groups: Any, options: Mapping[str, Any], store_of_job: Callable[[], Any]
) -> str:
    """Find NCCL's start-up settings and put them in force. **Collective**, once.

    A job that replays takes those of its log.

    Args:
        torch_groups: The module ``torch.distributed.distributed_c10d``, just initialised.
        options: What ``init_process_group`` was called with.
        store_of_job: Returns the job's key-value store.

    Returns:
        A line for rank 0 to say; "": there is nothing to say.
    """
    if "nccl" not in str(torch_groups.get_backend()):
        return ""
    replay = replayed_log(os.environ)
    if options.get("device_id") is not None:
        link = _link(os.environ)
        too_late = "init_process_group(device_id=...) has started NCCL already"
        wanted = "replayed" if replay else "compared"
        return f"NCCL's start-up settings are not {wanted}: {too_late}" if can_matter(link) else ""
    rank, size = torch_groups.get_rank(), torch_groups.get_world_size()
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    hosts = -(-size // int(local_size)) if local_size.isdecimal() and int(local_size) else 1
    return settle(
        "none" if replay else _link(os.environ),
        _exchange_by(store_of_job(), rank, size),
        rank=rank,
        size=size,
        gpu=int(os.environ.get("LOCAL_RANK", rank)),
        hosts=hosts,
        nccl=nccl_path(),
        environ=os.environ,
        replayed=start_up_of_log(replay) if replay and rank == 0 else None,
    )


def _exchange_by(store: Any, rank: int, size: int) -> Exchange:
    """Return an exchange among all ranks by way of the job's key-value store."""
    rounds = itertools.count()

    def exchange(own: Any) -> list[Any]:
        prefix = f"autotune_nccl/{next(rounds)}"
        store.set(f"{prefix}/{rank}", json.dumps(own))
        keys = [f"{prefix}/{each}" for each in range(size)]
        store.wait(keys, timedelta(seconds=2 * LIMIT_S))
        return [json.loads(store.get(key)) for key in keys]

    return exchange


class Round(Protocol):
    """A sum over all ranks that is on its way."""

    def wait(self, seconds: float) -> Sequence[int]:
        """Return the sums; raises after ``seconds``."""
        ...


class Switch:
    """One rank's part in the changes.

    Args:
        plugin: The tuner's library.
        begin: Begins a sum over all ranks of these numbers; called at the same steps everywhere.
        size: Ranks of the job.
    """

    def __init__(self, plugin: Plugin, begin: Callable[[list[int]], Round], *, size: int) -> None:
        self._plugin = plugin
        self._begin = begin
        self._size = size

    def make(self, values: Mapping[str, Any]) -> str:
        """Put {parameter: value} in force on all ranks. **Collective.**

        Returns:
            Why no rank did, "" where all did.

        Raises:
            Exception: The others were not heard in time.
        """
        choice = None
        number = self._plugin.hold(self._size)
        try:
            parts = [number >> (_PART_BITS * k) & ((1 << _PART_BITS) - 1) for k in range(_PARTS)]
            found = self._begin([int(number != 0), *parts, *(one * one for one in parts)])
            sums = list(found.wait(PATIENCE_S))
            if reason := _disagreement(sums, self._size):
                return reason
            choice = values
        finally:
            is_whole = self._plugin.release(choice)
        if not is_whole:
            raise RuntimeError("an operation of NCCL has waited too long for the others")
        return ""


def _disagreement(sums: Sequence[int], size: int) -> str:
    """Return why nothing is changed; equal on all ranks, as the sums are.

    Numbers are all the same exactly where ``size * sum(x**2) == sum(x)**2`` (Cauchy and Schwarz).
    """
    served, numbers, squares = sums[0], sums[1 : 1 + _PARTS], sums[1 + _PARTS :]
    if served < size:
        return f"NCCL has loaded the tuner on {served} of {size} ranks only"
    if any(size * q != x * x for x, q in zip(numbers, squares, strict=True)):
        return "the ranks' communicators have not come as far"
    return ""
