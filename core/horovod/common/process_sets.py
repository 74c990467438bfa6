"""Process sets: subsets of the ranks that communicate among themselves.

All ranks of the job make and remove a set together, members or not. ``process_set=`` of a
collective then restricts it to the members.
"""

from __future__ import annotations

from collections.abc import Sequence

from horovod import _engine
from horovod.common import basics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_set import ProcessSet, global_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """**Collective** over all ranks of the job. Register a process set and return it.

    Args:
        process_set: A set that is not registered, or its global ranks; the same on all ranks.

    Raises:
        ValueError: Unsuitable ranks, a set that is registered already or has the ranks of one
            that is, or ``hvd.init()`` was not called.
        NotImplementedError: A set that was made from a communicator.
        HorovodInternalError: The ranks ask for different sets, or a rank has joined.
    """
    basics.engine()  # refuses a forked child
    job = basics.job()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"add_process_set: {process_set!r} is registered already")
    if process_set.mpi_comm is not None:
        raise NotImplementedError(
            "add_process_set: a set that was made from a communicator must be passed to "
            "hvd.init(process_sets=[...]); later sets are made from ranks"
        )
    try:
        job.register(process_set, process_set.ranks or ())
    except _engine.InvalidRequest as error:
        raise ValueError(str(error)) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """**Collective** over all ranks of the job. Forget a process set; it may be added again later.

    Returns:
        False when there was nothing to remove: the global set, one that is not registered, or
        ``hvd.init()`` was not called.

    Raises:
        HorovodInternalError: Operations of the set are in flight, the ranks name different sets, or
            a rank has joined.
    """
    if not basics.is_initialized() or not process_set.process_set_id:
        return False
    try:
        basics.job().unregister(process_set)
    except (_engine.InvalidRequest, _engine.EngineError) as error:
        raise HorovodInternalError(str(error)) from None
    return True
