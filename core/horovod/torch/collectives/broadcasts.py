"""Broadcast: every rank gets root's tensor.

The gradient follows Horovod: the *average* of the ranks' gradients at the root, zero elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch

from horovod.common import basics
from horovod.common.operation import How
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.reduce_ops import Average
from horovod.torch.collectives.plain import apply, of_gradient, reduce, wants_gradient
from horovod.torch.collectives.prepared import check
from horovod.torch.collectives.results import synchronous
from horovod.torch.collectives.start import start
from horovod.torch.handles import synchronize

__all__ = ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** Start sending root's ``tensor`` to all ranks; the result is a new tensor.

    Args:
        tensor: The same shape and type on all ranks.
        root_rank: Global rank of the sender, a member of the process set.
        name: Name of the operation, the same on all ranks.
        process_set: Its members take part.

    Raises:
        ValueError: Unsuitable tensor, no such root, this rank is not in the process set, or the
            name is in flight already.
    """
    check(tensor)
    how = How("broadcast", name, process_set, root_rank=root_rank)
    return start(how, tensor, torch.empty_like(tensor, requires_grad=False))


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** As ``broadcast_async``, in place."""
    return start(How("broadcast", name, process_set, root_rank=root_rank), tensor, tensor)


broadcast_ = synchronous(
    "broadcast_", broadcast_async_, "Overwrite ``tensor`` by root's on all ranks and return it"
)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """**Collective.** Return root's ``tensor`` on all ranks; differentiable.

    Arguments and errors as ``broadcast_async``; HorovodInternalError when the operation fails.
    """
    if wants_gradient([tensor]):
        result: torch.Tensor = apply(_Broadcast, tensor, root_rank, name, process_set)
    else:
        result = synchronize(broadcast_async(tensor, root_rank, name, process_set))
    return result


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.how = of_gradient(How("allreduce", name, process_set, Average))
        ctx.root_rank = root_rank
        result: torch.Tensor = synchronize(broadcast_async(tensor, root_rank, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        mean = reduce(gradients[0].contiguous(), ctx.how)
        at_root = basics.rank() == ctx.root_rank
        return (mean if at_root else torch.zeros_like(mean), None, None, None)
