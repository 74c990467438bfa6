"""Any Python object, from one rank to all or from all to all."""

from __future__ import annotations

import pickle
from typing import Any, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from horovod.common import basics
from horovod.common.arrays import Array, allgather, broadcast_all
from horovod.common.process_set import ProcessSet, global_process_set

T = TypeVar("T")


def broadcast_object(
    obj: T,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> T:
    """**Collective.** Return root's ``obj`` on all ranks (the very same object on root).

    Args:
        obj: Anything that cloudpickle takes; ignored on other ranks than root.
        root_rank: Global rank of the sender.
        name: Name of the operation, the same on all ranks.
        process_set: Its members take part; root is one of them.

    Raises:
        ValueError: Root or this rank is not in the process set.
        HorovodInternalError: The operation failed on all ranks, or a rank died.
    """
    sends = basics.rank() == root_rank
    data = _to_bytes(obj) if sends else np.empty(0, np.uint8)
    size = np.array([data.size], np.int64)
    broadcast_all([size], root_rank, [_suffixed(name, "sz")], process_set)
    if not sends:
        data = np.empty(int(size[0]), np.uint8)
    broadcast_all([data], root_rank, [_suffixed(name, "t")], process_set)
    return obj if sends else _from_bytes(data)


def allgather_object(
    obj: T, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[T]:
    """**Collective.** Return every rank's ``obj``, in the order of the ranks.

    Arguments and errors as ``broadcast_object``.
    """
    data = _to_bytes(obj)
    sizes = allgather(np.array([data.size], np.int64), _suffixed(name, "sz"), process_set)
    gathered = allgather(data, _suffixed(name, "t"), process_set)
    ends = np.cumsum(sizes)[:-1]
    return [_from_bytes(part) for part in np.split(gathered, ends)]


def _to_bytes(obj: object) -> Array:
    return np.frombuffer(bytearray(cloudpickle.dumps(obj)), dtype=np.uint8)


def _from_bytes(data: Array) -> Any:
    return pickle.loads(data.tobytes())


def _suffixed(name: str | None, suffix: str) -> str | None:
    return None if name is None else f"{name}.{suffix}"
