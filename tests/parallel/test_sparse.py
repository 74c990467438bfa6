"""Sparse tensors are reduced by gathering their indices and values."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd


def embedding_gradient(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows 0, rank + 1 and, twice, 5 of 8: not coalesced, another number of rows per rank."""
    rows = torch.tensor([[0, rank + 1, *[5, 5] * (rank % 2)]])
    values = torch.arange(float(rows.numel() * 3)).reshape(-1, 3).to(dtype) + rank
    return torch.sparse_coo_tensor(rows, values, (8, 3), check_invariants=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [None, "sparse", "sparse"])
def test_sums_and_averages(name: str | None, dtype: torch.dtype, rank: int, size: int) -> None:
    total = sum(embedding_gradient(r, dtype).to_dense() for r in range(size))
    start = hvd.sparse_allreduce_async(embedding_gradient(rank, dtype), name, hvd.Sum)
    mean = hvd.sparse_allreduce_async(embedding_gradient(rank, dtype), f"{name}.mean", hvd.Average)
    result = start()
    assert result.is_sparse
    assert result.dtype == dtype
    torch.testing.assert_close(result.to_dense(), total)
    torch.testing.assert_close(mean().to_dense(), total / size)


def test_two_dimensions_of_indices_and_ranks_without_entries(rank: int, size: int) -> None:
    own = torch.zeros(4, 5)
    if rank == 0:
        own[1, 2] = 3.0
    result = hvd.sparse_allreduce_async(own.to_sparse(), "plane", hvd.Sum)()
    expected = torch.zeros(4, 5)
    expected[1, 2] = 3.0
    assert torch.equal(result.to_dense(), expected)
    assert result.shape == (4, 5)


def test_what_is_not_sparse_or_no_sum_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a sparse tensor"):
        hvd.sparse_allreduce_async(torch.ones(3), "dense", hvd.Sum)
    with pytest.raises(ValueError, match="expected op Average or Sum"):
        hvd.sparse_allreduce_async(torch.ones(3).to_sparse(), "op", hvd.Max)
    hvd.barrier()
