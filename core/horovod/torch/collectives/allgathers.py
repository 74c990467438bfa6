"""Allgather: every rank gets all ranks' tensors, concatenated along the first dimension.

The gradient follows Horovod: the *average* of the ranks' gradients, of which every rank takes the
part that belongs to its tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.operation import How
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.reduce_ops import Average
from horovod.torch.collectives.plain import (
    apply,
    gather,
    gather_group,
    of_gradient,
    reduce_group,
    wants_gradient,
)
from horovod.torch.collectives.results import result_allocated, results_allocated
from horovod.torch.collectives.start import start, start_group

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
    return start(How("allgather", name, process_set), tensor, None, result_allocated)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** As ``allgather_async`` for several tensors under one handle."""
    how = How("allgather", name, process_set)
    return start_group(how, list(tensors), None, results_allocated)


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
    how = How("allgather", name, process_set)
    if wants_gradient([tensor]):
        result: torch.Tensor = apply(_Allgather, how, tensor)
        return result
    return gather(tensor, how)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """**Collective.** As ``allgather`` for several tensors; differentiable."""
    how, tensors = How("allgather", name, process_set), list(tensors)
    if not wants_gradient(tensors):
        return gather_group(tensors, how)
    gathered = apply(_Allgather, how, *tensors)
    return [gathered] if len(tensors) == 1 else list(gathered)


class _Allgather(torch.autograd.Function):
    """One tensor, or a group."""

    @staticmethod
    def forward(ctx: Any, how: How, *tensors: torch.Tensor) -> Any:
        ctx.how = of_gradient(how)
        ctx.lengths = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        if len(tensors) == 1:
            return gather(tensors[0], how)
        return tuple(gather_group(tensors, how))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        how: How = ctx.how
        lengths = gather(torch.tensor([ctx.lengths]), how)
        starts = lengths[: how.process_set.rank()].sum(0).tolist()
        dense = [gradient.contiguous() for gradient in gradients]
        means = reduce_group(dense, how._replace(operation="allreduce", op=Average))
        parts = zip(means, starts, ctx.lengths, strict=True)
        return (None, *(mean.narrow(0, start, length) for mean, start, length in parts))
