"""From a tensor to a request of the engine: names, and the handle that comes back."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import torch

from horovod import _engine
from horovod.common import basics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.torch import cuda, handles
from horovod.torch.collectives import plans
from horovod.torch.collectives.plans import GroupPlan, Plan
from horovod.torch.handles import Operation
from horovod.tuning import autotuning

P = ParamSpec("P")
Reduction = tuple[str, float, float, str | None]
"""``reduce_op``, ``prescale``, ``postscale`` and ``wire_type`` of ``_engine.Kind``."""

_unnamed: Counter[tuple[int, str]] = Counter()


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
        **how: ``splits``, or further arguments of ``_engine.Kind``.

    Raises:
        ValueError: The request is refused.
        HorovodInternalError: A rank died or the engine was shut down.
    """
    engine = basics.engine()
    sent, received = tensor, output
    if _needs_host(tensor, how):
        assert output is not None
        sent = received = tensor.cpu()
        finish = _through_host(finish, [received], [output])
    handle, device, stream = _start(engine, operation, name, sent, received, process_set, how)
    kept = tensor, output
    return handles.add(Operation(engine, (handle,), kept, finish, output is None, device, stream))


def start_reduction(
    name: str | None,
    tensor: torch.Tensor,
    output: torch.Tensor,
    process_set: ProcessSet,
    how: Reduction,
) -> int:
    """**Collective.** As ``start_one`` for an allreduce, by a shorter way where it comes back."""
    key = ("allreduce", name, process_set.process_set_id, *how)
    engine = basics.engine()  # not in a forked child
    plan = plans.known(key)
    if plan is not None and plan.engine is engine:
        handle = _start_again(plan, tensor, output)
        if handle is not None:
            return handle
    keywords = dict(zip(("reduce_op", "prescale", "postscale", "wire_type"), how, strict=True))
    handle = start_one("allreduce", name, tensor, output, process_set, result_output, **keywords)
    plan = plans.known(key)
    if plan is not None:
        plan.prepare_to_run(engine)
    return handle


def run_reduction(
    name: str | None,
    tensor: torch.Tensor,
    output: torch.Tensor,
    process_set: ProcessSet,
    how: Reduction,
) -> torch.Tensor:
    """**Collective.** As ``start_reduction``, then wait; return ``output``.

    The shortest way through Python: a loop over small tensors spends most of its time here.
    """
    engine = basics.engine()  # not in a forked child
    plan = plans.known(("allreduce", name, process_set.process_set_id, *how))
    if plan is not None and plan.engine is engine and _run(plan, tensor, output):
        return output
    result: torch.Tensor = handles.synchronize(
        start_reduction(name, tensor, output, process_set, how)
    )
    return result


def _start_again(plan: Plan, tensor: torch.Tensor, output: torch.Tensor) -> int | None:
    """Return the script's handle; None: the tensors are not like those before."""
    runner, engine, device = plan.runner, plan.engine, plan.device
    assert runner is not None and engine is not None
    stream = 0 if device < 0 else cuda.current_stream(device)
    try:
        handle = runner.start(tensor, output, stream)
    except _engine.InvalidRequest as error:
        raise ValueError(str(error)) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    if handle is None:
        return None
    kept = tensor, output
    return handles.add(Operation(engine, (handle,), kept, result_output, False, device, stream))


def _run(plan: Plan, tensor: torch.Tensor, output: torch.Tensor) -> bool:
    """Do the operation at once if it is the same as before; False: it is not."""
    runner, engine, device = plan.runner, plan.engine, plan.device
    assert runner is not None and engine is not None
    stream = 0 if device < 0 else cuda.current_stream(device)
    try:
        done = runner.run(tensor, output, stream)
    except BaseException as error:
        if runner.pending >= 0:  # let go of by the next operation that is not repeated
            kept, waited = (tensor, output), (runner.pending,)
            handles.abandon(Operation(engine, waited, kept, result_output, False, device, stream))
        if isinstance(error, _engine.InvalidRequest):
            raise ValueError(str(error)) from None
        if isinstance(error, _engine.EngineError):
            raise HorovodInternalError(str(error)) from None
        raise
    if done:
        autotuning.tick()
    return done


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
    engine = basics.engine()
    number = set_id(process_set)
    kept = tensors, outputs
    if outputs is not None and any(_needs_host(tensor, how) for tensor in tensors):
        copies = [tensor.cpu() for tensor in tensors]
        finish = _through_host(finish, copies, outputs)
        tensors = outputs = copies
    group = f"grouped_{operation}"
    count = len(tensors)
    key = (group, name, number, count, *how.values())
    plan = plans.known(key)
    inputs = None if plan is None else plan.places(tensors)
    if inputs is None:
        plan = _plan_group(engine, operation, name, tensors, number, how)
        inputs = plans.places_of(tensors)
        if name is not None:
            plans.remember(key, plan)
    if outputs is tensors:
        places = inputs
    elif outputs is None:
        places = _engine.Places([0] * count)
    else:
        places = plan.places(outputs) or plans.places_of(outputs)
    device = plan.device
    stream = 0 if device < 0 else cuda.current_stream(device)
    try:
        first = engine.start_group(plan.prepared, inputs, places, stream)
    except _engine.InvalidRequest as error:
        raise _refused(error, group, name, number) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    numbers = range(first, first + count)
    return handles.add(Operation(engine, numbers, kept, finish, outputs is None, device, stream))


