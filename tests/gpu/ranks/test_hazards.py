"""Memory that is written, freed or taken again at the worst moment.

One rank is late: on the others the operation has been handed to the GPU and waits there for it
while their own streams go on.
"""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd
from gpu.device import DEVICE, busy, finish, full, new_stream, put, same, using

LENGTHS = [1000, 4_000_000]
LATE_MS = 100


def total(size: int) -> float:
    return size * (size + 1) / 2


def late(rank: int, who: int) -> None:
    if rank == who:
        busy(LATE_MS)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("who", [0, -1], ids=["first late", "last late"])
def test_an_input_overwritten_right_after_synchronize(
    length: int, who: int, rank: int, size: int
) -> None:
    tensor = full(length, 0.0)
    for step in range(5):
        tensor.fill_(rank + 1)
        late(rank, who % size)
        result = hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Sum, name=f"w{step}{length}"))
        tensor.fill_(1e6)
        same(result, torch.full((length,), total(size)))
        same(tensor, torch.full((length,), 1e6))


@pytest.mark.parametrize("length", LENGTHS)
def test_a_producer_that_still_runs(length: int, rank: int, size: int) -> None:
    tensor = full(length, -1.0)
    finish()
    busy(LATE_MS)
    tensor.fill_(rank + 1)
    handle = hvd.allreduce_async(tensor, op=hvd.Sum)
    same(hvd.synchronize(handle), torch.full((length,), total(size)))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("who", [0, -1], ids=["first late", "last late"])
def test_an_input_dropped_right_after_enqueue(length: int, who: int, rank: int, size: int) -> None:
    """The allocator hands freed blocks to the next tensors of that size."""
    for _ in range(5):
        tensor = full(length, rank + 1)
        late(rank, who % size)
        handle = hvd.allreduce_async(tensor, op=hvd.Sum)
        del tensor
        junk = [full(length, -1e6) for _ in range(4)]
        result = hvd.synchronize(handle)
        junk += [full(length, -1e6) for _ in range(4)]
        same(result, torch.full((length,), total(size)))
        del junk


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("who", [0, -1], ids=["first late", "last late"])
def test_an_input_freed_by_a_stream_that_does_not_wait(
    length: int, who: int, rank: int, size: int
) -> None:
    """Made on one stream, synchronized on another: the first one may take its block at once."""
    maker, waiter = new_stream(), new_stream()
    for _ in range(5):
        with using(maker):
            tensor = full(length, rank + 1)
            late(rank, who % size)
            handle = hvd.allreduce_async(tensor, op=hvd.Sum)
            del tensor
        with using(waiter):
            result = hvd.synchronize(handle)
        with using(maker):
            junk = [full(length, -1e6) for _ in range(4)]
        with using(waiter):
            copy = result.clone()
        finish()
        same(copy, torch.full((length,), total(size)))
        del junk


@pytest.mark.parametrize("length", LENGTHS)
def test_a_result_dropped_at_once(length: int, rank: int, size: int) -> None:
    """What is allocated next may lie where the engine still writes."""
    for who in range(size):
        late(rank, who)
        hvd.synchronize(hvd.allreduce_async(full(length, rank + 1), op=hvd.Sum))
        others = [full(length, 7.0) for _ in range(4)]
        for other in others:
            same(other, torch.full((length,), 7.0))


def test_gathered_results_dropped_at_once(rank: int, size: int) -> None:
    for _ in range(5):
        late(rank, size - 1)
        hvd.allgather(full((1000 + rank, 50), rank))
        hvd.alltoall(full((10 * size, 50), rank))
        others = [full((1000, 50), 7.0) for _ in range(4)]
        for other in others:
            same(other, torch.full((1000, 50), 7.0))


def test_gradients_overwritten_by_the_next_pass(rank: int, size: int) -> None:
    """set_to_none frees gradients that the update has only just been told to read."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    plain = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    plain.load_state_dict(net.state_dict())
    net, plain = net.double().to(DEVICE), plain.double().to(DEVICE)
    ours = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9),
        named_parameters=net.named_parameters(),
    )
    right = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
    for step in range(10):
        generator = torch.Generator().manual_seed(step)
        whole = put(torch.randn(8 * size, 512, dtype=torch.float64, generator=generator))
        late(rank, step % size)
        for model, optimizer, batch in (
            (net, ours, whole[8 * rank : 8 * rank + 8]),
            (plain, right, whole),
        ):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            model(batch).square().mean().backward()
            optimizer.step()
    for parameter, expected in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-9, atol=1e-12)
