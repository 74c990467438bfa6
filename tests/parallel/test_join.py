"""Join: ranks with less data take part with zeros until all have joined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import horovod.torch as hvd
from horovod.tuning import session

FAKE = Path(__file__).with_name("fake_service.py")
Restart = Callable[[dict[str, str]], None]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("capacity", ["", "0"], ids=["cached", "uncached"])
def test_a_rank_without_data_contributes_zeros(
    capacity: str, restart: Restart, rank: int, size: int
) -> None:
    """C2: the last rank joins at once, rank r does 20 * (size - r) steps before."""
    restart({"HOROVOD_CACHE_CAPACITY": capacity})
    steps = 20 * (size - 1 - rank)
    for step in range(steps):
        active = sum(20 * (size - 1 - r) > step for r in range(size))
        total = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="sum")
        assert torch.equal(total, torch.full((3,), float(active)))
        mean = hvd.allreduce(torch.ones(2, 2), name=f"mean.{step % 3}")
        torch.testing.assert_close(mean, torch.full((2, 2), active / size))
        largest = hvd.allreduce(torch.full((1,), -1.0), op=hvd.Max)
        assert largest.item() == (-1.0 if active == size else 0.0)
        halves = hvd.grouped_allreduce([torch.ones(2), torch.ones(5)], op=hvd.Sum, name="group")
        assert all(torch.equal(h, torch.full(h.shape, float(active))) for h in halves)
    assert hvd.join() == 0 if size > 1 else hvd.join(0) == 0
    assert torch.equal(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), 1.0 * size))


def test_all_ranks_learn_who_joined_last_again_and_again(rank: int, size: int) -> None:
    for last in [*range(size), 0]:
        for _ in range(3 if rank == last else 0):
            hvd.allreduce(torch.ones(1), op=hvd.Sum, name="alone")
        found = hvd.allgather_object(hvd.join())
        assert len(set(found)) == 1
        assert size == 1 or found[0] == last
    hvd.barrier()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.float64])
def test_zeros_of_every_type(dtype: torch.dtype, rank: int) -> None:
    for _ in range(4 if rank == 0 else 0):
        result = hvd.allreduce(torch.ones(1000, dtype=dtype), op=hvd.Sum, name=f"zeros.{dtype}")
        assert torch.equal(result, torch.ones(1000, dtype=dtype))
    hvd.join()


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.timeout(60)
def test_what_joined_ranks_cannot_take_part_in_fails(rank: int, size: int) -> None:
    """The others are told who has joined; allreduce goes on."""
    if rank != size - 1:
        members = [r for r in range(size) if r != size - 1]
        hvd.allreduce(torch.ones(1), name="first")
        for call in (
            lambda: hvd.allgather(torch.ones(2), name="joined"),
            lambda: hvd.broadcast(torch.ones(2), 0, name="joined"),
            lambda: hvd.alltoall(torch.ones(size), name="joined"),
            lambda: hvd.reducescatter(torch.ones(size), name="joined"),
        ):
            with pytest.raises(hvd.HorovodInternalError, match=rf"joined'.*rank.*{size - 1}"):
                call()
            total = hvd.allreduce(torch.ones(2), op=hvd.Sum, name="still")
            assert torch.equal(total, torch.full((2,), float(len(members))))
    hvd.join()
    assert torch.equal(hvd.allgather(torch.ones(1)), torch.ones(size))


@pytest.mark.timeout(60)
def test_uneven_steps_while_tuning(
    restart: Restart, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: int, size: int
) -> None:
    """T14: rank 0 does 20 steps more than the others, with parameters changing."""
    monkeypatch.setattr(session, "SERVICE", (str(FAKE), "apply", str(tmp_path / "heard")))
    restart({"HOROVOD_AUTOTUNE": "1"})
    common = 30
    for step in range(common + 20 * (rank == 0)):
        total = hvd.allreduce(torch.ones(100), op=hvd.Sum, name="grad")
        expected = size if step < common else 1.0
        assert torch.equal(total, torch.full((100,), float(expected)))
        hvd.autotune.step()
    assert hvd.join() == 0 or size == 1
    params = hvd.allgather_object(hvd.autotune.params())
    assert all(each == params[0] for each in params)
