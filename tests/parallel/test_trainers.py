"""What training loops of libraries do around a wrapped optimizer."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd
from parallel.training import (
    SGD,
    assert_equal_on_all_ranks,
    assert_same_weights,
    batches,
    loss_of,
    model,
    shard,
    wrap,
)


class Twice(torch.nn.Module):
    """A block that is used twice, under activation checkpointing."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first = torch.nn.Linear(9, 9).double()
        self.block = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Tanh()).double()
        self.last = torch.nn.Linear(9, 3).double()
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=self.use_reentrant)
        return self.last(x)


def test_a_checkpointed_block_that_is_used_twice_is_reduced_when_it_is_complete() -> None:
    net, reference = Twice(False), Twice(False)
    optimizer, plain = wrap(net), torch.optim.SGD(reference.parameters(), **SGD)
    for x, y in batches(4):
        optimizer.zero_grad()
        plain.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        loss_of(reference, x, y).backward()
        optimizer.step()
        plain.step()
    assert_same_weights(net, reference)


def test_reentrant_checkpoints_of_such_a_block_are_an_error_that_names_the_remedy(
    two_ranks: None,
) -> None:
    """The hook of its parameters runs twice; the first time their gradients are half of it."""
    net = Twice(True)
    optimizer = wrap(net)
    x, y = next(batches(1))
    with pytest.raises(AssertionError, match=r"checkpointing.*use_reentrant=False"):
        loss_of(net, shard(x), shard(y)).backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    net.use_reentrant = False
    loss_of(net, shard(x), shard(y)).backward()
    optimizer.step()
    assert_equal_on_all_ranks(net)


def halves_of(net: torch.nn.Module, wrapped: bool) -> list[torch.optim.Optimizer]:
    """Return two optimizers, each with some of the parameters."""
    names = list(net.named_parameters())
    optimizers = []
    for half in (names[:7], names[7:]):
        optimizer = torch.optim.SGD([parameter for _, parameter in half], **SGD)
        optimizers.append(hvd.DistributedOptimizer(optimizer, half) if wrapped else optimizer)
    return optimizers


def test_two_optimizers_of_one_loss_step_in_turns(two_ranks: None) -> None:
    """The one whose turn it is not waits for its gradients."""
    net, reference = model(), model()
    optimizers, plain = halves_of(net, wrapped=True), halves_of(reference, wrapped=False)
    for number, (x, y) in enumerate(batches(6)):
        for optimizer in (*optimizers, *plain):
            optimizer.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        loss_of(reference, x, y).backward()
        optimizers[1 - number % 2].synchronize()
        optimizers[number % 2].step()
        plain[number % 2].step()
    assert_same_weights(net, reference)


def test_an_optimizer_that_nobody_waits_for_in_its_pause_is_told_how(two_ranks: None) -> None:
    net = model()
    optimizers = halves_of(net, wrapped=True)
    x, y = next(batches(1))
    loss_of(net, shard(x), shard(y)).backward()
    optimizers[0].step()
    net.zero_grad()
    with pytest.raises(AssertionError, match=r"more rarely than another one, call its synchroniz"):
        loss_of(net, shard(x), shard(y)).backward()
    for optimizer in optimizers:
        optimizer.synchronize()
        optimizer.zero_grad()


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_a_trainer_accumulates_in_halves_clips_and_schedules(op: int, size: int) -> None:
    """AzureML's: compressed gradients, accumulation, clipping, a schedule with warm-up."""
    passes, warmup = 2, 3
    net = model()
    optimizer = wrap(net, op=op, compression=hvd.Compression.fp16, backward_passes_per_step=passes)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / warmup))
    losses = []
    for _ in range(4):
        for number, (x, y) in enumerate(batches(8)):
            loss = loss_of(net, shard(x), shard(y))
            losses.append(hvd.allreduce(loss.detach(), name="loss").item())
            (loss / passes).backward()
            if (number + 1) % passes == 0:
                if op != hvd.Adasum:
                    optimizer.synchronize()
                norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                assert torch.isfinite(norm)
                if op == hvd.Adasum:
                    optimizer.step()
                else:
                    with optimizer.skip_synchronize():
                        optimizer.step()
                schedule.step()
                net.zero_grad()
    assert_equal_on_all_ranks(net)
    assert sum(losses[-8:]) < sum(losses[:8])
