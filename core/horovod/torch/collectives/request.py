"""From a tensor to a request of the engine: checks, names, and the handle that comes back."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import torch

from horovod import _engine, autotuning, basics
from horovod.common.exceptions import HorovodInternalError
from horovod.process_set import ProcessSet, global_process_set
from horovod.torch import handles
from horovod.torch.handles import Operation

P = ParamSpec("P")

DTYPES = {
    getattr(torch, name): name
    for name in (
        *("uint8", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "bool"),
    )
}
"""{type: the engine's name for it}"""

_unnamed: Counter[tuple[int, str]] = Counter()
_kinds: dict[tuple[Any, ...], _engine.Kind] = {}
_MOST_KINDS = 1000


def check(tensor: torch.Tensor) -> str:
    """**Local.** Return the engine's name of the type of ``tensor``.

    Raises:
        ValueError: The engine cannot communicate the tensor.
    """
    dtype = DTYPES.get(tensor.dtype)
    if (
        dtype is None
        or not tensor.is_cpu
        or tensor.layout is not torch.strided
        or not tensor.is_contiguous()
    ):
        raise ValueError(_why_unsuitable(tensor))
    return dtype


def _why_unsuitable(tensor: torch.Tensor) -> str:
    if tensor.dtype not in DTYPES:
        known = ", ".join(DTYPES.values())
        return f"tensor of type {tensor.dtype}: expected one of {known}"
    if not tensor.is_cpu:
        return f"tensor on {tensor.device}: this version communicates CPU tensors; use tensor.cpu()"
    return (
        "Tensor is required to be contiguous (and dense), got one of shape "
        f"{list(tensor.shape)}, layout {tensor.layout}. Use tensor.contiguous()"
    )


def set_id(process_set: ProcessSet) -> int:
    """**Local.** Return the engine's number of ``process_set``.

    Raises:
        ValueError: The set is not registered.
    """
    number = process_set.process_set_id
    if number is None:
        raise ValueError(
            f"{process_set!r} is not registered: call hvd.add_process_set() on all ranks, or pass "
            "it to hvd.init(process_sets=[...])"
        )
    return number


def start_one(
    operation: str,
    name: str | None,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    process_set: ProcessSet,
    finish: Callable[[Operation], Any],
    **how: Any,
) -> int:
    """**Collective.** Hand one tensor to the engine; return the script's handle.

    Args:
        operation: As in the engine and in front of the name.
        name: Name of the operation, or None.
        tensor: Input.
        output: Where the result goes; None: the engine allocates it (``take_result``).
        process_set: Its members take part.
        finish: Makes the result once the operation is complete.
        **how: Further arguments of ``Engine.enqueue``.

    Raises:
        ValueError: The request is refused.
        HorovodInternalError: A rank died or the engine was shut down.
    """
    engine = basics.engine()
    handle = _start(engine, operation, name, tensor, output, process_set, how)
    return handles.add(Operation(engine, [handle], (tensor, output), finish, output is None))


def run_reduction(
    operation: str,
    name: str | None,
    tensor: torch.Tensor,
    output: torch.Tensor,
    process_set: ProcessSet,
    reduce_op: str,
    prescale: float,
    postscale: float,
) -> torch.Tensor:
    """**Collective.** As ``start_one`` for a reduction, then wait; return ``output``.

    The shortest way through Python: a loop over small tensors spends most of its time here.
    """
    engine = basics.engine()
    how = {"reduce_op": reduce_op, "prescale": prescale, "postscale": postscale}
    handle = _start(engine, operation, name, tensor, output, process_set, how)
    try:
        engine.finish(handle)
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    except BaseException:
        handles.abandon(Operation(engine, [handle], (tensor, output), result_output))
        raise
    autotuning.tick()
    return output


def start_group(
    operation: str,
    name: str | None,
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor] | None,
    process_set: ProcessSet,
    finish: Callable[[Operation], Any],
    **how: Any,
) -> int:
    """**Collective.** Hand several tensors to the engine at once, under one handle.

    Arguments and errors as ``start_one``; names are ``grouped_<operation>.<name>_<i>of<n>``.
    """
    dtypes = [check(tensor) for tensor in tensors]
    engine = basics.engine()
    number = set_id(process_set)
    kind = f"grouped_{operation}"
    base = f"{kind}.{name}" if name is not None else _next_name(kind, number)
    count = len(dtypes)
    places = [0] * count if outputs is None else [output.data_ptr() for output in outputs]
    requests = [
        (f"{base}_{i}of{count}", tensor.data_ptr(), place, tensor.shape, dtype)
        for i, (tensor, place, dtype) in enumerate(zip(tensors, places, dtypes, strict=True), 1)
    ]
    try:
        numbers = engine.enqueue_group(
            requests, operation=operation, named=name is not None, process_set=number, **how
        )
    except _engine.InvalidRequest as error:
        raise _refused(error, kind, name, number) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    return handles.add(Operation(engine, numbers, (tensors, outputs), finish, outputs is None))


