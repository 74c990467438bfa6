"""Elastic states and samplers on the ranks of a job; ``shutdown`` and ``init`` are a reset.

Ranks that are lost, and other numbers of ranks, are in ``e2e/endings`` and ``cluster``.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import horovod.torch as hvd
from horovod.common import rounds
from horovod.elastic.notifications import HostUpdateResult
from horovod.elastic.termination import termination
from horovod.torch.elastic import sampler as sampler_module
from horovod.torch.elastic.snapshot import Snapshot, unpacked
from horovod.torch.elastic.state import (
    ModelStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)
from horovod.torch.wrapped import naming
from parallel.training import BATCH, batches, loss_of, model, shard, wrap

ADDED, REMOVED = HostUpdateResult.added, HostUpdateResult.removed


def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    x, y = next(itertools.islice(batches(number + 1), number, None))
    optimizer.zero_grad()
    loss_of(net, shard(x), shard(y)).backward()
    optimizer.step()


def weights(net: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in net.parameters()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def uninterrupted(steps: int) -> list[torch.Tensor]:
    net = model()
    optimizer = wrap(net)
    for number in range(steps):
        step(net, optimizer, number)
    return weights(net)


def reset() -> None:
    hvd.shutdown()
    hvd.init()


# --- states ------------------------------------------------------------------------------------


def test_sync_gives_all_ranks_rank_0s_model_optimizer_and_objects(rank: int) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1 + rank)
    net(torch.randn(4, 3) + rank).sum().backward()
    optimizer.step()
    state = hvd.elastic.TorchState(net, optimizer, batch=rank, seen=[rank])
    state.sync()
    assert (state.batch, state.seen, optimizer.param_groups[0]["lr"]) == (0, [0], 0.1)
    kept = (net.state_dict(), optimizer.state_dict())
    for theirs in hvd.allgather_object(kept):
        for ours, other in zip(_tensors(kept), _tensors(theirs), strict=True):
            assert torch.equal(ours, other)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def test_after_sync_every_rank_has_saved_what_it_was_sent(rank: int) -> None:
    net = model()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += rank
    state = hvd.elastic.TorchState(net, batch=rank)
    state.sync()
    synced = weights(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    state.batch = 9
    state.restore()
    assert same(weights(net), synced)
    assert state.batch == 0


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("wrapped", [True, False])
def test_steps_after_a_restore_give_what_they_gave_before(make: type, wrapped: bool) -> None:
    net = model()
    optimizer = make(net.parameters(), lr=0.05)
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
    state = hvd.elastic.TorchState(net, optimizer)
    for number in range(3):
        step(net, optimizer, number)
    state.commit()
    results = []
    for _ in range(3):  # also the snapshot stays what it is
        for number in range(3, 6):
            step(net, optimizer, number)
        results.append(weights(net))
        state.restore()
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_attributes_can_be_set_and_change_their_kind() -> None:
    state = hvd.elastic.TorchState(batch=1)
    assert state.model is None
    net = model()
    state.model, state.batch = net, 2
    state.commit()
    committed = weights(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    state.batch = 3
    state.restore()
    assert same(weights(net), committed)
    assert state.batch == 2
    other = model()
    state.model = other  # saved at once
    with torch.no_grad():
        next(other.parameters()).zero_()
    state.restore()
    assert same(weights(other), committed)


def test_schedulers_and_scalers_are_part_of_the_state() -> None:
    optimizer = torch.optim.SGD(model().parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    state = hvd.elastic.TorchState(optimizer=optimizer, scheduler=scheduler)
    optimizer.step()
    scheduler.step()
    state.commit()
    optimizer.step()
    scheduler.step()
    state.restore()
    assert scheduler.optimizer is optimizer
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (1, 0.5)


def test_handlers_of_ones_own_are_used() -> None:
    class Counter:
        value = 1

    class CounterHandler(StateHandler):
        def save(self) -> None:
            self.saved = self.value.value

        def restore(self) -> None:
            self.value.value = self.saved

        def sync(self) -> None:
            self.value.value = hvd.broadcast_object(self.value.value)

    before = get_handler_registry()
    set_handler_registry([(Counter, CounterHandler), *before])
    try:
        counter = Counter()
        state = hvd.elastic.TorchState(counter=counter)
        counter.value = 10 + hvd.rank()
        state.sync()
        counter.value = 0
        state.restore()
        assert counter.value == 10
    finally:
        set_handler_registry(before)
    assert get_handler_registry()[0][1] is ModelStateHandler


def test_ranks_with_other_models_are_told_so(two_ranks: None, rank: int) -> None:
    state = hvd.elastic.TorchState(**({"net": model()} if rank == 0 else {"net": 1}))
    with pytest.raises(ValueError, match=r"expected the same models.* got net on rank 0 and  on"):
        state.sync()


def test_what_cannot_be_sent_is_the_same_error_on_every_rank() -> None:
    state = hvd.elastic.TorchState(lock=threading.Lock())
    with pytest.raises(ValueError, match=r"'lock' .* cannot be pickled"):
        state.sync()
    hvd.barrier()


# --- what a commit costs -----------------------------------------------------------------------


class Moved(TorchDispatchMode):
    """Counts the bytes that operations write."""

    def __init__(self) -> None:
        super().__init__()
        self.copied = 0
        self.allocated = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("copy_", "clone", "_to_copy"):
            self.copied += result.nbytes
        if name in ("empty", "empty_like", "empty_strided", "clone", "_to_copy", "zeros"):
            self.allocated += result.nbytes
        return result


def test_a_commit_copies_every_tensor_once_into_memory_that_is_kept() -> None:
    net = model()
    both = torch.nn.ModuleList([net, net[0]])  # what is shared is copied once
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    loss_of(net, *next(batches(1))).backward()
    optimizer.step()
    state = hvd.elastic.TorchState(both, optimizer)
    state.commit()
    content = sum(p.nbytes for p in net.parameters())
    steps = sum(value["step"].nbytes for value in optimizer.state.values())
    with Moved() as moved:
        state.commit()
    assert moved.copied == 3 * content + steps  # weights and two moments
    assert moved.allocated == 0


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.complex64],
)
def test_a_snapshot_is_the_same_in_bytes(dtype: torch.dtype) -> None:
    tensors = [torch.ones(2, 3, dtype=dtype), torch.zeros((), dtype=dtype), torch.empty(0, 2)]
    value = {"a": tensors, "b": (1, {"c": torch.arange(6).reshape(2, 3).t()})}
    snapshot = Snapshot()
    snapshot.take(value)
    for again in (snapshot.view(), snapshot.fresh(), unpacked(snapshot.packed())):
        assert list(map(str, _tensors(again))) == list(map(str, _tensors(value)))
        assert [t.dtype for t in _tensors(again)] == [t.dtype for t in _tensors(value)]


def test_tensors_that_were_shared_and_are_not_any_more_are_two_copies() -> None:
    shared, snapshot = torch.ones(3), Snapshot()
    snapshot.take([shared, shared])
    snapshot.take([torch.zeros(3), torch.full((3,), 2.0)])
    assert [each.tolist() for each in snapshot.view()] == [[0.0] * 3, [2.0] * 3]


# --- agreement ---------------------------------------------------------------------------------


def test_all_ranks_are_interrupted_at_the_same_commit_whoever_was_told(
    rank: int, size: int
) -> None:
    for told in range(size):
        state = hvd.elastic.TorchState(batch=0)
        while state.batch < 5:
            state.batch += 1
            if state.batch == 3 and rank == told:
                state.on_hosts_updated(1.0 + rank, ADDED)
            try:
                state.commit()
            except hvd.HostsUpdatedInterrupt as interrupt:
                assert not interrupt.skip_sync
                break
        assert hvd.allgather_object(state.batch) == [3] * size


def test_removals_on_one_rank_and_additions_on_another_need_a_sync(
    two_ranks: None, rank: int
) -> None:
    state = hvd.elastic.TorchState()
    state.on_hosts_updated(1.0, REMOVED if rank == 0 else ADDED)
    with pytest.raises(hvd.HostsUpdatedInterrupt) as interrupt:
        state.check_host_updates()
    assert not interrupt.value.skip_sync
    state.on_hosts_updated(2.0, REMOVED)
    with pytest.raises(hvd.HostsUpdatedInterrupt) as interrupt:
        state.check_host_updates()
    assert interrupt.value.skip_sync


def test_all_ranks_end_at_the_commit_after_one_was_told_to(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hvd.elastic.run
    def train(state: Any) -> None:
        while True:
            state.batch += 1
            if state.batch == 3 and rank == size - 1:
                monkeypatch.setattr(termination, "is_requested", True)
            state.commit()

    state = hvd.elastic.TorchState(batch=0)
    with pytest.raises(SystemExit) as end:
        train(state)
    assert end.value.code == 75
    assert hvd.allgather_object(state.batch) == [3] * size


def test_a_rank_that_needs_the_state_makes_all_ranks_send_it(
    two_ranks: None, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others were told that they need not: hosts were only removed."""
    synced: list[int] = []
    monkeypatch.setattr(rounds, "must_sync", lambda: False)

    class Watched(hvd.elastic.TorchState):
        def sync(self) -> None:
            synced.append(rank)
            super().sync()

    def train(state: Any) -> None:
        if len(synced) < 2 and not getattr(state, "second", False):
            state.second = True
            raise hvd.HostsUpdatedInterrupt(skip_sync=rank != size - 1)

    state = Watched(batch=rank)
    hvd.elastic.run(train)(state)
    assert synced == [rank] * 2


