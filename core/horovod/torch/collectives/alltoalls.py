"""Alltoall: every rank cuts its tensor into one part per rank and gets one part from each.

The gradient travels back the way the parts came.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch

from horovod.common.operation import How
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.torch.collectives.plain import apply, of_gradient, wants_gradient
from horovod.torch.collectives.results import result_allocated
from horovod.torch.collectives.start import start
from horovod.torch.handles import Operation, synchronize

__all__ = ["alltoall", "alltoall_async"]

Splits = Sequence[SupportsIndex] | torch.Tensor


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """**Collective.** Start exchanging parts; ``synchronize`` gives (output, received_splits).

    Args:
        tensor: Shape (n_rank, ...): the first dimension may differ between ranks, nothing else.
        splits: Shape (size of the set,), whole numbers, as a sequence or an int32 or int64 tensor:
            rows for each rank, in order; rows beyond their sum are not sent. None: equal parts.
        name: Name of the operation, the same on all ranks.
        process_set: Its members take part.

    Raises:
        ValueError: Unsuitable tensor or splits, this rank is not in the process set, or the name is
            in flight already.
    """
    device = splits.device if isinstance(splits, torch.Tensor) else torch.device("cpu")

    def finish(operation: Operation) -> tuple[torch.Tensor, torch.Tensor]:
        received = operation.engine.received_splits(operation.handles[0])
        return (
            result_allocated(operation),
            torch.tensor(received, dtype=torch.int32, device=device),
        )

    rows = () if splits is None else _rows(splits)
    if splits is not None and not rows:
        raise ValueError("alltoall: splits is empty: expected one entry per rank, or None")
    return start(How("alltoall", name, process_set), tensor, None, finish, rows)


def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """**Collective.** Exchange parts of ``tensor`` with all ranks; differentiable.

    Arguments and errors as ``alltoall_async``; HorovodInternalError when the operation fails.

    Returns:
        The parts of all ranks for this one, concatenated by rank, shape (rows received, ...); with
        ``splits`` a pair of it and the rows received from each rank, int32, on splits' device.
    """
    if wants_gradient([tensor]):
        output, received = apply(_Alltoall, tensor, splits, name, process_set)
    else:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received)


def _rows(splits: Splits) -> tuple[int, ...]:
    if isinstance(splits, torch.Tensor):
        if splits.dtype not in (torch.int32, torch.int64) or splits.dim() != 1:
            raise ValueError(
                "alltoall: expected splits of one dimension and type torch.int32, got "
                f"{splits.dtype} of shape {list(splits.shape)}"
            )
        return tuple(splits.tolist())
    try:
        return tuple(operator.index(rows) for rows in splits)
    except TypeError:
        raise ValueError(
            f"alltoall: expected splits of whole numbers, got {list(splits)}"
        ) from None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: Splits | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.mark_non_differentiable(received)
        name = of_gradient(How("alltoall", name)).name
        ctx.arguments = (received.tolist(), name, process_set)
        ctx.rows = tensor.shape[0]
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        back, _ = synchronize(alltoall_async(gradients[0].contiguous(), *ctx.arguments))
        unsent = ctx.rows - back.shape[0]
        if unsent:
            back = torch.cat([back, back.new_zeros(unsent, *back.shape[1:])])
        return back, None, None, None
