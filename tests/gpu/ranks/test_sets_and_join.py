"""Process sets, overlapping ones and of one rank, and ranks that join early."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import horovod.torch as hvd
from gpu.device import busy, full, put, same
from parallel.values import make

Sets = dict[str, hvd.ProcessSet]


@pytest.fixture
def sets(size: int) -> Iterator[Sets]:
    """With 2 ranks two sets of one; from 3 on also two that share rank 1."""
    ranks = {"first": [0], "second": [1]}
    if size >= 3:
        ranks |= {"low": [0, 1], "high": list(range(1, size))}
    made = {name: hvd.add_process_set(each) for name, each in ranks.items()}
    yield made | {"all": hvd.global_process_set}
    hvd.barrier()
    for each in made.values():
        assert hvd.remove_process_set(each)


def test_every_collective_in_every_set(sets: Sets, rank: int) -> None:
    for title, own in sets.items():
        if not own.included():
            continue
        ranks, place, count = list(own.ranks), own.rank(), own.size()
        tensors = {r: make(r, (2 * count, 3), torch.float32) for r in ranks}
        stacked = torch.stack([tensors[r] for r in ranks])
        tensor, root = put(tensors[rank]), ranks[-1]
        for name in (None, "all sets use it", "all sets use it"):
            here = {"name": name, "process_set": own}
            same(hvd.allreduce(tensor, op=hvd.Sum, **here), stacked.sum(0))
            in_place = tensor.clone()
            hvd.allreduce_(in_place, op=hvd.Max, **here)
            same(in_place, stacked.amax(0))
            grouped = hvd.grouped_allreduce([tensor, tensor[:1]], op=hvd.Sum, **here)
            same(grouped[1], stacked.sum(0)[:1])
            gathered = hvd.allgather(tensor[: place + 1].contiguous(), **here)
            same(gathered, torch.cat([tensors[r][: i + 1] for i, r in enumerate(ranks)]))
            same(hvd.broadcast(tensor, root, **here), tensors[root])
            parts = [tensors[r].reshape(count, 2, 3)[place] for r in ranks]
            same(hvd.alltoall(tensor, **here), torch.cat(parts))
            output, splits = hvd.alltoall(tensor, [1] * count, **here)
            same(output, torch.stack([tensors[r][place] for r in ranks]))
            assert splits.tolist() == [1] * count, title
            scattered = hvd.reducescatter(tensor, op=hvd.Sum, **here)
            same(scattered, stacked.sum(0).reshape(count, 2, 3)[place])
            hvd.barrier(process_set=own)


def test_sets_that_meet_in_different_orders(sets: Sets, rank: int) -> None:
    own = [each for each in sets.values() if each.included()]
    jobs = [(each, i) for each in own for i in range(20)]
    order = [jobs, jobs[::-1], jobs[1::2] + jobs[::2]][rank % 3]
    handles = {}
    for each, i in order:
        busy(0.5)
        key = (each.process_set_id, i)
        handles[key] = hvd.allreduce_async(
            full(i + 1, i), op=hvd.Sum, name=f"order.{i}", process_set=each
        )
    for each, i in jobs:
        result = hvd.synchronize(handles[each.process_set_id, i])
        same(result, torch.full((i + 1,), float(i * each.size())))


def test_outsiders_are_refused(sets: Sets, rank: int) -> None:
    for each in sets.values():
        if not each.included():
            with pytest.raises(ValueError, match="only its members"):
                hvd.allreduce(full(4, 1.0), process_set=each)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_a_rank_without_data_contributes_zeros(dtype: torch.dtype, rank: int, size: int) -> None:
    """The last rank joins at once, rank r does 10 * (size - 1 - r) steps before."""
    for step in range(10 * (size - 1 - rank)):
        active = sum(10 * (size - 1 - r) > step for r in range(size))
        ones = full(3001, 1.0, dtype=dtype)
        expected = torch.full((3001,), float(active)).to(dtype)
        same(hvd.allreduce(ones, op=hvd.Sum, name=f"sum.{dtype}"), expected)
        largest = hvd.allreduce(-ones, op=hvd.Max)
        same(largest, torch.full((3001,), -1.0 if active == size else 0.0).to(dtype))
        halves = hvd.grouped_allreduce([ones[:2], ones[:500]], op=hvd.Sum, name=f"g.{dtype}")
        same(halves[1], expected[:500])
    assert hvd.join() == 0
    same(hvd.allreduce(full(3, 1.0), op=hvd.Sum), torch.full((3,), float(size)))


def test_all_ranks_learn_who_joined_last(rank: int, size: int) -> None:
    for last in range(size):
        for _ in range(3 if rank == last else 0):
            busy(5)
            hvd.allreduce(full(1, 1.0), op=hvd.Sum, name="alone")
        assert hvd.allgather_object(hvd.join()) == [last] * size
