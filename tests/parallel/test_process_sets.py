"""Process sets: made at init and later, every collective in them, removed and made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from horovod.common import process_sets
from horovod.torch import mpi_ops
from parallel.values import make
from tiers.between_ranks import needs_mpi

Halves = tuple[hvd.ProcessSet, hvd.ProcessSet]


@pytest.fixture
def halves(size: int) -> Iterator[Halves]:
    """Even and odd ranks."""
    if size < 2:
        pytest.skip("needs 2 ranks")
    even = hvd.add_process_set(range(0, size, 2))
    odd = hvd.add_process_set(hvd.ProcessSet(range(1, size, 2)))
    yield even, odd
    hvd.barrier()
    assert hvd.remove_process_set(even)
    assert hvd.remove_process_set(odd)


def own(halves: Halves, rank: int) -> hvd.ProcessSet:
    return halves[rank % 2]


def test_ranks_and_sizes(halves: Halves, rank: int, size: int) -> None:
    mine, other = own(halves, rank), halves[1 - rank % 2]
    assert mine.ranks == list(range(rank % 2, size, 2))
    assert (mine.rank(), mine.size(), mine.included()) == (rank // 2, len(mine.ranks), True)
    assert not other.included()
    assert other.size() == len(other.ranks)
    with pytest.raises(ValueError, match=f"rank {rank} is not in the process set"):
        other.rank()
    known = mpi_ops._basics._get_process_set_ids_and_ranks()
    assert known[0] == list(range(size))
    for half in halves:
        assert known[half.process_set_id] == half.ranks


def test_every_collective_in_its_set(halves: Halves, rank: int) -> None:
    mine = own(halves, rank)
    ranks, place, count = mine.ranks, mine.rank(), mine.size()
    tensors = {r: make(r, (2 * count, 3), torch.float32) for r in ranks}
    stacked = torch.stack([tensors[r] for r in ranks])
    tensor, total = tensors[rank], stacked.sum(0)
    for name in (None, "both sets use it", "both sets use it"):
        assert torch.equal(hvd.allreduce(tensor, name=name, op=hvd.Sum, process_set=mine), total)
        mean = hvd.allreduce(tensor, name=name, process_set=mine)
        torch.testing.assert_close(mean, total / count)
        in_place = tensor.clone()
        hvd.allreduce_(in_place, op=hvd.Max, name=name, process_set=mine)
        assert torch.equal(in_place, stacked.amax(0))
        grouped = hvd.grouped_allreduce([tensor, tensor[:1]], name=name, process_set=mine)
        torch.testing.assert_close(grouped[0], total / count)
        gathered = hvd.allgather(tensor[: place + 1].contiguous(), name=name, process_set=mine)
        assert torch.equal(gathered, torch.cat([tensors[r][: i + 1] for i, r in enumerate(ranks)]))
        grouped = hvd.grouped_allgather([tensor, tensor], name=name, process_set=mine)
        assert torch.equal(grouped[1], torch.cat([tensors[r] for r in ranks]))
        root = ranks[-1]
        received = hvd.broadcast(tensor, root, name=name, process_set=mine)
        assert torch.equal(received, tensors[root])
        exchanged = hvd.alltoall(tensor, name=name, process_set=mine)
        parts = [tensors[r].reshape(count, 2, 3)[place] for r in ranks]
        assert torch.equal(exchanged, torch.cat(parts))
        output, splits = hvd.alltoall(tensor, [1] * count, name=name, process_set=mine)
        assert torch.equal(output, torch.stack([tensors[r][place] for r in ranks]))
        assert splits.tolist() == [1] * count
        scattered = hvd.reducescatter(tensor, name=name, op=hvd.Sum, process_set=mine)
        assert torch.equal(scattered, total.reshape(count, 2, 3)[place])
        (scattered,) = hvd.grouped_reducescatter([tensor], name=name, process_set=mine)
        torch.testing.assert_close(scattered, (total / count).reshape(count, 2, 3)[place])
        reduced = hvd.sparse_allreduce_async(tensor.to_sparse(), name, hvd.Sum, process_set=mine)()
        assert torch.equal(reduced.to_dense(), total)
        hvd.barrier(process_set=mine)
        assert hvd.allgather_object(rank, name=name, process_set=mine) == ranks
        assert hvd.broadcast_object(rank, root, name=name, process_set=mine) == root
        state = {"a": tensor.clone(), "b": tensor[0].clone()}
        hvd.broadcast_parameters(state, root, process_set=mine)
        assert torch.equal(state["a"], tensors[root])


def test_gradients_stay_in_the_set(halves: Halves, rank: int) -> None:
    mine = own(halves, rank)
    count = mine.size()
    for call, factor in {
        lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=mine): count,
        lambda x: hvd.allreduce(x, op=hvd.Max, process_set=mine): 1,
        lambda x: hvd.allgather(x, process_set=mine): 1,
        lambda x: hvd.broadcast(x, mine.ranks[0], process_set=mine): int(mine.rank() == 0),
        lambda x: hvd.reducescatter(x, process_set=mine): 1,
        lambda x: hvd.alltoall(x, [1] * count, process_set=mine)[0]: 1,
    }.items():
        tensor = torch.ones(count, 2, requires_grad=True)
        call(tensor).sum().backward()
        torch.testing.assert_close(tensor.grad, torch.full((count, 2), float(factor)))


def test_sets_that_meet_in_different_orders_do_not_block_each_other(
    halves: Halves, rank: int, size: int
) -> None:
    """The global set and the halves, started in another order on every rank."""
    everyone = hvd.global_process_set
    jobs = [(s, i) for s in (everyone, own(halves, rank)) for i in range(30)]
    order = jobs if rank % 3 == 0 else jobs[::-1] if rank % 3 == 1 else jobs[1::2] + jobs[::2]
    handles = {}
    for process_set, i in order:
        key = (process_set.process_set_id, i)
        tensor = torch.full((i + 1,), float(i))
        handles[key] = hvd.allreduce_async(
            tensor, op=hvd.Sum, name=f"order.{i}", process_set=process_set
        )
    for process_set, i in jobs:
        result = hvd.synchronize(handles[process_set.process_set_id, i])
        assert torch.equal(result, torch.full((i + 1,), float(i * process_set.size())))


def test_a_barrier_does_not_wait_for_other_sets(halves: Halves, rank: int, size: int) -> None:
    """The odd ranks pass theirs while the even ones are not yet at theirs."""
    even, odd = halves
    if rank % 2:
        hvd.barrier(process_set=odd)
        hvd.allreduce(torch.ones(1), name="passed")
    else:
        handle = hvd.allreduce_async(torch.ones(1), name="passed")
        hvd.synchronize(handle)  # complete only once the odd ranks are through
        hvd.barrier(process_set=even)


def test_outsiders_are_refused(halves: Halves, rank: int, size: int) -> None:
    mine, other = own(halves, rank), halves[1 - rank % 2]
    tensor = torch.ones(4)
    calls: list[Callable[[], object]] = [
        lambda: hvd.allreduce(tensor, process_set=other),
        lambda: hvd.grouped_allreduce_([tensor, tensor], process_set=other),
        lambda: hvd.allgather(tensor, process_set=other),
        lambda: hvd.broadcast(tensor, other.ranks[0], process_set=other),
        lambda: hvd.alltoall(tensor, process_set=other),
        lambda: hvd.reducescatter(tensor, process_set=other),
        lambda: hvd.barrier(process_set=other),
        lambda: hvd.broadcast_object(1, other.ranks[0], process_set=other),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"rank {rank}.*process set"):
            call()
    with pytest.raises(ValueError, match=rf"root.*{other.ranks[0]}"):
        hvd.broadcast(tensor, other.ranks[0], process_set=mine)
    with pytest.raises(ValueError, match=r"not registered: call hvd\.add_process_set"):
        hvd.allreduce(tensor, process_set=hvd.ProcessSet([0]))
    assert torch.equal(hvd.allreduce(tensor, process_set=mine), tensor)


def test_errors_stay_in_the_set(halves: Halves, rank: int, size: int) -> None:
    """The message names global ranks; the other set and the next collective work."""
    mine = own(halves, rank)
    handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="all")
    if rank % 2 == 0 and mine.size() > 1:
        length = 4 if rank == mine.ranks[-1] else 3
        with pytest.raises(hvd.HorovodInternalError, match=rf"mismatch.*rank.*{mine.ranks[-1]}"):
            hvd.allreduce(torch.ones(length), name="mismatch", process_set=mine)
    else:
        assert torch.equal(hvd.allreduce(torch.ones(3), process_set=mine), torch.ones(3))
    assert torch.equal(hvd.synchronize(handle), torch.full((3,), 1.0 * size))
    assert torch.equal(hvd.allreduce(torch.ones(3), process_set=mine), torch.ones(3))


def test_sets_of_one_rank(rank: int, size: int) -> None:
    if size == 1:
        pytest.skip("the set of all ranks")
    sets = [hvd.add_process_set([r]) for r in range(size)]
    mine = sets[rank]
    tensor = make(rank, (3, 2), torch.float32)
    assert torch.equal(hvd.allreduce(tensor, process_set=mine), tensor)
    assert torch.equal(hvd.allgather(tensor, process_set=mine), tensor)
    assert torch.equal(hvd.broadcast(tensor, rank, process_set=mine), tensor)
    assert torch.equal(hvd.alltoall(tensor, process_set=mine), tensor)
    assert torch.equal(hvd.reducescatter(tensor, process_set=mine), tensor)
    hvd.barrier(process_set=mine)
    hvd.barrier()
    assert all(hvd.remove_process_set(each) for each in sets)


def test_removed_sets_can_be_made_again(rank: int, size: int) -> None:
    if size == 1:
        pytest.skip("the set of all ranks")
    chosen = hvd.ProcessSet([size - 1])
    assert chosen.process_set_id is None
    assert (chosen.size(), chosen.included(), chosen.rank()) == (None, None, None)
    assert not hvd.remove_process_set(chosen)
    numbers = set()
    for _ in range(3):
        assert hvd.add_process_set(chosen) is chosen
        numbers.add(chosen.process_set_id)
        with pytest.raises(ValueError, match="registered already"):
            hvd.add_process_set(chosen)
        with pytest.raises(ValueError, match="process set"):
            hvd.add_process_set([size - 1])
        if chosen.included():
            hvd.allreduce(torch.ones(1), name="again", process_set=chosen)
        hvd.barrier()
        assert hvd.remove_process_set(chosen)
        with pytest.raises(ValueError, match="not registered"):
            hvd.allreduce(torch.ones(1), process_set=chosen)
    assert len(numbers) == 3
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert mpi_ops._basics._get_process_set_ids_and_ranks() == {0: list(range(size))}


def test_ranks_may_be_any_whole_numbers() -> None:
    assert hvd.ProcessSet({2, np.int64(0)}).ranks == [0, 2]
    assert hvd.ProcessSet(range(3)).ranks == [0, 1, 2]


def test_wrong_ranks_are_refused(size: int) -> None:
    for ranks, words in [
        ([0, 0], "every rank once"),
        ([size], str(size)),
        ([-1], "-1"),
        ([], r"got \[\]"),
        (["a"], "sequence of global ranks"),
        (3, "sequence of global ranks"),
        (list(range(size)), "no process set has"),
    ]:
        with pytest.raises(ValueError, match=words):
            hvd.add_process_set(ranks)
    hvd.barrier()


@pytest.mark.usefixtures("two_ranks")
def test_ranks_that_ask_for_different_sets_learn_it_together(rank: int, size: int) -> None:
    asked = [0] if rank == 0 else [size - 1]
    with pytest.raises(hvd.HorovodInternalError, match=rf"\[0\].*\[{size - 1}\]"):
        hvd.add_process_set(asked)
    works = hvd.add_process_set([0])
    hvd.remove_process_set(works)


@needs_mpi
def test_sets_of_communicators_are_for_init_only() -> None:
    from mpi4py import MPI

    with pytest.raises(NotImplementedError, match=r"hvd\.init\(process_sets"):
        hvd.add_process_set(hvd.ProcessSet(MPI.COMM_SELF))


@pytest.mark.usefixtures("two_ranks")
def test_static_sets(rank: int, size: int) -> None:
    evens, last = hvd.ProcessSet(range(0, size, 2)[::-1]), hvd.ProcessSet([size - 1])
    for _ in range(2):  # the same objects serve again after shutdown
        hvd.shutdown()
        assert evens.process_set_id is None
        assert hvd.global_process_set.ranks is None
        hvd.init(process_sets=[evens, last])
        assert [evens.process_set_id, last.process_set_id] == sorted(
            set(mpi_ops._basics._get_process_set_ids_and_ranks()) - {0}
        )
        assert evens.ranks == list(range(0, size, 2))
        for each in (evens, last):
            if each.included():
                total = hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=each)
                assert torch.equal(total, torch.full((2,), float(each.size())))
        hvd.barrier()
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    hvd.remove_process_set(hvd.add_process_set([0]))


@needs_mpi
@pytest.mark.usefixtures("two_ranks")
def test_static_sets_of_communicators(rank: int, size: int) -> None:
    from mpi4py import MPI

    split = MPI.COMM_WORLD.Split(rank % 2, rank)
    hvd.shutdown()
    mine = hvd.ProcessSet(split)
    hvd.init(comm=MPI.COMM_WORLD, process_sets=[mine])
    assert mine.ranks == list(range(rank % 2, size, 2))
    assert mine.mpi_comm is split
    total = hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=mine)
    assert torch.equal(total, torch.full((2,), float(split.size)))
    hvd.barrier()
    hvd.shutdown()
    split.Free()
    hvd.init()


@pytest.mark.usefixtures("two_ranks")
def test_static_sets_that_cannot_be_are_raised_on_every_rank(rank: int, size: int) -> None:
    first = rank == 0
    cases: list[tuple[object, str]] = [
        ([[0], [1]] if first else [[1], [0]], r"same on all ranks.*\[\[0\], \[1\]\] on rank 0"),
        ([[0]] if first else [], r"\[\] on rank 1"),
        ([[0], hvd.ProcessSet([0])], "same ranks as another one"),
        ([range(size)], "same ranks as the global"),
        ([[0, size]], f"got rank {size}"),
        ("static" if first else None, "expected None, 'dynamic'"),
        ([hvd.global_process_set], "not registered yet"),
    ]
    hvd.shutdown()
    for sets, words in cases:
        with pytest.raises(ValueError, match=words):
            hvd.init(process_sets=sets)
        assert not hvd.is_initialized()
    hvd.init()
    assert torch.equal(hvd.allreduce(torch.ones(1)), torch.ones(1))


def test_the_global_set_is_one_object() -> None:
    assert process_sets.global_process_set is hvd.global_process_set
    assert hvd.global_process_set.process_set_id == 0
