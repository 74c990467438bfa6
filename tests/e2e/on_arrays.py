"""Horovod's calls on numpy arrays, for jobs in which nothing of torch is tested.

Torch takes each rank 1.5 seconds of a core to import, and whole jobs share few cores. Arrays on
which an operation has begun have to be kept until it is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from horovod.common import arrays, basics
from horovod.common.arrays import Array
from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.common.operation import How
from horovod.common.reduce_ops import Sum
from horovod.tuning import autotuning

rank, size, shutdown = basics.rank, basics.size, basics.shutdown
init = autotuning.init


def start(array: Array, name: str, op: int = Sum) -> int:
    """**Collective.** Begin to reduce ``array`` in its place; return the handle of it."""
    return arrays._start(How("allreduce", name, op=op), array, array.ctypes.data)


def wait(handles: Sequence[int], kept: Sequence[Array]) -> None:
    """**Local.** Return when all is complete; HorovodInternalError where some of it failed."""
    arrays._finish(handles, kept)
    autotuning.tick()


def allreduce_(array: Array, name: str, op: int = Sum) -> Array:
    """**Collective.** Return ``array``, reduced in its place."""
    wait([start(array, name, op)], [array])
    return array
