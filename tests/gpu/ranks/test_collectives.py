"""Every collective in every type against the same calculated on the CPU by torch."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd
from gpu.device import ON_GPU, full, put, same
from parallel import values
from parallel.values import NUMBERS, SHAPES, make, reduce_all

DTYPES = [*NUMBERS, torch.bool]
OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
LARGE = (1_000_003,)


def check(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert result.is_cuda == ON_GPU
    values.check(result.cpu(), expected)


def sent(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return put(make(rank, shape, torch.int64).to(dtype))


def test_the_build_says_so(on_gpu: None) -> None:
    assert hvd.nccl_built()
    assert hvd.cuda_built()


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("op", OPS, ids=["average", "sum", "min", "max", "product"])
def test_allreduce(dtype: torch.dtype, op: int, rank: int, size: int) -> None:
    for shape in (*SHAPES, LARGE):
        tensor = put(make(rank, shape, dtype))
        expected = reduce_all(size, shape, dtype, op)
        check(hvd.allreduce(tensor, op=op), expected)
        check(hvd.synchronize(hvd.allreduce_async(tensor, op=op, name=f"{shape}{op}")), expected)
        check(tensor, make(rank, shape, dtype))
        in_place = tensor.clone()
        assert hvd.allreduce_(in_place, op=op) is in_place
        check(in_place, expected)
        handle = hvd.allreduce_async_(tensor, op=op)
        assert hvd.synchronize(handle) is tensor
        check(tensor, expected)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Min, hvd.Max, hvd.Product])
def test_allreduce_of_bool(op: int, rank: int, size: int) -> None:
    tensor = put(torch.tensor([True, False, rank == 0]))
    any_rank = op in (hvd.Sum, hvd.Max)
    same(hvd.allreduce(tensor, op=op), torch.tensor([True, False, any_rank or size == 1]))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_scales_apply_before_and_after(dtype: torch.dtype, rank: int, size: int) -> None:
    scaled = [make(r, (1001,), dtype).double() * 1.5 for r in range(size)]
    if not dtype.is_floating_point:
        scaled = [each.trunc() for each in scaled]
    total = torch.stack(scaled).sum(0) * 0.5
    expected = (total if dtype.is_floating_point else total.trunc()).to(dtype)
    tensor = put(make(rank, (1001,), dtype))
    factors = {"prescale_factor": 1.5, "postscale_factor": 0.5}
    check(hvd.allreduce(tensor, op=hvd.Sum, **factors), expected)
    for result in hvd.grouped_allreduce([tensor, tensor.clone()], op=hvd.Sum, **factors):
        check(result, expected)
    hvd.allreduce_(tensor, op=hvd.Sum, **factors)
    check(tensor, expected)


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
def test_compression_keeps_the_type(compression: type, rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.int32):
        tensor = put(make(rank, (5,), dtype))
        expected = reduce_all(size, (5,), dtype, hvd.Sum)
        check(hvd.allreduce(tensor, op=hvd.Sum, compression=compression), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bfloat16], ids=str)
def test_groups_of_allreduce(dtype: torch.dtype, rank: int, size: int) -> None:
    shapes = [(3,), (4, 2), (), (0,), (70_001,), (1,)]
    tensors = [put(make(rank, shape, dtype)) for shape in shapes]
    for op in (hvd.Sum, hvd.Average, hvd.Max):
        expected = [reduce_all(size, shape, dtype, op) for shape in shapes]
        for name in (None, "group", "group"):
            results = hvd.grouped_allreduce(tensors, op=op, name=name)
            for result, right in zip(results, expected, strict=True):
                check(result, right)
    assert hvd.grouped_allreduce_(tensors, op=hvd.Sum)[1] is tensors[1]
    for tensor, shape in zip(tensors, shapes, strict=True):
        check(tensor, reduce_all(size, shape, dtype, hvd.Sum))


def test_a_group_of_several_types(rank: int, size: int) -> None:
    dtypes = [torch.float32, torch.float16, torch.int64, torch.float32]
    tensors = [put(make(rank, (33,), dtype)) for dtype in dtypes]
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    for result, dtype in zip(results, dtypes, strict=True):
        check(result, reduce_all(size, (33,), dtype, hvd.Sum))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allgather_of_equal_uneven_and_no_rows(dtype: torch.dtype, rank: int, size: int) -> None:
    lengths = {
        "equal": lambda r: 3,
        "uneven": lambda r: 2 * r + 1,
        "some none": lambda r: 0 if r else 2,
        "none": lambda r: 0,
    }
    for title, rows in lengths.items():
        for tail in [(), (3,), (2, 2)]:
            parts = [sent(r, (rows(r), *tail), dtype) for r in range(size)]
            same(hvd.allgather(parts[rank]), torch.cat(parts))
            handle = hvd.allgather_async(parts[rank], name=f"{title}{tail}")
            same(hvd.synchronize(handle), torch.cat(parts))


def test_groups_and_large_parts_of_allgather(rank: int, size: int) -> None:
    shapes = [(3,), (40_000 + 7 * rank, 5), (rank, 2)]
    everyone = [
        [sent(r, shape, torch.float32) for shape in [(3,), (40_000 + 7 * r, 5), (r, 2)]]
        for r in range(size)
    ]
    assert [tuple(t.shape) for t in everyone[rank]] == shapes
    for name in (None, "gathered", "gathered"):
        results = hvd.grouped_allgather(everyone[rank], name=name)
        for i, result in enumerate(results):
            same(result, torch.cat([tensors[i] for tensors in everyone]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_broadcast_from_every_root(dtype: torch.dtype, rank: int, size: int) -> None:
    for root in range(size):
        for shape in (*SHAPES, LARGE):
            tensor, expected = sent(rank, shape, dtype), sent(root, shape, dtype)
            same(hvd.broadcast(tensor, root), expected)
            handle = hvd.broadcast_async(tensor, root, name=f"{root}{shape}")
            same(hvd.synchronize(handle), expected)
            same(tensor, sent(rank, shape, dtype))
            assert hvd.broadcast_(tensor, root) is tensor
            same(tensor, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tail", [(), (2, 3)], ids=str)
def test_alltoall_of_equal_parts(
    dtype: torch.dtype, tail: tuple[int, ...], rank: int, size: int
) -> None:
    tensors = [sent(r, (2 * size, *tail), dtype) for r in range(size)]
    expected = torch.cat([tensor.chunk(size)[rank] for tensor in tensors])
    same(hvd.alltoall(tensors[rank]), expected)
    output, received = hvd.synchronize(hvd.alltoall_async(tensors[rank], name=f"equal{tail}"))
    same(output, expected)
    assert received.tolist() == [2] * size


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("where", ["list", "cpu", "device"])
def test_alltoall_of_uneven_parts(dtype: torch.dtype, where: str, rank: int, size: int) -> None:
    counts = [[(3 * s + r) % 4 for r in range(size)] for s in range(size)]
    tensors = [sent(s, (sum(counts[s]), 3), dtype) for s in range(size)]
    parts = [tensor.split(counts[s])[rank] for s, tensor in enumerate(tensors)]
    splits = counts[rank] if where == "list" else torch.tensor(counts[rank], dtype=torch.int32)
    splits = put(splits) if where == "device" else splits
    for name in (None, f"uneven{where}", f"uneven{where}"):
        output, received = hvd.alltoall(tensors[rank], splits=splits, name=name)
        same(output, torch.cat(parts))
        assert received.tolist() == [counts[s][rank] for s in range(size)]
        assert where == "list" or received.device.type == splits.device.type


def test_alltoall_of_nothing_and_to_one_rank(rank: int, size: int) -> None:
    output, received = hvd.alltoall(full((0, 3), 0.0), [0] * size)
    assert (output.shape, received.tolist()) == ((0, 3), [0] * size)
    output, received = hvd.alltoall(full((4, 2), rank), [4] + [0] * (size - 1))
    assert output.shape == ((4 * size, 2) if rank == 0 else (0, 2))
    assert received.tolist() == [4 if rank == 0 else 0] * size
    tensor = put(torch.arange(size * 300_000, dtype=torch.float64) + rank)
    start = rank * 300_000
    rows = torch.arange(start, start + 300_000, dtype=torch.float64)
    same(hvd.alltoall(tensor), torch.cat([rows + s for s in range(size)]))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=["average", "sum"])
def test_reducescatter(dtype: torch.dtype, op: int, rank: int, size: int) -> None:
    shapes = [(1,), (2 * size,), (2 * size + 1, 3), (size - 1, 2, 2), (0, 3), (5, 0), (100_003,)]
    for shape in shapes:
        tensor = put(make(rank, shape, dtype))
        expected = reduce_all(size, shape, dtype, op).tensor_split(size)[rank]
        check(hvd.reducescatter(tensor, op=op), expected)
        handle = hvd.reducescatter_async(tensor, name=f"{shape}{op}", op=op)
        check(hvd.synchronize(handle), expected)
        check(tensor, make(rank, shape, dtype))


def test_groups_and_scales_of_reducescatter(rank: int, size: int) -> None:
    shapes = [(3, 2), (size,), (7,), (4 * size, 1001)]
    tensors = [put(make(rank, shape, torch.float32)) for shape in shapes]
    for name in (None, "group", "group"):
        for op in (hvd.Sum, hvd.Average):
            results = hvd.grouped_reducescatter(tensors, op=op, name=name)
            for result, shape in zip(results, shapes, strict=True):
                whole = reduce_all(size, shape, torch.float32, op)
                check(result, whole.tensor_split(size)[rank])
    factors = {"prescale_factor": 1.5, "postscale_factor": 0.5}
    result = hvd.reducescatter(tensors[0], op=hvd.Sum, **factors)
    whole = reduce_all(size, shapes[0], torch.float32, hvd.Sum) * 0.75
    check(result, whole.tensor_split(size)[rank])


def test_many_operations_at_once_in_another_order(rank: int, size: int) -> None:
    """More than fit one fusion buffer, and more than one kind of them."""
    count = 120
    order = range(count) if rank == 0 else reversed(range(count))
    handles = {
        i: hvd.allreduce_async(
            full(997 * i + 1, i, dtype=torch.float16 if i % 3 else torch.float32),
            op=hvd.Sum if i % 5 else hvd.Max,
            name=f"many.{i}",
        )
        for i in order
    }
    for i, handle in handles.items():
        dtype = torch.float16 if i % 3 else torch.float32
        expected = float(i * size if i % 5 else i)
        same(hvd.synchronize(handle), torch.full((997 * i + 1,), expected, dtype=dtype))


def test_barrier_waits_for_all() -> None:
    hvd.barrier()
