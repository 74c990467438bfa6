"""What does not fit is named on every rank, and the next operation works."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import horovod.torch as hvd
from gpu.device import DEVICE, full, put, same


def works() -> None:
    same(hvd.allreduce(full(3, 1.0), op=hvd.Sum), torch.full((3,), float(hvd.size())))


def fails(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(hvd.HorovodInternalError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    works()


@pytest.mark.parametrize("again", [False, True], ids=["first", "cached"])
def test_shape(again: bool, rank: int, size: int) -> None:
    for _ in range(2 if again else 0):
        hvd.allreduce(full(3, 1.0), name="shape.True")
    length = 4 if rank == size - 1 else 3
    fails(
        lambda: hvd.allreduce(full(length, 1.0), name=f"shape.{again}"),
        *(f"allreduce.shape.{again}", "[3] on rank 0", "[4] on rank"),
    )


def test_type(rank: int, size: int) -> None:
    dtype = torch.float64 if rank == size - 1 else torch.float32
    fails(
        lambda: hvd.allreduce(full(3, 1.0, dtype=dtype), name="type"),
        *("allreduce.type", "float32 on rank 0", "float64 on rank"),
    )


def test_root_splits_and_rows(rank: int, size: int) -> None:
    other = int(rank == size - 1)
    fails(lambda: hvd.broadcast(full(3, 1.0), other, name="root"), "broadcast.root")
    fails(lambda: hvd.allgather(full((2, 3 + other), 1.0), name="ag"), "allgather.ag")
    fails(lambda: hvd.reducescatter(full((2, 3 + other), 1.0), name="rs"), "reducescatter.rs")
    fails(lambda: hvd.alltoall(full((size, 3 + other), 1.0), name="a2"), "alltoall.a2")
    with pytest.raises(ValueError, match="alltoall"):
        hvd.alltoall(full(2 * size + 1, 1.0))
    works()


@pytest.mark.parametrize("kind", ["allreduce", "broadcast", "allgather"])
@pytest.mark.parametrize("again", [False, True], ids=["first", "cached"])
def test_one_rank_has_it_in_memory(
    kind: str, again: bool, on_gpu: None, rank: int, size: int
) -> None:
    def call(tensor: torch.Tensor, name: str) -> torch.Tensor:
        arguments = (tensor, 0) if kind == "broadcast" else (tensor,)
        return getattr(hvd, kind)(*arguments, name=name)

    name = f"place.{again}"
    for _ in range(2 if again else 0):
        call(full(3, 1.0), name)
    tensor = torch.ones(3) if rank == size - 1 else full(3, 1.0)
    fails(lambda: call(tensor, name), f"{kind}.{name}", "device", "GPU", "CPU", "rank 0")
    call(full(3, 1.0), name)


def test_another_device_than_the_ranks(on_gpu: None, rank: int) -> None:
    works()
    own = torch.cuda.current_device()
    if torch.cuda.device_count() == 1:
        pytest.skip("needs another GPU")
    other = (own + 1) % torch.cuda.device_count()
    tensor = torch.ones(3, device=f"cuda:{other}")
    calls = [hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.alltoall, hvd.reducescatter]
    calls.append(lambda tensor: hvd.grouped_allreduce([full(3, 1.0), tensor]))
    for call in calls:
        with pytest.raises(ValueError, match=r"GPU|cuda:") as caught:
            call(tensor)
        named = {int(number) for number in re.findall(r"(?:GPU |cuda:)(\d+)", str(caught.value))}
        assert named >= {own, other}, caught.value
    works()


def test_non_contiguous(rank: int) -> None:
    tensor = full((4, 6), 1.0).t()
    for call in (hvd.allreduce, hvd.allgather, hvd.reducescatter):
        with pytest.raises(ValueError, match="contiguous"):
            call(tensor)
    works()


def test_one_failure_among_many(rank: int, size: int) -> None:
    handles = []
    for i in range(20):
        length = 6 if i == 7 and rank == size - 1 else 5
        handles.append(hvd.allreduce_async(full(length, 1.0), op=hvd.Sum, name=f"among.{i}"))
    for i, handle in enumerate(handles):
        if i == 7:
            with pytest.raises(hvd.HorovodInternalError, match=r"among\.7"):
                hvd.synchronize(handle)
        else:
            same(hvd.synchronize(handle), torch.full((5,), float(size)))


def test_inside_a_capture(on_gpu: None, rank: int, size: int) -> None:
    """Refused; a captured model around which gradients are reduced works."""
    weight, gradient = full(1000, rank + 1), full(1000, 0.0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradient.copy_(weight * 2)
    torch.cuda.current_stream().wait_stream(side)
    hvd.allreduce_(full(1000, 1.0), name="before")  # whose end the engine looks for meanwhile
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradient.copy_(weight * 2)
        with pytest.raises(ValueError, match="captur"):
            hvd.allreduce_async(gradient, name="captured")
    for _ in range(3):
        graph.replay()
        hvd.allreduce_(gradient, op=hvd.Sum, name="around")
        same(gradient, torch.full((1000,), size * (size + 1.0)))
    works()


def test_tensors_of_both_kinds_in_one_job(on_gpu: None, rank: int, size: int) -> None:
    """In flight at once, in another order on every rank; each result is where its input was."""
    jobs = [(i, torch.device("cpu") if i % 2 else DEVICE) for i in range(40)]
    handles = {}
    for i, device in jobs if rank % 2 else reversed(jobs):
        tensor = torch.full((100 * i + 1,), float(rank + i), device=device)
        handles[i] = hvd.allreduce_async(tensor, op=hvd.Sum, name=f"both.{i}")
    for i, device in jobs:
        result = hvd.synchronize(handles[i])
        assert result.device.type == device.type
        expected = torch.full((100 * i + 1,), float(sum(r + i for r in range(size))))
        assert torch.equal(result.cpu(), expected)
    assert torch.equal(hvd.allgather(torch.ones(2)), torch.ones(2 * size))
    same(hvd.allgather(put(torch.ones(2))), torch.ones(2 * size))
