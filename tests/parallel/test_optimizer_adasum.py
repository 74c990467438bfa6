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


@pytest.mark.parametrize("unscaled_before", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_one_rank_has_to_skip_is_skipped_on_all(
    fused: bool, unscaled_before: bool, rank: int, size: int
) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=0.5, fused=fused), [("weight", weight)], op=hvd.Adasum
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    seen = []
    for step in range(4):
        optimizer.zero_grad()
        factor = float("inf") if step in (1, 2) and rank == size - 1 else 1.0
        scaler.scale(weight.sum() * factor).backward()
        if unscaled_before:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        seen.append(weight.detach().clone())
    # Equal steps are averaged; steps 1 and 2 do not take place.
    for found, expected in zip(seen, (0.5, 0.5, 0.5, 0.0), strict=True):
        torch.testing.assert_close(found, torch.full((4,), expected))
    assert scaler.get_scale() == (2.0 if rank == size - 1 else 8.0)
