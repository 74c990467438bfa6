"""Alltoall: every rank's part for every rank, in every type, with splits and without."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from parallel.values import NUMBERS, make

DTYPES = [*NUMBERS, torch.bool]


def rows(sender: int, receiver: int) -> int:
    """Uneven, some of them none."""
    return (3 * sender + receiver) % 4


def cut(tensor: torch.Tensor, sender: int, size: int) -> list[torch.Tensor]:
    return list(tensor.split([rows(sender, receiver) for receiver in range(size)]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tail", [(), (3,), (2, 2)], ids=str)
def test_equal_parts(dtype: torch.dtype, tail: tuple[int, ...], rank: int, size: int) -> None:
    sent = [make(r, (2 * size, *tail), torch.int64).to(dtype) for r in range(size)]
    expected = torch.cat([tensor.chunk(size)[rank] for tensor in sent])
    result = hvd.alltoall(sent[rank])
    assert result.dtype == dtype
    assert torch.equal(result, expected)
    output, received = hvd.synchronize(hvd.alltoall_async(sent[rank], name=f"equal{tail}"))
    assert torch.equal(output, expected)
    assert received.tolist() == [2] * size


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tail", [(), (3,)], ids=str)
def test_uneven_parts(dtype: torch.dtype, tail: tuple[int, ...], rank: int, size: int) -> None:
    counts = [[rows(s, r) for r in range(size)] for s in range(size)]
    sent = [make(s, (sum(counts[s]), *tail), torch.int64).to(dtype) for s in range(size)]
    expected = torch.cat([cut(tensor, s, size)[rank] for s, tensor in enumerate(sent)])
    for splits in (counts[rank], torch.tensor(counts[rank], dtype=torch.int32)):
        for name in (None, f"uneven{tail}", f"uneven{tail}"):
            output, received = hvd.alltoall(sent[rank], splits=splits, name=name)
            assert torch.equal(output, expected)
            assert received.dtype == torch.int32
            assert received.tolist() == [counts[s][rank] for s in range(size)]


def test_splits_may_be_any_whole_numbers(size: int) -> None:
    whole = [np.ones(size, dtype=np.int64), [np.int32(1)] * size, [torch.tensor(1)] * size]
    for splits in whole:
        output, received = hvd.alltoall(torch.ones(size), splits)
        assert torch.equal(output, torch.ones(size))
        assert received.tolist() == [1] * size
    for splits in ([1.0] * size, np.ones(size), ["1"] * size):
        with pytest.raises(ValueError, match="whole numbers"):
            hvd.alltoall(torch.ones(size), splits)
    with pytest.raises(ValueError, match="at most the first dimension"):
        hvd.alltoall(torch.ones(size), torch.tensor([2**63 - 1] * size))


def test_splits_may_change_under_one_name(rank: int, size: int) -> None:
    for step in range(6):
        splits = [(step + r) % 3 for r in range(size)]
        output, received = hvd.alltoall(torch.full((sum(splits),), float(rank)), splits, "changing")
        expected = torch.cat([torch.full((splits[rank],), float(s)) for s in range(size)])
        assert torch.equal(output, expected)
        assert received.tolist() == [splits[rank]] * size


def test_rows_beyond_the_splits_are_not_sent(rank: int, size: int) -> None:
    tensor = torch.arange(float(size + 5)) + 100 * rank
    output, _ = hvd.alltoall(tensor, [1] * size)
    assert torch.equal(output, torch.tensor([100.0 * s + rank for s in range(size)]))


def test_nothing_to_send(rank: int, size: int) -> None:
    output, received = hvd.alltoall(torch.zeros(0, 3), [0] * size)
    assert output.shape == (0, 3)
    assert received.tolist() == [0] * size
    assert hvd.alltoall(torch.zeros(0, 3)).shape == (0, 3)


def test_everything_to_one_rank(rank: int, size: int) -> None:
    splits = [4] + [0] * (size - 1)
    output, received = hvd.alltoall(torch.full((4, 2), float(rank)), splits)
    assert output.shape == ((4 * size, 2) if rank == 0 else (0, 2))
    assert received.tolist() == [4 if rank == 0 else 0] * size


def test_large_parts(rank: int, size: int) -> None:
    tensor = torch.arange(size * 300_000, dtype=torch.float64) + rank
    start = rank * 300_000
    expected = torch.cat(
        [torch.arange(start, start + 300_000, dtype=torch.float64) + s for s in range(size)]
    )
    assert torch.equal(hvd.alltoall(tensor), expected)


def test_wrong_splits_are_refused(rank: int, size: int) -> None:
    tensor = torch.ones(2 * size)
    for splits, words in [
        ([1] * (size + 1), str(size + 1)),
        ([2 * size + 1] + [0] * (size - 1), str(2 * size + 1)),
        ([-1] + [0] * (size - 1), "-1"),
        ([], "empty"),
        (torch.ones(size), "int32"),
        (torch.ones(size, 1, dtype=torch.int32), "one dimension"),
        ([1.5] * size, "whole numbers"),
    ]:
        with pytest.raises(ValueError, match=words):
            hvd.alltoall(tensor, splits)
    if size > 1:
        with pytest.raises(ValueError, match="alltoall"):
            hvd.alltoall(torch.ones(2 * size + 1))
    with pytest.raises(ValueError, match="alltoall"):
        hvd.alltoall(torch.tensor(1.0))
    assert hvd.alltoall(tensor).numel() == 2 * size


def test_many_exchanges_at_once(rank: int, size: int) -> None:
    handles = [
        hvd.alltoall_async(torch.full((size, i), float(rank)), name=f"many.{i}") for i in range(20)
    ]
    for i, handle in enumerate(handles):
        output, _ = hvd.synchronize(handle)
        assert torch.equal(output, torch.arange(float(size)).reshape(size, 1).expand(size, i))