# --- after a reset -----------------------------------------------------------------------------


def test_training_goes_on_after_resets_as_if_nothing_had_been(size: int) -> None:
    """In float64, bit by bit: a failure in a backward pass, in a step, between commits."""

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.batch < 9:
            x, y = next(itertools.islice(batches(state.batch + 1), state.batch, None))
            failure = failures.pop(state.batch, None)
            optimizer.zero_grad()
            loss = loss_of(net, shard(x), shard(y))
            if failure == "backward":
                handle = next(iter(net.parameters())).register_hook(fail)
                try:
                    loss.backward()
                finally:
                    handle.remove()
            loss.backward()
            if failure == "before the step":
                raise hvd.HorovodInternalError("all ranks alike")
            optimizer.step()
            state.batch += 1
            if failure == "before the commit":
                raise hvd.HorovodInternalError("all ranks alike, too")
            if state.batch % 2 == 0:
                state.commit()

    def fail(gradient: torch.Tensor) -> None:
        raise hvd.HorovodInternalError("in the middle")

    expected = uninterrupted(9)
    failures = {1: "backward", 3: "before the step", 6: "before the commit", 8: "backward"}
    net = model()
    optimizer = wrap(net)
    if size > 1:  # a job without a driver goes on only where nobody else can have been lost
        pretend_there_is_a_driver(True)
    try:
        train(hvd.elastic.TorchState(net, optimizer, batch=0))
    finally:
        pretend_there_is_a_driver(False)
    assert not failures
    assert same(weights(net), expected)


