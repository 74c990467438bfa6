"""Reducescatter: every rank gets its rows of the sum, in every type, also with a remainder."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd
from parallel.values import FLOATS, NUMBERS, check, make, reduce_all


def own_rows(whole: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """The first ranks get one row more."""
    return whole.tensor_split(size)[rank]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=["average", "sum"])
def test_rows_of_the_reduction(dtype: torch.dtype, op: int, rank: int, size: int) -> None:
    for shape in [(1,), (2 * size,), (2 * size + 1, 3), (size - 1, 2, 2), (0, 3), (5, 0)]:
        tensor = make(rank, shape, dtype)
        expected = own_rows(reduce_all(size, shape, dtype, op), rank, size)
        check(hvd.reducescatter(tensor, op=op), expected)
        handle = hvd.reducescatter_async(tensor, name=f"{shape}{op}", op=op)
        check(hvd.synchronize(handle), expected)
        check(tensor, make(rank, shape, dtype))


def test_groups(rank: int, size: int) -> None:
    shapes = [(3, 2), (size,), (7,)]
    tensors = [make(rank, shape, torch.float32) for shape in shapes]
    for name in (None, "group", "group"):
        for op in (hvd.Sum, hvd.Average):
            results = hvd.grouped_reducescatter(tensors, op=op, name=name)
            for result, shape in zip(results, shapes, strict=True):
                whole = reduce_all(size, shape, torch.float32, op)
                check(result, own_rows(whole, rank, size))
    handle = hvd.grouped_reducescatter_async(tensors, op=hvd.Sum)
    assert [result.shape for result in hvd.synchronize(handle)] == [r.shape for r in results]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scales(dtype: torch.dtype, rank: int, size: int) -> None:
    result = hvd.reducescatter(
        make(rank, (6, 2), dtype), op=hvd.Sum, prescale_factor=1.5, postscale_factor=0.5
    )
    whole = reduce_all(size, (6, 2), torch.float64, hvd.Sum) * 0.75
    check(result, own_rows(whole, rank, size).to(dtype))


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
def test_compression_keeps_the_type(compression: type, rank: int, size: int) -> None:
    result = hvd.reducescatter(make(rank, (5,), torch.float32), compression=compression)
    check(result, own_rows(reduce_all(size, (5,), torch.float32, hvd.Average), rank, size))


def test_many_at_once_fuse(rank: int, size: int) -> None:
    handles = [
        hvd.reducescatter_async(torch.full((i, 3), float(rank + i)), name=f"rs.{i}", op=hvd.Sum)
        for i in range(30)
    ]
    for i, handle in enumerate(handles):
        total = float(sum(r + i for r in range(size)))
        expected = own_rows(torch.full((i, 3), total), rank, size)
        assert torch.equal(hvd.synchronize(handle), expected)


def test_what_cannot_be_scattered_is_refused() -> None:
    with pytest.raises(ValueError, match="reducescatter"):
        hvd.reducescatter(torch.tensor(1.0))
    for op in (hvd.Min, hvd.Max, hvd.Product, 17):
        with pytest.raises(ValueError, match="expected op Average or Sum"):
            hvd.reducescatter(torch.ones(4), op=op)
    with pytest.raises(ValueError, match="contiguous"):
        hvd.reducescatter(torch.ones(4, 4).t()[1:])
    with pytest.raises(ValueError, match="bool"):
        hvd.reducescatter(torch.ones(4, dtype=torch.bool))
    assert hvd.reducescatter(torch.ones(hvd.size())).shape == (1,)
