"""Where ranks wait for each other without data: barrier, and join for uneven numbers of steps."""

from __future__ import annotations

from typing import Any

from horovod import _engine
from horovod.common import basics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.torch import cuda, handles
from horovod.torch.collectives.request import forget_names, set_id
from horovod.torch.handles import Operation, synchronize

__all__ = ["barrier", "join"]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """**Collective.** Return when all members of ``process_set`` are here.

    Raises:
        ValueError: This rank is not in the process set.
        HorovodInternalError: A rank died or the engine was shut down.
    """
    synchronize(_start("barrier", set_id(process_set), _nothing))


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
    last: int = synchronize(_start("join", 0, _last_joined))
    return last


def _start(operation: str, set_number: int, finish: Any) -> int:
    engine = basics.engine()
    try:
        kind = _engine.Kind(operation=operation, dtype="uint8", named=False, process_set=set_number)
        handle = engine.start(kind, f"{operation}.noname", 0, 0, ())
    except _engine.InvalidRequest as error:
        raise ValueError(str(error)) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    return handles.add(Operation(engine, [handle], (), finish))


def _nothing(operation: Operation) -> None:
    """Return the result of an operation without one."""


def _last_joined(operation: Operation) -> int:
    forget_names()  # ranks made different numbers of unnamed operations; here they meet
    return operation.engine.joined_rank(operation.handles[0])
