"""Allreduce of sparse tensors, by two allgathers: indices and values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.reduce_ops import Average, Sum
from horovod.torch.collectives.allgathers import allgather_async
from horovod.torch.collectives.prepared import expect_tensor
from horovod.torch.handles import synchronize

__all__ = ["sparse_allreduce_async"]


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """**Collective.** Start reducing a sparse tensor over all ranks.

    Args:
        tensor: Sparse (COO), coalesced or not; the same shape and type on all ranks.
        name: Name of the operation, the same on all ranks.
        op: Average or Sum.
        process_set: Its members take part.

    Returns:
        A function that waits and returns the result: sparse, not coalesced.

    Raises:
        ValueError: Not a sparse COO tensor, another ``op``, or as ``allgather_async``.
    """
    expect_tensor(tensor)
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"sparse_allreduce_async: expected a sparse tensor, got {tensor.layout}")
    if op not in (Average, Sum):
        raise ValueError(f"sparse_allreduce_async: expected op Average or Sum, got {op!r}")
    indices = tensor._indices().t().contiguous()
    values = tensor._values().contiguous()
    names = [None if name is None else f"{name}.{part}" for part in ("indices", "values")]
    handles = (
        allgather_async(indices, names[0], process_set),
        allgather_async(values, names[1], process_set),
    )

    def finish() -> torch.Tensor:
        all_indices, all_values = (synchronize(handle) for handle in handles)
        if op == Average:
            all_values = all_values / (process_set.size() or 1)
        indices = all_indices.t()
        return torch.sparse_coo_tensor(indices, all_values, tensor.shape, check_invariants=False)

    return finish
