"""MPI as the runtime sees it: start and end by mpi4py, the job's topology, agreement at init.

``mpi4py.MPI`` starts MPI when it is imported, so nothing imports it before ``hvd.init()``. Where we
are the first to import it we also end MPI ourselves, at exit, in the process that started it: a
forked child never ends it, and a process whose engine failed leaves without (MPI's finalize could
hang).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

PATIENCE_SECONDS = 2.0
"""How long a rank that has met an error waits for the others before it leaves without MPI's end."""
POLL_SECONDS = 0.001
"""Waiting ranks sleep between tests: the core may be needed by the rank they wait for."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Place of this rank in the job.

    Attributes:
        rank, size: Among all ranks.
        local_rank, local_size: Among the ranks of this host.
        cross_rank, cross_size: Among the ranks of equal local_rank, one per host.
        homogeneous: All hosts run the same number of ranks.
        hosts: Number of each rank's host, counted from 0 in the order of first ranks.
        host_names: Name of each rank's host, for people; one name may stand for several hosts.
        cores: Those that the ranks of this host may use together: a launcher may have bound each to
            its own. Empty where that is not known.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool
    hosts: tuple[int, ...]
    host_names: tuple[str, ...] = ()
    cores: frozenset[int] = frozenset()


def start() -> tuple[Any, bool]:
    """**Local.** Return (the module ``mpi4py.MPI``, whether ending MPI is up to us); starts MPI.

    Raises:
        RuntimeError: mpi4py is missing or finds no MPI library, or MPI was already ended.
    """
    ours = "mpi4py.MPI" not in sys.modules
    try:
        if ours:
            import mpi4py

            ours = mpi4py.rc.finalize is not False
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"hvd.init() cannot start MPI through mpi4py: {error}; see 'horovodrun --check-build'"
        ) from error
    if MPI.Is_finalized():
        raise RuntimeError("hvd.init(): MPI was already ended in this process; start a new one")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        ours = True
    return MPI, ours


def thread_error(mpi: Any, size: int) -> str | None:
    """**Local.** Return why the thread level of MPI is not enough, or None.

    One thread at a time is inside MPI, so SERIALIZED is enough as long as the script makes no MPI
    calls of its own; below that only a job of one rank works.
    """
    level = mpi.Query_thread()
    if size == 1 or level >= mpi.THREAD_SERIALIZED:
        return None
    names = {mpi.THREAD_SINGLE: "THREAD_SINGLE", mpi.THREAD_FUNNELED: "THREAD_FUNNELED"}
    return (
        f"MPI provides {names.get(level, level)}: expected at least THREAD_SERIALIZED, as the "
        "engine has its own thread; remove mpi4py.rc.thread_level and mpi4py.rc.threads, or use an "
        "MPI that was built with thread support"
    )


def job_communicator(mpi: Any, comm: object) -> MPI.Comm:
    """Return a communicator of our own for the ranks of the job. **Collective** over those ranks.

    Args:
        mpi: The module ``mpi4py.MPI``.
        comm: None (all ranks), a list of world ranks, or an mpi4py communicator.

    Raises:
        ValueError: ``comm`` is something else, or leaves this process out.
    """
    world = mpi.COMM_WORLD
    if comm is None or (isinstance(comm, Sequence) and not comm):
        result: MPI.Comm = world.Dup()
        return result
    if isinstance(comm, mpi.Comm):
        return comm.Dup()  # type: ignore[no-any-return]
    if not isinstance(comm, Sequence) or not all(isinstance(rank, int) for rank in comm):
        raise ValueError(
            f"hvd.init(comm=...): expected None, a list of ranks or an mpi4py "
            f"communicator, got {comm!r}"
        )
    if world.rank not in comm:
        raise ValueError(f"hvd.init(comm={list(comm)}): rank {world.rank} is not in the list")
    group = world.group.Incl(list(comm))
    created: MPI.Comm = world.Create_group(group)
    group.Free()
    return created


def free_all(comms: list[MPI.Comm]) -> None:
    """**Collective** over the ranks of each. Free communicators and forget them.

    What is on its way in one stays MPI's until it is complete.
    """
    while comms:
        comms.pop(0).Free()


def find_topology(mpi: Any, comm: MPI.Comm, host_name: str | None) -> Topology:
    """**Collective.** Return this rank's place.

    Ranks share a host when MPI says that they can share memory; where any rank has a ``host_name``
    (HOROVOD_HOSTNAME), when their names are equal.
    """
    own_name = host_name or mpi.Get_processor_name()
    names = comm.allgather((own_name, host_name is not None))
    host_names = tuple(name for name, _ in names)
    if any(is_given for _, is_given in names):
        local = comm.Split(host_names.index(own_name), comm.rank)
    else:
        local = comm.Split_type(mpi.COMM_TYPE_SHARED, comm.rank)
    cross = comm.Split(local.rank, comm.rank)
    leaders = comm.allgather(local.bcast(comm.rank, root=0))
    order = list(dict.fromkeys(leaders))
    hosts = tuple(order.index(leader) for leader in leaders)
    topology = Topology(
        rank=comm.rank,
        size=comm.size,
        local_rank=local.rank,
        local_size=local.size,
        cross_rank=cross.rank,
        cross_size=cross.size,
        homogeneous=len({hosts.count(host) for host in set(hosts)}) == 1,
        hosts=hosts,
        host_names=host_names,
        cores=frozenset().union(*local.allgather(os.sched_getaffinity(0))),
    )
    cross.Free()
    local.Free()
    return topology


def gather_all(comm: MPI.Comm, value: Any) -> list[Any]:
    """**Collective.** Return every rank's ``value``, by rank, and sleep while waiting."""
    wait(comm, seconds=None)
    return comm.allgather(value)


def wait(comm: MPI.Comm, seconds: float | None) -> bool:
    """**Collective.** Return True when all ranks of ``comm`` are here, False after ``seconds``."""
    request = comm.Ibarrier()
    deadline = None if seconds is None else time.monotonic() + seconds
    while not request.Test():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def end(
    mpi: Any,
    comm: MPI.Comm | None,
    *,
    failed: bool,
    pending: bool = False,
    raised: bool,
    ours: bool,
    leave: Callable[[int], None],
) -> None:
    """End MPI at the exit of the process, unless that could hang. **Collective** over ``comm``.

    Args:
        mpi: The module ``mpi4py.MPI``.
        comm: The job's communicator; None when the job never got one.
        failed: The engine had a fatal error: leave without ending MPI, unless the script caught it
            and the other ranks come to their end now, too; the launcher then ends the job with a
            code other than 0.
        pending: After such an error MPI may still have messages to deliver.
        raised: This process ends by an exception: wait a little for the other ranks (they may
            be raising the same), then leave without them, so that the launcher ends them.
        ours: Ending MPI is up to us; else mpi4py does it right after us.
        leave: Ends the process at once with an exit code (``os._exit``).
    """
    if mpi.Is_finalized():
        return
    if failed and not raised and not pending and comm is not None and ours:
        failed = not _come_too(mpi, comm)
    elif not failed and comm is not None and (ours or raised):
        failed = not wait(comm, seconds=PATIENCE_SECONDS if raised else None)
    if not failed and ours:
        mpi.Finalize()
    elif failed and not ours:
        leave(1)


def _come_too(mpi: Any, comm: MPI.Comm) -> bool:
    """**Collective.** Return whether all ranks are here in a moment; some may be gone for good."""
    try:
        return wait(comm, seconds=PATIENCE_SECONDS)
    except mpi.Exception:
        return False
