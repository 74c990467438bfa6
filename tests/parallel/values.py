"""What the ranks send in tests, and what numpy-like arithmetic makes of it."""

from __future__ import annotations

import torch

import horovod.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
NUMBERS = FLOATS + INTEGERS
SHAPES = [(), (1,), (17,), (3, 5), (2, 3, 4), (0,), (4, 0)]
REDUCTIONS = {hvd.Sum: torch.sum, hvd.Min: torch.amin, hvd.Max: torch.amax, hvd.Product: torch.prod}


def make(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, exact in every type, different on every rank."""
    count = int(torch.tensor(shape).prod()) if shape else 1
    values = (torch.arange(count) * 7 + rank * 3) % 4 + 1
    return values.to(dtype).reshape(shape)


def everyone(size: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    return torch.stack([make(rank, shape, dtype).to(wide) for rank in range(size)])


def reduce_all(size: int, shape: tuple[int, ...], dtype: torch.dtype, op: int) -> torch.Tensor:
    stacked = everyone(size, shape, dtype)
    if op == hvd.Average:
        mean = stacked.sum(0) / size
        return (mean if dtype.is_floating_point else mean.trunc()).to(dtype)
    return REDUCTIONS[op](stacked, 0).to(dtype)


def check(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6}
    torch.testing.assert_close(result, expected, rtol=tolerance.get(expected.dtype, 0), atol=0)
