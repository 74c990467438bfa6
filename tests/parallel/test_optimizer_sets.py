"""DistributedOptimizer on process sets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import horovod.torch as hvd
from parallel.training import model, wrap


@pytest.fixture
def one_more(size: int) -> Iterator[hvd.ProcessSet]:
    """Return a set of all ranks but the last, which trains by itself."""
    if size < 2:
        pytest.skip("needs 2 ranks")
    process_set = hvd.add_process_set(list(range(size - 1)))
    yield process_set
    hvd.remove_process_set(process_set)


@pytest.mark.parametrize("groups", [0, 2])
def test_a_process_set_trains_without_the_others(
    one_more: hvd.ProcessSet, groups: int, rank: int, size: int
) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    pairs = [("weight", weight), ("bias", torch.nn.Parameter(torch.ones(2)))]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([p for _, p in pairs], lr=1.0), pairs, groups=groups, process_set=one_more
    )
    (weight * (rank + 1)).sum().backward()
    optimizer.step()
    gradient = size / 2 if rank < size - 1 else size
    torch.testing.assert_close(weight.detach(), torch.ones(3) - gradient)


def test_a_process_set_must_be_known() -> None:
    with pytest.raises(ValueError, match=r"add_process_set first"):
        wrap(model(), process_set=hvd.ProcessSet([0]))


def test_each_half_trains_its_own_model(size: int, rank: int) -> None:
    if size < 4:
        pytest.skip("needs 4 ranks")
    sets = [hvd.add_process_set([0, 2]), hvd.add_process_set([1, 3])]
    ours = sets[rank % 2]
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), process_set=ours)
    for _ in range(20):
        optimizer.zero_grad()
        (weight * (rank + 1)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([1.0 - 20 * (2 + rank % 2)]))
    for process_set in sets:
        assert hvd.remove_process_set(process_set)


def test_a_sets_state_becomes_that_of_its_root(one_more: hvd.ProcessSet, rank: int) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1 * (rank + 1), momentum=0.5)
    if one_more.included():
        root = one_more.ranks[-1]
        hvd.broadcast_optimizer_state(optimizer, root, process_set=one_more)
        assert optimizer.param_groups[0]["lr"] == 0.1 * (root + 1)
    else:
        assert optimizer.param_groups[0]["lr"] == 0.1 * (rank + 1)


def test_a_set_normalises_its_own_batches(one_more: hvd.ProcessSet, rank: int) -> None:
    """A rank outside normalises by itself, as its optimizer steps by itself."""
    layer, plain = hvd.SyncBatchNorm(1, process_set=one_more), torch.nn.BatchNorm1d(1)
    x = torch.tensor([[1.0], [3.0]])
    layer(x * (rank + 1))
    together = one_more.ranks if one_more.included() else [rank]
    plain(torch.cat([x * (r + 1) for r in together]))
    torch.testing.assert_close(layer.running_mean, plain.running_mean)
    torch.testing.assert_close(layer.running_var, plain.running_var)
