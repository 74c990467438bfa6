"""What ranks disagree on is named on every rank, and the next collective works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import horovod.torch as hvd

pytestmark = pytest.mark.usefixtures("two_ranks")


def fails(call: Callable[[], object], *words: str) -> None:
    """``call`` fails on every rank with ``words``; then a collective works."""
    with pytest.raises(hvd.HorovodInternalError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert torch.equal(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), hvd.size() * 1.0))


def last(rank: int, size: int) -> bool:
    return rank == size - 1


@pytest.mark.parametrize("again", [False, True], ids=["first", "cached"])
def test_shape(again: bool, rank: int, size: int) -> None:
    if again:
        hvd.allreduce(torch.ones(3), name=f"shape.{again}")
        hvd.allreduce(torch.ones(3), name=f"shape.{again}")
    length = 4 if last(rank, size) else 3
    fails(
        lambda: hvd.allreduce(torch.ones(length), name=f"shape.{again}"),
        f"allreduce.shape.{again}",
        "[3] on rank 0",
        "[4] on rank",
        f"{size - 1}",
    )


def test_shape_of_equal_count(rank: int, size: int) -> None:
    shape = (3, 2) if last(rank, size) else (2, 3)
    fails(
        lambda: hvd.allreduce(torch.ones(shape), name="count"),
        "allreduce.count",
        "[2, 3]",
        "[3, 2]",
    )


@pytest.mark.parametrize("again", [False, True], ids=["first", "cached"])
def test_type(again: bool, rank: int, size: int) -> None:
    if again:
        hvd.allreduce(torch.ones(3), name=f"type.{again}")
        hvd.allreduce(torch.ones(3), name=f"type.{again}")
    dtype = torch.float64 if last(rank, size) else torch.float32
    fails(
        lambda: hvd.allreduce(torch.ones(3, dtype=dtype), name=f"type.{again}"),
        f"allreduce.type.{again}",
        "float32 on rank 0",
        "float64 on rank",
    )


def test_reduction(rank: int, size: int) -> None:
    op = hvd.Max if last(rank, size) else hvd.Sum
    fails(lambda: hvd.allreduce(torch.ones(3), op=op, name="op"), "allreduce.op", "sum", "max")


def test_scales(rank: int, size: int) -> None:
    factor = 2.5 if last(rank, size) else 1.5
    tensor = torch.ones(3)
    fails(lambda: hvd.allreduce(tensor, prescale_factor=factor, name="pre"), "1.5", "2.5")
    fails(lambda: hvd.allreduce(tensor, postscale_factor=factor, name="post"), "1.5", "2.5")


def test_root(rank: int, size: int) -> None:
    fails(
        lambda: hvd.broadcast(torch.ones(3), int(last(rank, size)), name="root"),
        "broadcast.root",
        "0 on rank 0",
        "1 on rank",
    )


def test_broadcast_shape_and_type(rank: int, size: int) -> None:
    length = 4 if last(rank, size) else 3
    fails(lambda: hvd.broadcast(torch.ones(length), 0, name="bs"), "broadcast.bs", "[3]", "[4]")
    dtype = torch.int32 if last(rank, size) else torch.int64
    fails(
        lambda: hvd.broadcast(torch.ones(3, dtype=dtype), 0, name="bt"),
        "broadcast.bt",
        "int64",
        "int32",
    )


def test_allgather_dimensions(rank: int, size: int) -> None:
    tail = 4 if last(rank, size) else 3
    fails(lambda: hvd.allgather(torch.ones(2, tail), name="ag"), "allgather.ag", "3", "4")
    shape = (2, 3, 1) if last(rank, size) else (2, 3)
    fails(lambda: hvd.allgather(torch.ones(shape), name="ad"), "allgather.ad")


def test_alltoall_dimensions_and_type(rank: int, size: int) -> None:
    tail = 4 if last(rank, size) else 3
    fails(
        lambda: hvd.alltoall(torch.ones(size, tail), name="a2"),
        "alltoall.a2",
        *("3", "on rank 0", "4", f"rank {size - 1}"),
    )
    shape = (size, 3, 1) if last(rank, size) else (size, 3)
    fails(
        lambda: hvd.alltoall(torch.ones(shape), name="a2"),
        "alltoall.a2",
        *(f"[{size}, 3] on rank 0", f"[{size}, 3, 1] on rank {size - 1}"),
    )
    dtype = torch.int16 if last(rank, size) else torch.uint8
    fails(
        lambda: hvd.alltoall(torch.ones(size, dtype=dtype), name="a2"),
        "alltoall.a2",
        *("uint8 on rank", "int16 on rank"),
    )


def test_reducescatter_shape_type_reduction_and_scales(rank: int, size: int) -> None:
    other = last(rank, size)

    def scatter(length: int = 4, dtype: torch.dtype = torch.float32, **how: object) -> None:
        fails(
            lambda: hvd.reducescatter(torch.ones(length, 3, dtype=dtype), name="rs", **how),
            "reducescatter.rs",
            *("on rank 0", f"on rank {size - 1}") if size == 2 else ("rank 0", f"{size - 1}"),
            *words,
        )

    words = ["[4, 3]", "[5, 3]"]
    scatter(length=5 if other else 4)
    words = ["float32", "float64"]
    scatter(dtype=torch.float64 if other else torch.float32)
    words = ["average", "sum"]
    scatter(op=hvd.Sum if other else hvd.Average)
    words = ["1.5", "2.5"]
    scatter(prescale_factor=2.5 if other else 1.5)
    scatter(postscale_factor=2.5 if other else 1.5)


def test_adasum_on_some_ranks_only(rank: int, size: int) -> None:
    op = hvd.Adasum if last(rank, size) else hvd.Sum
    fails(lambda: hvd.allreduce(torch.ones(3), op=op, name="ada"), "allreduce.ada", "sum", "adasum")


def test_allgather_type(rank: int, size: int) -> None:
    dtype = torch.bool if last(rank, size) else torch.bfloat16
    fails(
        lambda: hvd.allgather(torch.ones(2, dtype=dtype), name="at"),
        "allgather.at",
        *("bfloat16", "bool", "rank 0", f"{size - 1}"),
    )


def test_operation(rank: int, size: int) -> None:
    """One name, two operations: only possible below the torch API, which prefixes names."""
    from horovod import _engine
    from horovod.common import basics

    engine, tensor = basics.engine(), torch.ones(3)
    operation = "broadcast" if last(rank, size) else "allreduce"
    kind = _engine.Kind(operation=operation, dtype="float32")
    handle = engine.start(kind, "same", tensor.data_ptr(), tensor.data_ptr(), [3])
    with pytest.raises(RuntimeError, match=r"same.*allreduce on rank 0.*broadcast on rank"):
        engine.wait(handle)
    engine.release(handle)
    assert torch.equal(hvd.allreduce(torch.ones(3)), torch.ones(3))


def test_one_failure_among_many(rank: int, size: int) -> None:
    handles = []
    for i in range(20):
        length = 6 if i == 7 and last(rank, size) else 5
        handles.append(hvd.allreduce_async(torch.ones(length), op=hvd.Sum, name=f"among.{i}"))
    for i, handle in enumerate(handles):
        if i == 7:
            with pytest.raises(hvd.HorovodInternalError, match=r"among\.7"):
                hvd.synchronize(handle)
        else:
            assert torch.equal(hvd.synchronize(handle), torch.full((5,), float(size)))


def test_a_failure_in_a_group_leaves_the_rest_usable(rank: int, size: int) -> None:
    length = 4 if last(rank, size) else 3
    fails(lambda: hvd.grouped_allreduce([torch.ones(2), torch.ones(length)], name="g"), "2of2")


def test_repeated_failures(rank: int, size: int) -> None:
    for _ in range(10):
        length = 4 if last(rank, size) else 3
        fails(lambda: hvd.allreduce(torch.ones(length), name="again"), "allreduce.again")  # noqa: B023
