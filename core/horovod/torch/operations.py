"""Collectives on tensors: synchronous, asynchronous (``_async``), in place (trailing ``_``).

An operation is identified between ranks by its name. Without ``name`` it gets the next number of
its kind, so all ranks must issue unnamed operations in the same order. Tensors must be contiguous
and on the CPU; out-of-place operations leave their input alone.

The functions that take part in autograd are in ``horovod.torch.differentiable``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from horovod import _engine, basics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, global_process_set, require_global
from horovod.torch import handles
from horovod.torch.handles import Operation, poll, synchronize

Average, Sum, Adasum, Min, Max, Product = range(6)

_REDUCE_OPS = {Average: "average", Sum: "sum", Min: "min", Max: "max", Product: "product"}

_DTYPES = {
    getattr(torch, name): name
    for name in (
        *("uint8", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "bool"),
    )
}

_unnamed: Counter[str] = Counter()

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather_async",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "poll",
    "synchronize",
]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** Start reducing ``tensor`` over all ranks; return a handle.

    Args:
        tensor: Any shape, the same shape and type on all ranks.
        average: Deprecated: True means ``op=Average``, False ``op=Sum``.
        name: Name of the operation, the same on all ranks.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: Factor before the reduction.
        postscale_factor: Factor after it.
        process_set: Only the global one in this version.

    Raises:
        ValueError: Unsuitable tensor, both ``op`` and ``average``, or the name is in flight
            already.
        NotImplementedError: Adasum, or another process set.
    """
    scales = (prescale_factor, postscale_factor)
    return _allreduce("allreduce", [tensor], False, average, name, op, scales, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** As ``allreduce_async``, in place."""
    scales = (prescale_factor, postscale_factor)
    return _allreduce("allreduce", [tensor], True, average, name, op, scales, process_set)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """**Collective.** Reduce ``tensor`` over all ranks in place and return it.

    Arguments and errors as ``allreduce_async``; HorovodInternalError when the operation fails.
    """
    handle = allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    )
    result: torch.Tensor = synchronize(handle)
    return result


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** As ``allreduce_async`` for several tensors under one handle."""
    scales = (prescale_factor, postscale_factor)
    return _allreduce("grouped_allreduce", tensors, False, average, name, op, scales, process_set)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** As ``grouped_allreduce_async``, in place."""
    scales = (prescale_factor, postscale_factor)
    return _allreduce("grouped_allreduce", tensors, True, average, name, op, scales, process_set)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """**Collective.** Reduce several tensors in place and return them."""
    handle = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    result: list[torch.Tensor] = synchronize(handle)
    return result


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** Start concatenating the ranks' tensors along the first dimension.

    Args:
        tensor: Shape (n_rank, ...): the first dimension may differ between ranks, nothing else.
        name: Name of the operation, the same on all ranks.
        process_set: Only the global one in this version.

    Raises:
        ValueError: Unsuitable tensor, or the name is in flight already.
    """
    return _allgather("allgather", [tensor], name, process_set)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** As ``allgather_async`` for several tensors under one handle."""
    return _allgather("grouped_allgather", tensors, name, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** Start sending root's ``tensor`` to all ranks; the result is a new tensor.

    Args:
        tensor: The same shape and type on all ranks.
        root_rank: Global rank of the sender.
        name: Name of the operation, the same on all ranks.
        process_set: Only the global one in this version.

    Raises:
        ValueError: Unsuitable tensor, no such rank, or the name is in flight already.
    """
    return _broadcast(tensor, False, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** As ``broadcast_async``, in place."""
    return _broadcast(tensor, True, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """**Collective.** Overwrite ``tensor`` by root's on all ranks and return it."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """**Collective.** Return when all ranks are here."""
    require_global(process_set)
    operation = Operation(basics.engine())
    no_memory = {"input": 0, "output": 0, "shape": (), "dtype": "uint8"}
    synchronize(_submit(operation, "barrier", "barrier", None, [no_memory]))


def reset() -> None:
    """**Local.** Forget handles and numbers, after ``shutdown``."""
    handles.clear()
    _unnamed.clear()


def resolve_op(op: int | None, average: bool | None) -> int:
    """**Local.** Return the reduction that the two keywords mean.

    Raises:
        ValueError: Both are given, or no such reduction.
        NotImplementedError: Adasum.
    """
    if average is not None:
        if op is not None:
            raise ValueError("allreduce: op and average are mutually exclusive; leave out average")
        warnings.warn("average= is deprecated: use op=", DeprecationWarning, stacklevel=4)
        return Average if average else Sum
    if op is None:
        return Average
    if op == Adasum:
        raise NotImplementedError("op=Adasum is not supported in this version; use Average or Sum")
    if op not in _REDUCE_OPS:
        raise ValueError(f"op: expected Average, Sum, Min, Max or Product, got {op!r}")
    return op


def _allreduce(
    kind: str,
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    average: bool | None,
    name: str | None,
    op: int | None,
    scales: tuple[float, float],
    process_set: ProcessSet,
) -> int:
    require_global(process_set)
    reduce_op = _REDUCE_OPS[resolve_op(op, average)]
    tensors = list(tensors)
    memory = [_memory(tensor) for tensor in tensors]
    outputs = tensors if in_place else _outputs(tensors, memory)
    operation = Operation(basics.engine(), (tensors, outputs))
    operation.finish = lambda: outputs[0] if kind == "allreduce" else outputs
    how = {"reduce_op": reduce_op, "prescale": scales[0], "postscale": scales[1]}
    return _submit(operation, "allreduce", kind, name, memory, **how)


def _allgather(
    kind: str, tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet
) -> int:
    require_global(process_set)
    tensors = list(tensors)
    memory = [_memory(tensor) | {"output": 0} for tensor in tensors]
    operation = Operation(basics.engine(), (tensors,))

    def finish() -> Any:
        found = [
            _take_result(operation.engine, handle, tensor.dtype)
            for handle, tensor in zip(operation.handles, tensors, strict=True)
        ]
        return found[0] if kind == "allgather" else found

    operation.finish = finish
    return _submit(operation, "allgather", kind, name, memory)


def _broadcast(
    tensor: torch.Tensor,
    in_place: bool,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
) -> int:
    require_global(process_set)
    memory = [_memory(tensor)]
    output = tensor if in_place else _outputs([tensor], memory)[0]
    operation = Operation(basics.engine(), (tensor, output))
    operation.finish = lambda: output
    return _submit(operation, "broadcast", "broadcast", name, memory, root_rank=root_rank)


def _memory(tensor: torch.Tensor) -> dict[str, Any]:
    """Return addresses, shape and type as the engine takes them (in place), after checking them."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        known = ", ".join(_DTYPES.values())
        raise ValueError(f"tensor of type {tensor.dtype}: expected one of {known}")
    if tensor.device.type != "cpu":
        raise ValueError(
            f"tensor on {tensor.device}: this version communicates CPU tensors; use tensor.cpu()"
        )
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise ValueError("Tensor is required to be contiguous. Use tensor.contiguous()")
    address = tensor.data_ptr()
    return {"input": address, "output": address, "shape": tensor.shape, "dtype": dtype}


def _outputs(tensors: list[torch.Tensor], memory: list[dict[str, Any]]) -> list[torch.Tensor]:
    """Return new tensors for the results, and tell ``memory`` about them."""
    outputs = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
    for entry, output in zip(memory, outputs, strict=True):
        entry["output"] = output.data_ptr()
    return outputs


def _take_result(engine: _engine.Engine, handle: int, dtype: torch.dtype) -> torch.Tensor:
    """Return an allgather's result; the tensor keeps the engine's memory alive."""
    data, shape = engine.result(handle)
    if data.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _submit(
    operation: Operation,
    engine_operation: str,
    kind: str,
    name: str | None,
    memory: list[dict[str, Any]],
    **how: Any,
) -> int:
    """Hand ``operation`` to the engine, one request per entry of ``memory``; return its handle."""
    names = _full_names(kind, name, len(memory))
    try:
        for full_name, entry in zip(names, memory, strict=True):
            handle = operation.engine.enqueue(
                operation=engine_operation, name=full_name, named=name is not None, **entry, **how
            )
            operation.handles.append(handle)
    except _engine.InvalidRequest as error:
        handles.abandon(operation)
        raise ValueError(str(error)) from None
    except _engine.EngineError as error:
        handles.abandon(operation)
        raise HorovodInternalError(str(error)) from None
    return handles.add(operation)


def _full_names(kind: str, name: str | None, count: int) -> list[str]:
    """Return the names that identify the requests between ranks."""
    if name is None:
        name = f"noname.{_unnamed[kind]}"
        _unnamed[kind] += 1
    if not kind.startswith("grouped_"):
        return [f"{kind}.{name}"]
    return [f"{kind}.{name}_{i}of{count}" for i in range(1, count + 1)]
