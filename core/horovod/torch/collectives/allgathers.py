"""Allgather: every rank gets all ranks' tensors, concatenated along the first dimension.

The gradient follows Horovod: the *average* of the ranks' gradients, of which every rank takes the
part that belongs to its tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.process_set import ProcessSet, global_process_set
from horovod.torch.collectives import request
from horovod.torch.collectives.allreduces import reduce_group
from horovod.torch.collectives.reduce_ops import Average, How
from horovod.torch.handles import synchronize

__all__ = ["allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async"]


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** Start concatenating the ranks' tensors along the first dimension.

    Args:
        tensor: Shape (n_rank, ...): the first dimension may differ between ranks, nothing else.
        name: Name of the operation, the same on all ranks.
        process_set: Its members take part.

    Raises:
        ValueError: Unsuitable tensor, this rank is not in the process set, or the name is in flight
            already.
    """
    return request.start_one("allgather", name, tensor, None, process_set, request.result_allocated)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** As ``allgather_async`` for several tensors under one handle."""
    return request.start_group(
        "allgather", name, list(tensors), None, process_set, request.results_allocated
    )


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """**Collective.** Return the ranks' tensors concatenated along dimension 0; differentiable.

    Arguments and errors as ``allgather_async``; HorovodInternalError when the operation fails.

    Returns:
        Shape (sum of n_rank, ...), in the order of the ranks.
    """
    if request.wants_gradient([tensor]):
        result: torch.Tensor = request.apply(_Allgather, name, process_set, tensor)
        return result
    return gather(tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """**Collective.** As ``allgather`` for several tensors; differentiable."""
    tensors = list(tensors)
    if not request.wants_gradient(tensors):
        return gather_group(tensors, name, process_set)
    gathered = request.apply(_Allgather, name, process_set, *tensors)
    return [gathered] if len(tensors) == 1 else list(gathered)


def gather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
    """**Collective.** As ``allgather``, without autograd."""
    result: torch.Tensor = synchronize(allgather_async(tensor, name, process_set))
    return result


def gather_group(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet
) -> list[torch.Tensor]:
    """**Collective.** As ``grouped_allgather``, without autograd."""
    result: list[torch.Tensor] = synchronize(grouped_allgather_async(tensors, name, process_set))
    return result


class _Allgather(torch.autograd.Function):
    """One tensor, or a group."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.name, ctx.process_set = request.gradient_name(name), process_set
        ctx.lengths = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        if len(tensors) == 1:
            return gather(tensors[0], name, process_set)
        return tuple(gather_group(tensors, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        own = torch.tensor([ctx.lengths])
        lengths = gather(own, ctx.name, ctx.process_set)
        starts = lengths[: ctx.process_set.rank()].sum(0).tolist()
        dense = [gradient.contiguous() for gradient in gradients]
        means = reduce_group(dense, How(ctx.name, Average, 1.0, 1.0, ctx.process_set))
        parts = zip(means, starts, ctx.lengths, strict=True)
        return (None, None, *(mean.narrow(0, start, length) for mean, start, length in parts))
