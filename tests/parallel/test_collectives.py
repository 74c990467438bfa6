"""Every collective against numpy-like expectations, in every type, synchronous and not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from parallel.values import NUMBERS, SHAPES, check, make, reduce_all


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product])
def test_allreduce_of_every_type(dtype: torch.dtype, op: int, rank: int, size: int) -> None:
    for shape in SHAPES:
        tensor = make(rank, shape, dtype)
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
    tensor = torch.tensor([True, False, rank == 0])
    any_rank = op in (hvd.Sum, hvd.Max)
    expected = torch.tensor([True, False, True if any_rank else size == 1])
    assert torch.equal(hvd.allreduce(tensor, op=op), expected)


@pytest.mark.parametrize("dtype", [*NUMBERS, torch.bool], ids=str)
def test_allgather_concatenates_uneven_first_dimensions(
    dtype: torch.dtype, rank: int, size: int
) -> None:
    for tail in [(), (3,), (2, 2)]:
        parts = [make(r, (2 * r + 1, *tail), torch.int64).to(dtype) for r in range(size)]
        result = hvd.allgather(parts[rank])
        assert torch.equal(result, torch.cat(parts))
        assert result.dtype == dtype
        handle = hvd.allgather_async(parts[rank], name=f"uneven{tail}")
        assert torch.equal(hvd.synchronize(handle), torch.cat(parts))


def test_allgather_with_ranks_that_have_nothing(rank: int, size: int) -> None:
    tensor = torch.full((0 if rank else 2, 3), float(rank))
    assert torch.equal(hvd.allgather(tensor), torch.zeros(2, 3))
    assert hvd.allgather(torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("dtype", [*NUMBERS, torch.bool], ids=str)
def test_broadcast_from_every_root(dtype: torch.dtype, rank: int, size: int) -> None:
    for root in range(size):
        for shape in SHAPES:
            tensor = make(rank, shape, torch.int64).to(dtype)
            expected = make(root, shape, torch.int64).to(dtype)
            assert torch.equal(hvd.broadcast(tensor, root), expected)
            handle = hvd.broadcast_async(tensor, root, name=f"{root}{shape}")
            assert torch.equal(hvd.synchronize(handle), expected)
            assert torch.equal(tensor, make(rank, shape, torch.int64).to(dtype))
            assert hvd.broadcast_(tensor, root) is tensor
            assert torch.equal(tensor, expected)


def test_grouped_operations(rank: int, size: int) -> None:
    shapes = [(3,), (4, 2), (1,)]
    tensors = [make(rank, shape, torch.float32) for shape in shapes]
    expected = [reduce_all(size, shape, torch.float32, hvd.Sum) for shape in shapes]
    for name in (None, "group"):
        for result, right in zip(
            hvd.grouped_allreduce(tensors, op=hvd.Sum, name=name), expected, strict=True
        ):
            check(result, right)
    gathered = hvd.grouped_allgather(tensors)
    for result, shape in zip(gathered, shapes, strict=True):
        check(result, torch.cat([make(r, shape, torch.float32) for r in range(size)]))
    assert hvd.grouped_allreduce_(tensors, op=hvd.Sum)[1] is tensors[1]
    for result, right in zip(tensors, expected, strict=True):
        check(result, right)


def test_tensors_may_come_one_by_one(size: int) -> None:
    tensors = [torch.full((2,), float(i)) for i in range(3)]
    for start in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        results = start(tensor.repeat(size) for tensor in tensors)
        assert [result[0].item() for result in results] == [0.0, 1.0, 2.0], start


def test_a_factor_is_what_it_is_at_the_call(size: int) -> None:
    rows = torch.ones(2 * size)
    factor = torch.tensor(0.0)
    for value in (0.5, 10.0, 3.0):
        factor.fill_(value)
        factors = {"prescale_factor": factor, "postscale_factor": np.array(2.0)}
        for name in ("factor", None):
            results = [
                hvd.allreduce(rows, name=name, op=hvd.Sum, **factors),
                hvd.synchronize(hvd.allreduce_async(rows, name=name, op=hvd.Sum, **factors)),
                hvd.grouped_allreduce([rows], name=name, op=hvd.Sum, **factors)[0],
                hvd.reducescatter(rows, name=name, op=hvd.Sum, **factors),
            ]
            for result in results:
                assert torch.equal(result, torch.full_like(result, 2 * value * size))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_scales_apply_before_and_after(dtype: torch.dtype, rank: int, size: int) -> None:
    tensor = make(rank, (9,), dtype)
    result = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=1.5, postscale_factor=0.5)
    scaled = [(make(r, (9,), dtype).double() * 1.5) for r in range(size)]
    if not dtype.is_floating_point:
        scaled = [each.trunc() for each in scaled]
    total = torch.stack(scaled).sum(0) * 0.5
    check(result, (total if dtype.is_floating_point else total.trunc()).to(dtype))


def test_average_keyword_is_still_accepted(rank: int, size: int) -> None:
    tensor = torch.full((3,), float(rank))
    total = size * (size - 1) / 2
    with pytest.warns(DeprecationWarning, match="use op="):
        assert torch.equal(hvd.allreduce(tensor, average=False), torch.full((3,), total))
    with pytest.warns(DeprecationWarning, match="use op="):
        assert torch.equal(hvd.allreduce(tensor, average=True), torch.full((3,), total / size))
    with pytest.raises(ValueError, match="mutually exclusive"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
def test_compression_keeps_the_type(compression: type, rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.int32):
        result = hvd.allreduce(make(rank, (5,), dtype), op=hvd.Sum, compression=compression)
        check(result, reduce_all(size, (5,), dtype, hvd.Sum))


def test_many_operations_at_once_in_another_order(rank: int, size: int) -> None:
    count = 50
    order = range(count) if rank == 0 else reversed(range(count))
    handles = {
        i: hvd.allreduce_async(torch.full((i + 1,), float(i)), op=hvd.Sum, name=f"many.{i}")
        for i in order
    }
    for i, handle in handles.items():
        assert torch.equal(hvd.synchronize(handle), torch.full((i + 1,), float(i * size)))


def test_poll_sees_unfinished_work(size: int) -> None:
    handles = [hvd.allreduce_async(torch.ones(200_000)) for _ in range(20)]
    seen = [hvd.poll(handle) for handle in handles]
    for handle in handles:
        assert torch.equal(hvd.synchronize(handle), torch.ones(200_000))
    assert size == 1 or not all(seen)


def test_a_handle_is_good_for_one_synchronize() -> None:
    handle = hvd.allreduce_async(torch.ones(1))
    hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="synchronised already"):
        hvd.poll(handle)


def test_memory_of_dropped_tensors_lives_until_the_operation_ends(size: int) -> None:
    handles = [hvd.allreduce_async(torch.full((10_000,), float(i)), op=hvd.Sum) for i in range(50)]
    for i, handle in enumerate(handles):
        assert torch.equal(hvd.synchronize(handle), torch.full((10_000,), float(i * size)))


def test_barrier_waits_for_all() -> None:
    hvd.barrier()


def test_gradient_of_allreduce_is_the_allreduce_of_the_gradient(rank: int, size: int) -> None:
    tensor = torch.ones(4, dtype=torch.float64, requires_grad=True)
    weights = torch.arange(4.0, dtype=torch.float64) * (rank + 1)
    (hvd.allreduce(tensor, op=hvd.Sum) * weights).sum().backward()
    ranks = size * (size + 1) / 2
    assert torch.equal(tensor.grad, torch.arange(4.0, dtype=torch.float64) * ranks)


def test_gradients_of_allgather_and_broadcast(rank: int, size: int) -> None:
    tensor = torch.ones(rank + 1, 2, requires_grad=True)
    result = hvd.allgather(tensor)
    weights = torch.arange(float(result.numel())).reshape(result.shape) * (rank + 1)
    (result * weights).sum().backward()
    start = rank * (rank + 1) // 2
    mean = (weights / (rank + 1))[start : start + rank + 1] * (size + 1) / 2
    torch.testing.assert_close(tensor.grad, mean)

    tensor = torch.ones(3, requires_grad=True)
    hvd.broadcast(tensor, 0).sum().backward()
    assert torch.equal(tensor.grad, torch.ones(3) if rank == 0 else torch.zeros(3))


def test_gradient_of_a_group(size: int) -> None:
    tensors = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    sum(t.sum() for t in hvd.grouped_allreduce(tensors, op=hvd.Sum, name="g")).backward()
    for tensor in tensors:
        assert torch.equal(tensor.grad, torch.full(tensor.shape, float(size)))
