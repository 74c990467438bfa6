"""GPU memory: what the engine needs comes from torch, and where it is short all go on with less."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import horovod.torch as hvd
from gpu.device import DEVICE, finish, full, same, take_gpu
from horovod import _engine
from horovod.common import basics

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(autouse=True)
def _all_memory(on_gpu: None) -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.fixture
def threshold(rank: int) -> Iterator[Callable[[int], None]]:
    """Puts a fusion threshold into force on all ranks."""

    def change(nbytes: int) -> None:
        engine = basics.engine()
        params = {name: getattr(engine.params(), name) for name, *_ in _engine.Params.fields()}
        if rank == 0:
            engine.propose(
                engine.epoch() + 1, _engine.Params(**{**params, "fusion_threshold_bytes": nbytes})
            )
        while engine.params().fusion_threshold_bytes != nbytes:
            hvd.allreduce(torch.zeros(1), name="until it is in force")
            hvd.autotune.step()
        hvd.barrier()

    before = basics.engine().params().fusion_threshold_bytes
    yield change
    change(before)


def leave(nbytes: int) -> None:
    """**Local.** Let this process have only ``nbytes`` more than it uses."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + nbytes) / total)


def reduced(size: int, tensors: int, tag: str) -> None:
    """**Collective.** A group of tensors of 1 MB each has the right sums."""
    group = [full(250_000, i + 1.0) for i in range(tensors)]
    results = hvd.grouped_allreduce(group, op=hvd.Sum, name=tag)
    for i, result in enumerate(results):
        assert (result == size * (i + 1.0)).all(), f"{i} of {tag}"


@pytest.mark.limit(120)
def test_a_full_cache_of_torch_makes_room_for_results(rank: int, size: int) -> None:
    own = torch.full((GIB // 4,), rank + 1.0, device=DEVICE)

    def gather() -> None:
        result = hvd.allgather(own, name="large")
        for other in range(size):
            part = result[other * own.numel() : (other + 1) * own.numel()]
            assert part[0] == part[-1] == other + 1

    gather()
    if rank == 0:
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        kept = [torch.empty(GIB, dtype=torch.uint8, device=DEVICE) for _ in range(free // GIB)]
        assert torch.cuda.mem_get_info()[0] < size * GIB
        del kept  # into torch's cache
    hvd.barrier()
    for _ in range(3):
        gather()
        same(hvd.alltoall(full(size, rank)), torch.arange(1.0 * size))
    hvd.barrier()


def test_results_are_torch_memory_and_go_back_to_it(rank: int, size: int) -> None:
    finish()
    before = torch.cuda.memory_allocated()
    result = hvd.allgather(torch.full((MIB,), rank, dtype=torch.uint8, device=DEVICE))
    assert torch.cuda.memory_allocated() >= before + size * MIB
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        summed = result.view(size, MIB)[:, 0].long().sum()
    del result
    again = [hvd.allgather(full((1000, size), -1.0)) for _ in range(3)]
    finish()
    assert int(summed) == size * (size - 1) // 2
    del again, summed
    hvd.synchronize(hvd.allreduce_async(full(1, 1.0)))
    assert torch.cuda.memory_allocated() <= before + MIB


def test_a_buffer_that_one_rank_cannot_have_is_smaller_on_all(
    rank: int, size: int, threshold: Callable[[int], None]
) -> None:
    basics.engine().drain_checks()
    threshold(512 * MIB)
    if rank == size - 1:
        leave(400 * MIB)  # 200 tensors and their results are 400 MB
    reduced(size, 190, "short")
    reduced(size, 190, "short")
    wide = torch.full((30_000_000,), rank + 1, dtype=torch.int16, device=DEVICE)
    hvd.allreduce_(wide, op=hvd.Sum, name="wide")
    assert (wide == size * (size + 1) // 2).all()
    if rank == 0:
        reasons = [check[4] for check in basics.engine().drain_checks() if check[4]]
        assert len(reasons) == 1 and "no GPU memory for a fusion buffer" in reasons[0], reasons
    torch.cuda.set_per_process_memory_fraction(1.0)
    threshold(256 * MIB)
    reduced(size, 190, "enough")
    if rank == 0:
        assert not [check for check in basics.engine().drain_checks() if check[4]]


def test_the_buffer_shrinks_after_a_large_threshold(
    rank: int, size: int, threshold: Callable[[int], None]
) -> None:
    threshold(2 * MIB)
    reduced(size, 60, "before")
    finish()
    before = torch.cuda.memory_allocated()
    threshold(512 * MIB)
    reduced(size, 60, "large")
    finish()
    assert torch.cuda.memory_allocated() >= before + 50 * MIB
    threshold(2 * MIB)
    reduced(size, 60, "before")
    finish()
    assert torch.cuda.memory_allocated() <= before + 2 * MIB


@pytest.mark.limit(120)
def test_an_engine_that_has_failed_leaves_no_gpu_memory_to_the_next_one(
    restart: Callable[[dict[str, str]], None], rank: int, size: int
) -> None:
    """Its streams, buffers and NCCL's communicators are gone when the next one works."""
    times = ("HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    used = []
    for _ in range(4):
        restart(dict.fromkeys(times, "1"))
        take_gpu()
        reduced(size, 4, "of the next one")
        torch.cuda.synchronize()
        hvd.barrier()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        used.append(total - free)
        hvd.barrier()
        with pytest.raises(hvd.HorovodInternalError, match="has waited"):
            hvd.allreduce(full(1, 1.0), name=f"of rank {rank}")
        assert basics.engine().failed
    assert used[3] - used[1] < 32 * MIB, [nbytes >> 20 for nbytes in used]