def outputs_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """**Local.** Return a new tensor for the result of each of ``tensors``."""
    return [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]


def result_output(operation: Operation) -> Any:
    """**Local.** ``finish`` of operations that write to their output(s)."""
    return operation.kept[1]


def result_allocated(operation: Operation) -> torch.Tensor:
    """**Local.** ``finish`` of an operation whose result the engine allocated."""
    return take_result(operation, 0, operation.kept[0].dtype)


def results_allocated(operation: Operation) -> list[torch.Tensor]:
    """**Local.** ``finish`` of a group whose results the engine allocated."""
    return [take_result(operation, i, each.dtype) for i, each in enumerate(operation.kept[0])]


def take_result(operation: Operation, index: int, dtype: torch.dtype) -> torch.Tensor:
    """**Local.** Return a result that the engine allocated; the tensor keeps its memory alive."""
    data, shape = operation.engine.result(operation.handles[index])
    if data.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def synchronous(name: str, start: Callable[P, int], summary: str) -> Callable[P, Any]:
    """**Local.** Return the function ``name``: ``start``, then waiting for its result."""

    @functools.wraps(start)
    def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        return handles.synchronize(start(*args, **kwargs))

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"**Collective.** {summary}; arguments and errors as ``{start.__name__}``."
    return run


def wants_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    """**Local.** Return whether autograd would record an operation on ``tensors``."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def gradient_name(name: str | None) -> str | None:
    """**Local.** Return the name of the operation on the gradient."""
    return None if name is None else f"{name}.gradient"


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """**Collective.** Run ``function`` so that autograd records it."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def forget_names() -> None:
    """**Local.** Begin to count unnamed operations anew, after ``shutdown``."""
    _unnamed.clear()


def _start(
    engine: _engine.Engine,
    operation: str,
    name: str | None,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    process_set: ProcessSet,
    how: dict[str, Any],
) -> int:
    """Hand one tensor to the engine and return the engine's handle."""
    dtype = check(tensor)
    number = 0 if process_set is global_process_set else set_id(process_set)
    if name is not None:
        full_name = f"{operation}.{name}"
    else:
        full_name = _next_name(operation, number)
    place = 0 if output is None else output.data_ptr()
    try:
        if "splits" not in how:
            kind = _kind(operation, dtype, number, name is not None, how)
            return engine.start(kind, full_name, tensor.data_ptr(), place, tensor.shape)
        return engine.enqueue(
            operation=operation,
            name=full_name,
            input=tensor.data_ptr(),
            output=place,
            shape=tensor.shape,
            dtype=dtype,
            named=name is not None,
            process_set=number,
            **how,
        )
    except _engine.InvalidRequest as error:
        raise _refused(error, operation, name, number) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None


def _kind(
    operation: str, dtype: str, process_set: int, named: bool, how: dict[str, Any]
) -> _engine.Kind:
    """Return the engine's description of such operations, made once."""
    key = (operation, dtype, process_set, named, *how.values())
    kind = _kinds.get(key)
    if kind is None:
        if len(_kinds) >= _MOST_KINDS:  # factors that change from call to call
            _kinds.clear()
        kind = _kinds[key] = _engine.Kind(
            operation=operation, dtype=dtype, process_set=process_set, named=named, **how
        )
    return kind


def _next_name(kind: str, set_number: int) -> str:
    number = _unnamed[set_number, kind]
    _unnamed[set_number, kind] = number + 1
    return f"{kind}.noname.{number}"


def _refused(
    error: _engine.InvalidRequest, kind: str, name: str | None, set_number: int
) -> ValueError:
    """Return what the script gets; a refused request does not count among the unnamed ones."""
    if name is None:
        _unnamed[set_number, kind] -= 1
    return ValueError(str(error))
