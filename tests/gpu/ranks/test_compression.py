"""float32 that travels as float16 or bfloat16, cast on its way into the fusion buffer and out."""

from __future__ import annotations

import math

import pytest
import torch

import horovod.torch as hvd
from gpu.device import DEVICE, ON_GPU, full, put, same
from parallel.training import SGD, batches, loss_of, model, shard

SHORT = {"fp16": (torch.float16, 2**-10), "bf16": (torch.bfloat16, 2**-7)}
"""{compression: (type, a rounding step of 1.0)}"""
LENGTHS = [1, 17, 4099, 300_001]


def sent(rank: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * length + rank)
    return torch.randn(length, generator=generator)


def check(result: torch.Tensor, length: int, size: int, name: str, average: bool = False) -> None:
    """Every sum of two values, and their mean, was rounded: by half a step at most."""
    dtype, step = SHORT[name]
    parts = torch.stack([sent(r, length).to(dtype).double() for r in range(size)])
    expected = parts.sum(0) / (size if average else 1)
    assert (result.dtype, result.is_cuda) == (torch.float32, ON_GPU)
    error = (result.cpu().double() - expected).abs()
    assert (error <= size / 2 * step * parts.abs().sum(0)).all(), error.max()


@pytest.mark.parametrize("name", SHORT)
def test_sums_and_averages_one_by_one_and_in_groups(name: str, rank: int, size: int) -> None:
    compression = getattr(hvd.Compression, name)
    tensors = [put(sent(rank, length)) for length in LENGTHS]
    for op in (hvd.Sum, hvd.Average):
        results = [hvd.allreduce(t, op=op, compression=compression) for t in tensors]
        results += hvd.grouped_allreduce(tensors, op=op, compression=compression)
        for result, length in zip(results, LENGTHS * 2, strict=True):
            check(result, length, size, name, op == hvd.Average)
    for tensor, length in zip(tensors, LENGTHS, strict=True):
        same(tensor, sent(rank, length))


@pytest.mark.parametrize("name", SHORT)
def test_scales_are_applied_to_float32(name: str, rank: int, size: int) -> None:
    """Multiples of 2: they change no rounding, only the range."""
    factors = {"prescale_factor": 2.0**-8, "postscale_factor": 2.0**8}
    compression = getattr(hvd.Compression, name)
    tensor = put(sent(rank, 4099)) * 1000
    result = hvd.allreduce(tensor, op=hvd.Sum, compression=compression, **factors)
    parts = torch.stack([sent(r, 4099).double() * 1000 for r in range(size)])
    error = (result.cpu().double() - parts.sum(0)).abs()
    allowed = (size + 1) / 2 * SHORT[name][1] * parts.abs().sum(0) + 2**-12
    assert (error <= allowed).all(), error.max()


def test_what_is_too_large_for_float16_is_infinite(rank: int, size: int) -> None:
    for value, expected in ((1e5, math.inf), (-1e5, -math.inf), (math.nan, math.nan)):
        tensor = full(100, value if rank == size - 1 else 1.0)
        result = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)
        right = torch.full((100,), expected)
        torch.testing.assert_close(result.cpu(), right, equal_nan=True)
        fine = hvd.allreduce(tensor.nan_to_num(3.0), compression=hvd.Compression.bf16)
        assert fine.isfinite().all()


@pytest.mark.parametrize("length", [64, 1_200_000], ids=["packed", "where it lies"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_averages_of_halves_overflow_only_where_the_result_does(
    dtype: torch.dtype, length: int
) -> None:
    most = 65504.0 if dtype == torch.float16 else 3e38
    tensor = full(length, most, dtype)
    right = tensor.cpu()
    same(hvd.allreduce(tensor), right)
    same(hvd.allreduce(tensor, prescale_factor=4.0, postscale_factor=0.25), right)
    for average in hvd.grouped_allreduce([tensor, tensor.clone()]):
        same(average, right)
    rows = hvd.reducescatter(tensor)
    same(rows, right[: rows.numel()])
    if dtype == torch.float16:
        for compressed in hvd.grouped_allreduce(
            [full(length, 6e4), full(9, -6e4)], compression=hvd.Compression.fp16
        ):
            same(compressed.abs(), torch.full_like(compressed.cpu(), 6e4))


def test_a_group_of_other_types(rank: int, size: int) -> None:
    """Only floating-point tensors become shorter."""
    tensors = [put(sent(rank, 17)), full(17, rank, torch.int64), full(17, rank, torch.float64)]
    total = size * (size - 1) / 2
    first, second, third = hvd.grouped_allreduce(
        tensors, op=hvd.Sum, compression=hvd.Compression.fp16
    )
    check(first, 17, size, "fp16")
    same(second, torch.full((17,), total, dtype=torch.int64))
    same(third, torch.full((17,), total, dtype=torch.float64))


def test_many_of_both_kinds_in_flight(rank: int, size: int) -> None:
    """Neither fuses with the other, and one name may be used for both in turn."""
    for step in range(3):
        results = []
        for i, length in enumerate(LENGTHS * 4):
            name = ("fp16", "bf16", "none")[(i + step) % 3]
            compression = getattr(hvd.Compression, name)
            tensor = put(sent(rank, length))
            result = hvd.allreduce(tensor, name=f"both.{i}", op=hvd.Sum, compression=compression)
            results.append((result, length, name))
        for result, length, name in results:
            if name != "none":
                check(result, length, size, name)
            else:
                whole = torch.stack([sent(r, length) for r in range(size)]).sum(0)
                torch.testing.assert_close(result.cpu(), whole, rtol=1e-5, atol=1e-5)


def test_ranks_that_disagree_are_told(rank: int, size: int) -> None:
    name = "fp16" if rank == size - 1 else "none"
    with pytest.raises(hvd.HorovodInternalError, match=r"allreduce\.wire.*float16 on rank"):
        hvd.allreduce(full(3, 1.0), name="wire", compression=getattr(hvd.Compression, name))
    same(hvd.allreduce(full(3, 1.0), op=hvd.Sum), torch.full((3,), 1.0 * size))


@pytest.mark.parametrize("groups", [None, 2], ids=["single", "groups"])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("name", SHORT)
def test_gradients_of_a_float32_model(name: str, passes: int, groups: int | None) -> None:
    net, reference = model().float().to(DEVICE), model().float()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), **SGD),
        named_parameters=net.named_parameters(),
        compression=getattr(hvd.Compression, name),
        backward_passes_per_step=passes,
        groups=groups,
    )
    data = [(x.float(), y.float()) for x, y in batches(3 * passes)]
    for start in range(0, len(data), passes):
        optimizer.zero_grad()
        reference.zero_grad()
        for x, y in data[start : start + passes]:
            loss_of(net, put(shard(x)), put(shard(y))).backward()
            loss_of(reference, x, y).backward()
        optimizer.synchronize()
        for parameter, right in zip(net.parameters(), reference.parameters(), strict=True):
            assert parameter.grad.dtype == torch.float32
            torch.testing.assert_close(parameter.grad.cpu(), right.grad, rtol=0.05, atol=0.01)
