"""Every option of DistributedOptimizer gives the weights that it should."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd
from parallel.training import (
    SGD,
    assert_equal_on_all_ranks,
    assert_same_weights,
    batches,
    loss_of,
    model,
    shard,
    train_shards,
    train_whole,
    wrap,
)


def pairs_of_layers(net: torch.nn.Module) -> list[list[torch.Tensor]]:
    """Return the first four parameters in two groups, the second one in reverse."""
    first = list(net.parameters())[:4]
    return [first[:2], first[3:1:-1]]


GROUPS = {
    "none": lambda net: 0,
    "one": lambda net: 1,
    "three": lambda net: 3,
    "more than parameters": lambda net: 1000,
    "lists": pairs_of_layers,
    "tuples": lambda net: tuple(tuple(group) for group in pairs_of_layers(net)),
    "an empty list": lambda net: [[]],
}


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("kind", GROUPS)
def test_groups_change_no_weight(kind: str, factor: float) -> None:
    net = model()
    optimizer = wrap(net, groups=GROUPS[kind](net), gradient_predivide_factor=factor)
    train_shards(net, optimizer, 3)
    assert_same_weights(net, train_whole(3, **SGD))


def test_groups_of_compressed_and_accumulated_gradients() -> None:
    net, reference = model(), model()
    optimizer = wrap(net, groups=2, compression=hvd.Compression.bf16, backward_passes_per_step=2)
    for x, y in batches(2):
        loss_of(net, shard(x), shard(y)).backward()
        loss_of(reference, x, y).backward()
    optimizer.synchronize()
    for parameter, right in zip(net.parameters(), reference.parameters(), strict=True):
        assert parameter.grad.dtype == torch.float64
        torch.testing.assert_close(parameter.grad, right.grad, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("groups", [0, 1])
def test_a_missing_gradient_counts_as_zeros_in_a_group_too(
    groups: int, rank: int, size: int
) -> None:
    used, unused = (torch.nn.Linear(2, 1, bias=False) for _ in range(2))
    pairs = [("used", used.weight), ("unused", unused.weight)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([p for _, p in pairs], lr=1.0), pairs, groups=groups
    )
    net = unused if rank == size - 1 and size > 1 else used
    net(torch.ones(1, 2)).sum().backward()
    optimizer.synchronize()
    if size > 1:
        torch.testing.assert_close(used.weight.grad, torch.full((1, 2), (size - 1.0) / size))
        torch.testing.assert_close(unused.weight.grad, torch.full((1, 2), 1.0 / size))


def test_num_groups_is_a_deprecated_name() -> None:
    net = model()
    with pytest.warns(DeprecationWarning, match="use groups"):
        optimizer = wrap(net, num_groups=2)
    train_shards(net, optimizer, 2)
    assert_same_weights(net, train_whole(2, **SGD))


def test_wrong_groups_say_what_is_expected() -> None:
    net = model()
    first = next(net.parameters())
    for wrong, message in (
        (-1, "got -1"),
        ("2", "got '2'"),
        (2.0, r"got 2\.0"),
        (True, "got True"),
        ([first], "list of lists"),
        ([["0.weight"]], "lists of something else"),
        ([[first], [first]], "only in one group, and once"),
        ([[torch.zeros(2, requires_grad=True)]], "1 of 1 tensors are not the optimizer's"),
    ):
        with pytest.raises(ValueError, match=f"groups: .*{message}"):
            wrap(net, groups=wrong)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Min, hvd.Max, hvd.Product])
def test_other_reductions(op: int, rank: int, size: int) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=op)
    (weight * (rank + 1)).sum().backward()
    optimizer.step()
    ranks = torch.arange(1.0, size + 1)
    of = {hvd.Sum: ranks.sum(), hvd.Min: 1.0, hvd.Max: float(size), hvd.Product: ranks.prod()}
    torch.testing.assert_close(weight.detach(), torch.ones(3) - of[op])


def test_wrong_factors_and_operations_are_refused() -> None:
    for wrong, message in (
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "only with op=Average"),
        ({"gradient_predivide_factor": 0.0}, r"expected a number > 0, got 0\.0"),
        ({"op": 17}, "expected Average, .* got 17"),
        ({"backward_passes_per_step": 0}, "got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            wrap(model(), **wrong)
    with pytest.raises(ValueError, match="wrapped already"):
        hvd.DistributedOptimizer(wrap(model()))


@pytest.mark.parametrize("groups", [None, 1])
def test_a_frozen_parameter_is_left_alone_and_may_be_freed(groups: int | None) -> None:
    net = model()
    frozen = net[0].weight
    frozen.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1),
        net.named_parameters(),
        groups=groups,
    )
    before = frozen.detach().clone()
    train_shards(net, optimizer, 2)
    assert torch.equal(frozen, before)
    frozen.requires_grad_(True)
    net[2].weight.requires_grad_(False)
    second = net[2].weight.detach().clone()
    train_shards(net, optimizer, 2)
    assert not torch.equal(frozen, before)
    assert torch.equal(net[2].weight, second)
    assert_equal_on_all_ranks(net)
