"""Allreduce: every rank gets the reduction of all ranks' tensors.

The gradient of an allreduce by Average, Sum or Adasum is the same allreduce of the gradient. With
Min, Max and Product it is the derivative itself (Horovod returns the Min, Max or Product of the
gradients, which is none); equal extremes share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.operation import How
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.reduce_ops import Adasum, Average, Max, Min, Product, Sum, resolve_op
from horovod.torch.collectives.plain import (
    apply,
    gather,
    of_gradient,
    reduce,
    reduce_group,
    start_reductions,
    wants_gradient,
)
from horovod.torch.collectives.prepared import check
from horovod.torch.collectives.results import synchronous
from horovod.torch.collectives.start import run, start
from horovod.torch.compression import Compression, Compressor, compresses

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
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
        op: Average (default), Sum, Adasum, Min, Max or Product.
        prescale_factor: Factor before the reduction.
        postscale_factor: Factor after it.
        process_set: Its members take part.

    Raises:
        ValueError: Unsuitable tensor, both ``op`` and ``average``, this rank is not in the process
            set, Adasum over a number of ranks that is no power of two, or the name is in flight
            already.
    """
    op = resolve_op(op, average)
    check(tensor)
    output = torch.empty_like(tensor, requires_grad=False)
    how = How("allreduce", name, process_set, op, float(prescale_factor), float(postscale_factor))
    return start(how, tensor, output)


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
    op = resolve_op(op, average)
    how = How("allreduce", name, process_set, op, float(prescale_factor), float(postscale_factor))
    return start(how, tensor, tensor)


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
    op = resolve_op(op, average)
    how = How("allreduce", name, process_set, op, float(prescale_factor), float(postscale_factor))
    return run(how, tensor, tensor)


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
    op = resolve_op(op, average)
    how = How("allreduce", name, process_set, op, float(prescale_factor), float(postscale_factor))
    return start_reductions(tensors, None, how)


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
    op = resolve_op(op, average)
    how = How("allreduce", name, process_set, op, float(prescale_factor), float(postscale_factor))
    return start_reductions(tensors, tensors, how)


grouped_allreduce_ = synchronous(
    "grouped_allreduce_",
    grouped_allreduce_async_,
    "Reduce several tensors over all ranks in place and return them",
)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """**Collective.** Return the reduction of ``tensor`` over all ranks; differentiable.

    Args:
        tensor: As ``allreduce_async``, and so are the others.
        average: Deprecated.
        name: Name of the operation.
        compression: How floating-point tensors travel.
        op: The reduction.
        prescale_factor: Factor before it.
        postscale_factor: Factor after it.
        process_set: Its members take part.

    Raises:
        ValueError: As ``allreduce_async``.
        HorovodInternalError: The ranks disagree, a rank died, or the engine was shut down.
    """
    op = resolve_op(op, average)
    how = How("allreduce", name, process_set, op, float(prescale_factor), float(postscale_factor))
    if op != Adasum and compresses(tensor, compression.wire_type):
        how, compression = how._replace(wire_type=compression.wire_type), Compression.none
    compressed, context = compression.compress(tensor)
    if wants_gradient([compressed]):
        reduced = apply(_Allreduce, how, compressed)
    else:
        reduced = reduce(compressed, how)
    result: torch.Tensor = compression.decompress(reduced, context)
    return result


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """**Collective.** As ``allreduce`` for several tensors at once; differentiable."""
    op = resolve_op(op, average)
    how = How("allreduce", name, process_set, op, float(prescale_factor), float(postscale_factor))
    tensors = list(tensors)
    if op != Adasum and all(compresses(t, compression.wire_type) for t in tensors):
        how, compression = how._replace(wire_type=compression.wire_type), Compression.none
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [pair[0] for pair in pairs]
    if wants_gradient(compressed):
        reduced = apply(_Allreduce, how, *compressed)
        reduced = [reduced] if len(pairs) == 1 else reduced
    else:
        reduced = reduce_group(compressed, how)
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(reduced, pairs, strict=True)
    ]


class _Allreduce(torch.autograd.Function):
    """One tensor, or a group."""

    @staticmethod
    def forward(ctx: Any, how: How, *tensors: torch.Tensor) -> Any:
        ctx.how = of_gradient(how)
        if how.op in (Min, Max, Product):
            ctx.save_for_backward(*tensors)
        reduced = [reduce(tensors[0], how)] if len(tensors) == 1 else reduce_group(tensors, how)
        return reduced[0] if len(tensors) == 1 else tuple(reduced)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        how: How = ctx.how
        dense = [gradient.contiguous() for gradient in gradients]
        if how.op in (Min, Max, Product):
            total = reduce_group(dense, how._replace(op=Sum, prescale=1.0, postscale=1.0))
            pairs = zip(ctx.saved_tensors, total, strict=True)
            return (None, *(_derivative(*pair, i, how) for i, pair in enumerate(pairs)))
        if len(dense) == 1:
            return None, reduce(dense[0], how)
        return (None, *reduce_group(dense, how))


def _derivative(tensor: torch.Tensor, gradient: torch.Tensor, index: int, how: How) -> torch.Tensor:
    """**Collective.** Return ``gradient`` times d(reduction)/d(this rank's tensor)."""
    name = None if how.name is None else f"{how.name}.{index}"
    all_rows = How("allgather", name, how.process_set)
    rows = gather(tensor.detach().unsqueeze(0), all_rows).requires_grad_()
    with torch.enable_grad():
        scaled = rows * how.prescale
        reduced = {
            Min: lambda: scaled.amin(0),
            Max: lambda: scaled.amax(0),
            Product: lambda: scaled.prod(0),
        }[how.op]() * how.postscale
    (derivative,) = torch.autograd.grad(reduced, rows, gradient)
    return derivative[how.process_set.rank()]