def pretend_there_is_a_driver(there_is: bool) -> None:
    from horovod.elastic import loop

    loop.rounds = _Driver(there_is)  # type: ignore[assignment]


class _Driver:
    def __init__(self, there_is: bool) -> None:
        self._there_is = there_is

    def is_elastic(self) -> bool:
        return self._there_is

    def __getattr__(self, name: str) -> Any:
        return getattr(rounds, name)


def test_a_wrapped_optimizer_forgets_what_was_half_done(two_ranks: None) -> None:
    """Passes that were counted, gradients on their way, and which gradients are sparse."""
    net = torch.nn.Sequential(torch.nn.Embedding(5, 4, sparse=True), torch.nn.Linear(4, 4))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1),
        net.named_parameters(),
        backward_passes_per_step=2,
    )
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    state = hvd.elastic.TorchState(net, optimizer)
    rows = torch.tensor([hvd.rank(), 2])

    def run() -> list[torch.Tensor]:
        for _ in range(2):
            net(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return weights(net)

    expected = run()
    for passes in (1, 2):
        state.restore()
        for _ in range(passes):
            net(rows).sum().backward()
        reset()
        state.restore()
        state.on_reset()
        assert all(not each.is_known for each in matrices(optimizer))
        assert same(run(), expected)


def matrices(optimizer: Any) -> list[Any]:
    found = optimizer._reducer._gradients.values()
    return [gradient for gradient in found if gradient.parameter.dim() == 2]


def test_a_new_rank_agrees_with_the_others_on_sparse_gradients(
    two_ranks: None, rank: int, size: int
) -> None:
    """The last one begins anew, as a process that has just come; the others were there before."""
    naming._times_used.clear()  # a process that has just come has wrapped nothing before
    old = wrap(net := model())
    step(net, old, 0)
    reset()
    if rank == size - 1:
        naming._times_used.clear()
        net = model()
        optimizer = wrap(net)
    else:
        optimizer = old
    hvd.elastic.TorchState(net, optimizer).sync()
    step(net, optimizer, 1)
    for theirs in hvd.allgather_object(weights(net)):
        assert same(weights(net), theirs)


# --- the sampler -------------------------------------------------------------------------------


def samples(sampler: Any, steps: int, batch_size: int) -> list[int]:
    """Return what all ranks get in the next ``steps`` batches, and take note of them."""
    own = list(itertools.islice(sampler, steps * batch_size))
    for number in range(steps):
        sampler.record_batch(number, batch_size)
    return [each for ranks in hvd.allgather_object(own) for each in ranks]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("length", [64, 37])
def test_every_sample_comes_once_in_an_epoch_across_resets(
    shuffle: bool, length: int, size: int
) -> None:
    sampler = hvd.elastic.ElasticSampler(range(length), shuffle=shuffle, seed=3)
    state = hvd.elastic.TorchState(sampler=sampler)
    for epoch in range(2):
        seen: list[int] = []
        for steps in (2, 1, 3):
            seen += samples(sampler, steps, 2)
            if steps == 1:  # what comes after a commit is done again
                state.commit()
                samples(sampler, 1, 2)
                state.restore()
            state.on_reset()
        seen += samples(sampler, len(sampler), 1)
        assert set(seen) == set(range(length))
        assert len(seen) < length + size  # twice only to fill up the last step
        sampler.set_epoch(epoch + 1)
        assert len(sampler) == -(-length // size)


def test_every_sample_comes_once_while_the_number_of_ranks_changes(
    monkeypatch: pytest.MonkeyPatch, rank: int, size: int
) -> None:
    """All ranks of each size, one after the other in this process."""
    place = {"rank": 0, "size": 4}
    monkeypatch.setattr(sampler_module, "rank", lambda: place["rank"])
    monkeypatch.setattr(sampler_module, "size", lambda: place["size"])
    seen: list[int] = []
    kept = {"epoch": 2, "processed_num": 0}
    for ranks, steps in ((4, 3), (3, 2), (1, 5), (2, 1), (5, 100)):
        partial: list[list[int]] = []
        for number in range(ranks):
            place.update(rank=number, size=ranks)
            sampler = hvd.elastic.ElasticSampler(range(101))
            sampler.load_state_dict(kept)
            partial.append(list(sampler)[: 2 * steps])
            for each in range(steps):
                sampler.record_batch(each, 2)
        assert len(set(map(len, partial))) == 1
        seen += [each for own in partial for each in own]
        kept = sampler.state_dict()
    assert set(seen) == set(range(101))
    assert len(seen) < 101 + 5


def test_fewer_samples_than_ranks_are_enough(size: int) -> None:
    sampler = hvd.elastic.ElasticSampler(range(1))
    assert list(sampler) == [0]
    sampler.record_batch(0, 1)
    sampler.reset()
    assert (len(sampler), list(sampler), sampler.remaining_indices) == (0, [], [])


def test_epochs_have_orders_of_their_own_that_all_ranks_share() -> None:
    sampler = hvd.elastic.ElasticSampler(range(50), seed=1)
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        orders.append(sampler.remaining_indices)
        assert hvd.allgather_object(orders[-1]) == [orders[-1]] * hvd.size()
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == list(range(50))


def test_a_reset_spreads_the_samples_also_where_no_state_is_sent() -> None:
    sampler = hvd.elastic.ElasticSampler(range(40))
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.record_batch(0, 2)
    sampler.num_replicas = 17  # as if there had been so many
    state.on_reset()
    assert sampler.num_replicas == hvd.size()


Run = Callable[..., Any]


@pytest.mark.parametrize("ways", ["bare", "called"])
def test_run_is_a_decorator_with_and_without_a_file(ways: str, tmp_path: Any) -> None:
    run: Run = hvd.elastic.run if ways == "bare" else hvd.elastic.run(checkpoint=tmp_path / "x")

    @run
    def train(state: Any, number: int) -> int:
        return number + int(state.batch)

    assert train(hvd.elastic.TorchState(batch=1), 2) == 3


assert BATCH % 4 == 0
