"""Streams: what the engine waits for, what waits for the engine, and that the host never does."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

import pytest
import torch

import horovod.torch as hvd
from gpu.device import DEVICE, busy, finish, full, new_stream, same, using, wait_until
from horovod.common import basics

LENGTH = 300_000
LONG_MS = 2000
SHORT_MS = 100


def total(size: int) -> float:
    """Sum of rank + 1 over all ranks."""
    return size * (size + 1) / 2


def warmed_up(name: str) -> None:
    """Make what the first operation makes, which may wait for the GPU."""
    hvd.allreduce(full(LENGTH, 0.0), op=hvd.Sum, name=name)
    hvd.allreduce_(full(LENGTH, 0.0), op=hvd.Sum, name=name)
    finish()


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in place"])
def test_synchronize_does_not_wait_for_the_gpu(in_place: bool, rank: int, size: int) -> None:
    warmed_up("asynchronous")
    tensor = full(LENGTH, rank + 1)
    start = hvd.allreduce_async_ if in_place else hvd.allreduce_async
    hvd.barrier()
    busy(LONG_MS)
    result = hvd.synchronize(start(tensor, op=hvd.Sum, name="asynchronous"))
    still_running = not torch.cuda.current_stream().query()
    same(result, torch.full((LENGTH,), total(size)))
    assert still_running


CALLS = {
    "allreduce": lambda t, size: hvd.allreduce(t, op=hvd.Sum, name="call"),
    "grouped_allreduce": lambda t, size: hvd.grouped_allreduce([t, t.clone()], name="call"),
    "broadcast": lambda t, size: hvd.broadcast(t, 0, name="call"),
    "reducescatter": lambda t, size: hvd.reducescatter(t, name="call"),
    "allgather": lambda t, size: hvd.allgather(t, name="call"),
    "alltoall": lambda t, size: hvd.alltoall(t, name="call"),
}


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kind", CALLS)
def test_no_collective_waits_for_the_gpu(kind: str, size: int) -> None:
    tensor = full(8 * size, 1.0)
    CALLS[kind](tensor, size)
    finish()
    hvd.barrier()
    busy(LONG_MS / 2)
    CALLS[kind](tensor, size)
    assert not torch.cuda.current_stream().query()
    finish()


@pytest.mark.usefixtures("on_gpu")
def test_poll_is_true_only_when_the_gpu_is_done(size: int) -> None:
    warmed_up("polled")
    tensor = full(LENGTH, 1.0)
    finish()
    hvd.barrier()
    busy(LONG_MS / 2)
    handle = hvd.allreduce_async(tensor, op=hvd.Sum, name="polled")
    early = hvd.poll(handle)
    finish()
    wait_until(lambda: hvd.poll(handle))
    same(hvd.synchronize(handle), torch.full((LENGTH,), float(size)))
    assert not early


def test_the_engine_waits_for_a_producer_on_a_side_stream(rank: int, size: int) -> None:
    """Filled late on one stream, read after synchronize on another."""
    producer, reader = new_stream(), new_stream()
    for in_place in (False, True):
        with using(producer):
            tensor = full(LENGTH, -1.0)
            busy(SHORT_MS)
            tensor.fill_(rank + 1)
            start = hvd.allreduce_async_ if in_place else hvd.allreduce_async
            handle = start(tensor, op=hvd.Sum)
        with using(reader):
            copy = hvd.synchronize(handle).clone()
        finish()
        same(copy, torch.full((LENGTH,), total(size)))


@pytest.mark.usefixtures("on_gpu")
def test_another_stream_does_not_wait(size: int) -> None:
    """Only the stream that synchronizes is bound to the engine."""
    warmed_up("unbound")
    other = torch.cuda.Stream()
    finish()
    hvd.barrier()
    busy(LONG_MS / 2)
    handle = hvd.allreduce_async(full(LENGTH, 1.0), op=hvd.Sum, name="unbound")
    with using(other):
        mark = full(1, 1.0)
    wait_until(other.query)
    free = not torch.cuda.current_stream().query()
    same(hvd.synchronize(handle), torch.full((LENGTH,), float(size)))
    same(mark, torch.ones(1))
    assert free


def test_operations_from_many_streams_at_once(rank: int, size: int) -> None:
    streams = [new_stream() for _ in range(8)]
    handles, tensors = [], []
    for i, stream in enumerate(streams):
        with using(stream):
            busy(5 * ((i * 3 + rank) % 8))
            tensors.append(full(1000 * i + 1, (rank + 1) * (i + 1)))
            handles.append(hvd.allreduce_async_(tensors[-1], op=hvd.Sum, name=f"stream.{i}"))
    for i, handle in reversed(list(enumerate(handles))):
        result = hvd.synchronize(handle)
        same(result, torch.full((1000 * i + 1,), total(size) * (i + 1)))


def test_a_chain_of_operations_keeps_its_order(rank: int, size: int) -> None:
    """Each one reads what the one before wrote; the host is never in between."""
    tensor = full(LENGTH, 1.0)
    for step in range(20):
        hvd.synchronize(hvd.allreduce_async_(tensor, name="chain"))
        tensor.mul_(2.0)
        if step % 5 == rank % 5:
            busy(10)
    same(tensor, torch.full((LENGTH,), 2.0**20))


# torch tells that the gradient arrives on another stream than the weight was made on.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")
@pytest.mark.usefixtures("on_gpu")
def test_a_backward_pass_on_a_side_stream(rank: int, size: int) -> None:
    weight = torch.nn.Parameter(full(1000, 0.0))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), named_parameters=[("weight", weight)]
    )
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with using(side):
        for _ in range(3):
            optimizer.zero_grad()
            loss = (weight * (rank + 1)).sum()
            busy(20)
            loss.backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    same(weight.detach(), torch.full((1000,), -3 * total(size) / size))


def test_a_stream_at_the_handle_of_a_destroyed_one_waits_for_itself(
    on_gpu: None, rank: int, size: int
) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    made = ctypes.c_void_p()

    def make() -> int:
        assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
        return int(made.value or 0)

    torch.zeros(1, device=DEVICE)
    tensors = [full(1000, rank + 1.0), full(1000, 2.0 * (rank + 1))]
    for tensor in tensors:
        hvd.allreduce_(tensor.clone(), op=hvd.Sum)
    first = make()
    finish()
    busy(200)
    handles = [
        hvd.allreduce_async_(each, op=hvd.Sum, name=f"same.{i}") for i, each in enumerate(tensors)
    ]
    with torch.cuda.stream(torch.cuda.ExternalStream(first)):
        hvd.synchronize(handles[1])
    assert driver.cuStreamDestroy_v2(ctypes.c_void_p(first)) == 0
    second = make()
    with torch.cuda.stream(torch.cuda.ExternalStream(second)):
        hvd.synchronize(handles[0])
        seen = tensors[0].clone()
    finish()
    same(seen, torch.full((1000,), size * (size + 1) / 2))
    print(f"the handle {'came back' if first == second else 'did not come back'}")


def test_engines_that_follow_each_other_share_their_streams(
    on_gpu: None, restart: Callable[[dict[str, str]], None], rank: int, size: int
) -> None:
    streams: set[int] = set()
    for _ in range(12):  # those that engines of earlier tests have left take turns
        restart({})
        same(
            hvd.allreduce(full(1000, rank), op=hvd.Sum), torch.full((1000,), size * (size - 1) / 2)
        )
        same(hvd.allgather(full(1, rank)), torch.arange(1.0 * size))
        stream = basics.engine().device_stream
        # Together: each rank has its own.
        if hvd.allreduce(torch.tensor(stream in streams, dtype=torch.int32), op=hvd.Sum) == size:
            return
        streams.add(stream)
        gc.collect()
    pytest.fail(f"each of 12 engines had a stream of its own: {sorted(streams)}")
