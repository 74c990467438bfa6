"""DistributedOptimizer with op=Adasum: the ranks' steps are combined."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd
from horovod.common import basics
from parallel.training import (
    assert_equal_on_all_ranks,
    batches,
    loss_of,
    model,
    shard,
    train_shards,
    wrap,
)


def adasum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return a * (1 - dot / (2 * aa)) + b * (1 - dot / (2 * bb))


def test_adasum_combines_the_steps_of_the_ranks(size: int, rank: int) -> None:
    gradients = [torch.tensor([1.0, r, r * r, -1.0]).double() for r in range(size)]
    weight = torch.nn.Parameter(torch.ones(4).double())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=0.1, momentum=0.5), [("weight", weight)], op=hvd.Adasum
    )
    expected, velocities = torch.ones(4).double(), [torch.zeros(4).double()] * size
    for _ in range(3):
        optimizer.zero_grad()
        (weight * gradients[rank]).sum().backward()
        optimizer.step()
        velocities = [0.5 * v + g for v, g in zip(velocities, gradients, strict=True)]
        steps = [-0.1 * v for v in velocities]
        while len(steps) > 1:
            half = len(steps) // 2
            steps = [adasum(a, b) for a, b in zip(steps[::2], steps[1::2], strict=True)]
            assert len(steps) == half
        expected = expected + steps[0]
        torch.testing.assert_close(weight.detach(), expected)


def test_adasum_has_horovods_rules() -> None:
    net = model()
    optimizer = wrap(net, op=hvd.Adasum, compression=hvd.Compression.fp16)
    x, y = next(batches(1))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, shard(x), shard(y))
        loss.backward()
        return loss

    first = optimizer.step(closure)
    optimizer.synchronize()
    assert optimizer.step(closure) < first
    with pytest.raises(AssertionError, match="skip_synchronize"), optimizer.skip_synchronize():
        pass
    assert_equal_on_all_ranks(net)


def test_adasum_steps_are_counted(size: int) -> None:
    hvd.shutdown()
    hvd.init()
    net = model()
    train_shards(net, wrap(net, op=hvd.Adasum), 4)
    records, _ = basics.engine().drain_steps()
    assert sum(record.count for record in records) == 4
