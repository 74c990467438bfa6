"""Two levels: ranks of one machine under the names of two hosts, 2 + 2 and 3 + 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import horovod.torch as hvd
from gpu.device import busy, full, put, same
from horovod import _engine
from horovod.common import basics
from parallel import values
from parallel.values import make, reduce_all

Restart = Callable[[dict[str, str]], None]
LAYOUTS = {"2 + 2": 2, "3 + 1": 3}
SHAPES = [(), (1,), (17,), (3, 5), (0,), (100_003,), (1_000_000,)]
OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]


@pytest.fixture(params=LAYOUTS)
def hosts(request: pytest.FixtureRequest, restart: Restart, rank: int, size: int) -> int:
    """Ranks of the first host; both hierarchical collectives are on."""
    if size != 4:
        pytest.skip("needs 4 ranks: two hosts of which one has two")
    first = LAYOUTS[request.param]
    restart(
        {
            "HOROVOD_HOSTNAME": "one" if rank < first else "two",
            "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
            "HOROVOD_HIERARCHICAL_ALLGATHER": "1",
        }
    )
    assert hvd.cross_size() in (1, 2)
    assert hvd.local_size() == (first if rank < first else size - first)
    params = hvd.autotune.params()
    assert params["hierarchical_allreduce"] and params["hierarchical_allgather"]
    return first


def reductions(rank: int, size: int, dtypes: list[torch.dtype], tag: str) -> None:
    """**Collective.** Allreduces of many kinds, one by one and in flight at once."""
    jobs = [(shape, dtype, op) for shape in SHAPES for dtype in dtypes for op in OPS]
    handles = []
    for number, (shape, dtype, op) in enumerate(jobs):
        tensor = put(make(rank, shape, dtype))
        handles.append(hvd.allreduce_async(tensor, op=op, name=f"{tag}.{number}"))
    for handle, (shape, dtype, op) in zip(handles, jobs, strict=True):
        values.check(hvd.synchronize(handle).cpu(), reduce_all(size, shape, dtype, op))


@pytest.mark.parametrize("group", ["floats", "integers"])
def test_allreduce(hosts: int, group: str, rank: int, size: int) -> None:
    dtypes = {"floats": values.FLOATS, "integers": values.INTEGERS}[group]
    for _ in range(2):
        reductions(rank, size, dtypes, group)
    tensor = put(make(rank, (1001,), torch.float32))
    result = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
    same(result, reduce_all(size, (1001,), torch.float32, hvd.Sum))
    hvd.allreduce_(tensor, op=hvd.Sum)
    same(tensor, reduce_all(size, (1001,), torch.float32, hvd.Sum))


def test_allgather(hosts: int, rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.int16, torch.bool):
        for rows in (lambda r: 3, lambda r: 5 * r, lambda r: 20_000 + r):
            parts = [make(r, (rows(r), 3), torch.int64).to(dtype) for r in range(size)]
            for name in (None, "gathered"):
                same(hvd.allgather(put(parts[rank]), name=name), torch.cat(parts))


def test_the_other_collectives_and_the_order_of_streams(hosts: int, rank: int, size: int) -> None:
    for step in range(5):
        busy(20 if step % size == rank else 0)
        tensor = full(1_000_000, rank + 1.0)
        result = hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Sum, name="ordered"))
        tensor.fill_(-1.0)
        same(result, torch.full((1_000_000,), size * (size + 1) / 2))
        same(hvd.broadcast(full(1000, rank), step % size), torch.full((1000,), 1.0 * (step % size)))
        same(hvd.reducescatter(full(size, 1.0), op=hvd.Sum), torch.full((1,), 1.0 * size))
        same(hvd.alltoall(full(size, rank)), torch.arange(1.0 * size))


def propose_two_levels(wanted: bool, epoch: int) -> None:
    """**Rank 0 only.** With small changes otherwise."""
    basics.engine().propose(
        epoch,
        _engine.Params(
            fusion_threshold_bytes=64 << 20,
            cycle_time_ms=0.5,
            cache_capacity=1024,
            hierarchical_allreduce=wanted,
            hierarchical_allgather=wanted,
        ),
    )


@pytest.mark.limit(180)
def test_two_levels_are_connected_after_much_that_is_queued(
    rank: int, size: int, restart: Restart
) -> None:
    if size != 4:
        pytest.skip("needs 4 ranks: two hosts of which one has two")
    restart({"HOROVOD_HOSTNAME": "one" if rank < 2 else "two"})
    tensor = full(16_000_000, rank + 1.0)  # 64 MB
    handles = [hvd.allreduce_async_(tensor, name=f"queued.{i}") for i in range(200)]
    if rank == 0:
        propose_two_levels(True, basics.engine().epoch() + 1)
    hvd.autotune.step()
    handles += [hvd.allreduce_async_(tensor, name=f"switched.{i}") for i in range(3)]
    for handle in handles:
        hvd.synchronize(handle)
    assert hvd.autotune.params()["hierarchical_allreduce"]
    same(tensor, torch.full((16_000_000,), 2.5))


def test_switched_on_and_off_while_the_job_runs(hosts: int, rank: int, size: int) -> None:
    epoch = basics.engine().epoch()
    for step in range(8):
        if rank == 0:
            epoch += 1
            basics.engine().propose(
                epoch,
                _engine.Params(
                    fusion_threshold_bytes=[0, 1 << 20, 64 << 20][step % 3],
                    cycle_time_ms=0.5,
                    cache_capacity=1024,
                    hierarchical_allreduce=step % 2 == 0,
                    hierarchical_allgather=step % 2 == 1,
                ),
            )
        reductions(rank, size, [torch.float32, torch.float16], "switched")
        parts = [make(r, (r + 1, 3), torch.float32) for r in range(size)]
        same(hvd.allgather(put(parts[rank])), torch.cat(parts))
        hvd.autotune.step()
