"""Where ranks wait for each other without data: barrier, and join for uneven numbers of steps."""

from __future__ import annotations

from horovod.common import basics
from horovod.common.operation import How, forget_names
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.torch import cuda
from horovod.torch.collectives.start import start_meeting
from horovod.torch.handles import Operation, synchronize

__all__ = ["barrier", "join"]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """**Collective.** Return when all members of ``process_set`` are here.

    Raises:
        ValueError: This rank is not in the process set.
        HorovodInternalError: A rank died or the engine was shut down.
    """
    synchronize(start_meeting(How("barrier", None, process_set), _nothing))


def join(device: int = -1) -> int:
    """**Collective** over all ranks. This rank has no more data: return when all have joined.

    Until then it takes part in the others' allreduces, of all process sets, with zeros (an average
    still divides by all ranks); their other collectives fail.

    Args:
        device: GPU on which this rank contributes zeros if it has not used one yet; -1: the
            current one.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        HorovodInternalError: A rank died or the engine was shut down.
    """
    cuda.use_for_zeros(basics.engine(), device)
    last: int = synchronize(start_meeting(How("join"), _last_joined))
    return last


def _nothing(operation: Operation) -> None:
    """Return the result of an operation without one."""


def _last_joined(operation: Operation) -> int:
    forget_names()  # ranks made different numbers of unnamed operations; here they meet
    return operation.engine.joined_rank(operation.handles[0])
