"""The collectives that take part in autograd; without a gradient, the plain ones.

The gradient of an allreduce is the same allreduce of the gradient. Allgather and broadcast follow
Horovod's convention: gradients are *averaged* over the ranks, then narrowed to this rank's slice
(allgather) or kept at the root and zero elsewhere (broadcast).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod import basics
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import operations
from horovod.torch.compression import Compression, Compressor
from horovod.torch.operations import synchronize

_Scales = tuple[float, float]


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
        tensor: Any shape, the same shape and type on all ranks.
        average: Deprecated: True means ``op=Average``, False ``op=Sum``.
        name: Name of the operation, the same on all ranks.
        compression: How floating-point tensors travel.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: Factor before the reduction.
        postscale_factor: Factor after it.
        process_set: Only the global one in this version.

    Raises:
        ValueError: Unsuitable tensor, both ``op`` and ``average``, or the name is in flight
            already.
        HorovodInternalError: The ranks disagree, a rank died, or the engine was shut down.
    """
    op = operations.resolve_op(op, average)
    compressed, context = compression.compress(tensor)
    scales = (prescale_factor, postscale_factor)
    if _wants_gradient([compressed]):
        reduced = _apply(_Allreduce, compressed, name, op, scales, process_set)
    else:
        reduced = _reduce(compressed, name, op, scales, process_set)
    return compression.decompress(reduced, context)


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
    op = operations.resolve_op(op, average)
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [pair[0] for pair in pairs]
    scales = (prescale_factor, postscale_factor)
    if _wants_gradient(compressed):
        reduced = _apply(_GroupedAllreduce, name, op, scales, process_set, *compressed)
    else:
        reduced = _reduce_group(compressed, name, op, scales, process_set)
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(reduced, pairs, strict=True)
    ]


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """**Collective.** Return the ranks' tensors concatenated along dimension 0; differentiable.

    Args:
        tensor: Shape (n_rank, ...): the first dimension may differ between ranks, nothing else.
        name: Name of the operation, the same on all ranks.
        process_set: Only the global one in this version.

    Returns:
        Shape (sum of n_rank, ...), in the order of the ranks.
    """
    if _wants_gradient([tensor]):
        result: torch.Tensor = _apply(_Allgather, tensor, name, process_set)
    else:
        result = synchronize(operations.allgather_async(tensor, name, process_set))
    return result


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """**Collective.** As ``allgather`` for several tensors; differentiable."""
    if _wants_gradient(tensors):
        names = [None if name is None else f"{name}_{i}" for i in range(len(tensors))]
        return [allgather(t, n, process_set) for t, n in zip(tensors, names, strict=True)]
    result: list[torch.Tensor] = synchronize(
        operations.grouped_allgather_async(tensors, name, process_set)
    )
    return result


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """**Collective.** Return root's ``tensor`` on all ranks; differentiable.

    Args:
        tensor: The same shape and type on all ranks.
        root_rank: Global rank of the sender.
        name: Name of the operation, the same on all ranks.
        process_set: Only the global one in this version.
    """
    if _wants_gradient([tensor]):
        result: torch.Tensor = _apply(_Broadcast, tensor, root_rank, name, process_set)
    else:
        result = synchronize(operations.broadcast_async(tensor, root_rank, name, process_set))
    return result


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        scales: _Scales,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.arguments = (_gradient_name(name), op, scales, process_set)
        return _reduce(tensor, name, op, scales, process_set)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return (_reduce(gradients[0].contiguous(), *ctx.arguments), *([None] * 4))


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        scales: _Scales,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.arguments = (_gradient_name(name), op, scales, process_set)
        return tuple(_reduce_group(tensors, name, op, scales, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        dense = [gradient.contiguous() for gradient in gradients]
        return (*([None] * 4), *_reduce_group(dense, *ctx.arguments))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.arguments = (name, process_set)
        ctx.length = tensor.shape[0] if tensor.dim() else 0
        result: torch.Tensor = synchronize(operations.allgather_async(tensor, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        name, process_set = ctx.arguments
        mean = _reduce(
            gradients[0].contiguous(),
            _gradient_name(name),
            operations.Average,
            (1.0, 1.0),
            process_set,
        )
        length = torch.tensor([ctx.length])
        lengths = synchronize(
            operations.allgather_async(length, _gradient_name(name), process_set)
        ).tolist()
        start = sum(lengths[: basics.rank()])
        return mean.narrow(0, start, ctx.length), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.arguments = (_gradient_name(name), operations.Average, (1.0, 1.0), process_set)
        ctx.root_rank = root_rank
        result: torch.Tensor = synchronize(
            operations.broadcast_async(tensor, root_rank, name, process_set)
        )
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        mean = _reduce(gradients[0].contiguous(), *ctx.arguments)
        at_root = basics.rank() == ctx.root_rank
        return (mean if at_root else torch.zeros_like(mean), None, None, None)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def _wants_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _gradient_name(name: str | None) -> str | None:
    return None if name is None else f"{name}.gradient"


def _reduce(
    tensor: torch.Tensor, name: str | None, op: int, scales: _Scales, process_set: ProcessSet
) -> torch.Tensor:
    handle = operations.allreduce_async(tensor, None, name, op, *scales, process_set)
    result: torch.Tensor = synchronize(handle)
    return result


def _reduce_group(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    scales: _Scales,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    handle = operations.grouped_allreduce_async(tensors, None, name, op, *scales, process_set)
    result: list[torch.Tensor] = synchronize(handle)
    return result