def compresses(tensor: torch.Tensor, wire_type: str | None) -> bool:
    """**Local.** Return whether the engine itself can let ``tensor`` travel as ``wire_type``."""
    return wire_type is not None and tensor.dtype is torch.float32 and tensor.is_cuda


def _plan_group(
    engine: _engine.Engine,
    operation: str,
    name: str | None,
    tensors: Sequence[torch.Tensor],
    number: int,
    how: dict[str, Any],
) -> GroupPlan:
    devices = {tensor.get_device() for tensor in tensors}
    if len(devices) > 1:
        found = " and ".join(sorted({str(tensor.device) for tensor in tensors}))
        raise ValueError(f"{operation}: expected a group on one device, got {found}")
    named = name is not None
    kinds = [plans.kind(engine, operation, tensor, number, named, how) for tensor in tensors]
    group, count = f"grouped_{operation}", len(tensors)
    base = f"{group}.{name}" if named else _next_name(group, number)
    members = [
        Plan(kind, f"{base}_{i}of{count}", tensor)
        for i, (kind, tensor) in enumerate(zip(kinds, tensors, strict=True), 1)
    ]
    return GroupPlan(members, max(devices, default=cuda.HOST))


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
    if operation.device >= 0:
        return _take_from_gpu(operation, operation.handles[index], dtype)
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
    """**Local.** Begin to count unnamed operations anew."""
    _unnamed.clear()


def forget_engine() -> None:
    """**Local.** Forget what belongs to the engine, after ``shutdown``."""
    forget_names()
    plans.forget()


def _take_from_gpu(operation: Operation, handle: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a copy in torch's own memory; the engine's is reusable after it."""
    stream = cuda.current_stream(operation.device)
    operation.engine.order(handle, stream)  # the input is let go when anything below fails
    shape = operation.engine.result_shape(handle)
    output = torch.empty(shape, dtype=dtype, device=f"cuda:{operation.device}")
    operation.engine.take_result(handle, output.data_ptr(), stream)
    return output


def _needs_host(tensor: torch.Tensor, how: dict[str, Any]) -> bool:
    """Return whether only the CPU can do it: Adasum."""
    return how.get("reduce_op") == "adasum" and tensor.is_cuda


def _through_host(
    finish: Callable[[Operation], Any],
    copies: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> Callable[[Operation], Any]:
    """Return a ``finish`` that first puts results on the CPU where they belong."""

    def copy_and_finish(operation: Operation) -> Any:
        for output, copy in zip(outputs, copies, strict=True):
            output.detach().copy_(copy)
        return finish(operation)

    return copy_and_finish


def _start(
    engine: _engine.Engine,
    operation: str,
    name: str | None,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    process_set: ProcessSet,
    how: dict[str, Any],
) -> tuple[int, int, int]:
    """Hand one tensor to the engine; return the engine's handle, the GPU (-1: none), its stream."""
    number = 0 if process_set is global_process_set else set_id(process_set)
    key = (operation, name, number, *how.values())
    plan = None if name is None else plans.known(key)
    place = None if plan is None else plan.place(tensor)
    try:
        if plan is not None and place is not None:
            device = plan.device
            stream = 0 if device < 0 else cuda.current_stream(device)
            other = place if output is tensor else 0 if output is None else output.data_ptr()
            return engine.start_prepared(plan.prepared, place, other, stream), device, stream
        splits = how.pop("splits", ())
        kind = plans.kind(engine, operation, tensor, number, name is not None, how)
        device = tensor.get_device()
        stream = 0 if device < 0 else cuda.current_stream(device)
        full_name = _next_name(operation, number) if name is None else f"{operation}.{name}"
        place, other = tensor.data_ptr(), 0 if output is None else output.data_ptr()
        started = engine.start(kind, full_name, place, other, tensor.shape, stream, splits)
    except _engine.InvalidRequest as error:
        raise _refused(error, operation, name, number) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    if name is not None and not splits:
        plans.remember(key, Plan(kind, full_name, tensor))
    return started, device, stream


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
