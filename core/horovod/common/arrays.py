"""Collectives of numpy arrays on the host: what front ends do beside their framework's tensors.

They wait for their result. What they carry may have any type that is made of bytes: one that the
engine does not know travels as bytes, except where numbers are reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod import _engine
from horovod.common import basics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.operation import How, full_name, make_kind, set_number, take_name_back
from horovod.common.process_set import ProcessSet, global_process_set

Array = NDArray[Any]

ENGINE_TYPES = frozenset(
    "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
)
"""numpy's names of the types that the engine knows."""

_kept_for_ever: list[Any] = []
"""Memory of operations that nobody could wait for, which the engine or MPI may still use."""


def allreduce(
    array: Array, op: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """**Collective.** Return the reduction of ``array``, of a type that the engine knows.

    Args:
        array: The same shape and type on all ranks.
        op: Of ``horovod.common.reduce_ops``.
        name: Name of the operation, the same on all ranks.
        process_set: Its members take part.

    Raises:
        ValueError: The engine refuses it.
        HorovodInternalError: It failed on all ranks, or a rank died.
    """
    array = np.ascontiguousarray(array)
    output = np.empty_like(array)
    how = How("allreduce", name, process_set, op)
    _finish([_start(how, array, output.ctypes.data)], (array, output))
    return output


def allgather(
    array: Array, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """**Collective.** Return the ranks' arrays one after the other, along the first dimension.

    Arguments and errors as ``allreduce``; the first dimension may differ between the ranks.
    """
    array = np.ascontiguousarray(array)
    handle = _start(How("allgather", name, process_set), array, 0)
    engine = basics.engine()
    _wait(engine, [handle], array)
    data, shape = engine.result(handle)
    gathered = np.frombuffer(data, dtype=array.dtype).reshape(shape).copy()
    engine.release(handle)
    return gathered


def broadcast_all(
    arrays: Sequence[Array],
    root_rank: int,
    names: Sequence[str | None],
    process_set: ProcessSet = global_process_set,
) -> None:
    """**Collective.** Overwrite ``arrays``, which are contiguous, by root's; all travel at once.

    Args:
        arrays: The same number, shapes and types on all ranks.
        root_rank: Global rank of the sender.
        names: Of the operations.
        process_set: Its members take part.

    Raises:
        ValueError: The engine refuses one of them; none is waited for.
        HorovodInternalError: One failed on all ranks, or a rank died.
    """
    handles: list[int] = []
    try:
        for array, name in zip(arrays, names, strict=True):
            how = How("broadcast", name, process_set, root_rank=root_rank)
            data = array if array.dtype.name in ENGINE_TYPES else array.reshape(-1).view(np.uint8)
            handles.append(_start(how, data, data.ctypes.data))
    except BaseException:
        _kept_for_ever.append(arrays)
        raise
    _finish(handles, arrays)


def _start(how: How, array: Array, output: int) -> int:
    engine, number = basics.engine(), set_number(how.process_set)
    try:
        name = full_name(how.operation, how.name, number)
        kind = make_kind(how, number, array.dtype.name)
        return engine.start(kind, name, array.ctypes.data, output, array.shape)
    except _engine.InvalidRequest as error:
        take_name_back(how.operation, how.name, number)
        raise ValueError(str(error)) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None


def _finish(handles: Sequence[int], kept: Any) -> None:
    engine = basics.engine()
    _wait(engine, handles, kept)
    for handle in handles:
        engine.release(handle)


def _wait(engine: _engine.Engine, handles: Sequence[int], kept: Any) -> None:
    """Wait for all of ``handles``, which are released when one of them has failed."""
    first: _engine.EngineError | None = None
    try:
        for handle in handles:
            try:
                engine.wait(handle)
            except _engine.EngineError as error:
                first = first or error
    except BaseException:  # interrupted
        _kept_for_ever.append(kept)
        raise
    if first is not None:
        if _engine.messages_were_left_behind():
            _kept_for_ever.append(kept)
        for handle in handles:
            engine.release(handle)
        raise HorovodInternalError(str(first)) from None
