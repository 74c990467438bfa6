"""What the script gets from an operation that is complete: its output, or what the engine holds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import torch

from horovod.torch import cuda, handles
from horovod.torch.handles import Operation

P = ParamSpec("P")


def outputs_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """**Local.** Return a new tensor for the result of each of ``tensors``."""
    return [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]


def result_output(operation: Operation) -> Any:
    """**Local.** ``finish`` of operations that write to their output(s)."""
    return operation.kept[1]


def result_allocated(operation: Operation) -> torch.Tensor:
    """**Local.** ``finish`` of an operation whose result the engine allocated."""
    return _take(operation, 0, operation.kept[0].dtype)


def results_allocated(operation: Operation) -> list[torch.Tensor]:
    """**Local.** ``finish`` of a group whose results the engine allocated."""
    return [_take(operation, i, each.dtype) for i, each in enumerate(operation.kept[0])]


def synchronous(name: str, start: Callable[P, int], summary: str) -> Callable[P, Any]:
    """**Local.** Return the function ``name``: ``start``, then waiting for its result."""

    @functools.wraps(start)
    def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        return handles.synchronize(start(*args, **kwargs))

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"**Collective.** {summary}; arguments and errors as ``{start.__name__}``."
    return run


def _take(operation: Operation, index: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a result that the engine allocated; the tensor keeps its memory alive."""
    if operation.device >= 0:
        return _take_from_gpu(operation, operation.handles[index], dtype)
    data, shape = operation.engine.result(operation.handles[index])
    if data.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _take_from_gpu(operation: Operation, handle: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the result where it lies: torch's own memory."""
    device = operation.device
    shape = operation.engine.result_shape(handle)
    memory = operation.engine.take_result(handle, cuda.current_stream(device))
    return cuda.result_of(memory, shape, dtype, device)
