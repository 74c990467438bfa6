"""Several DistributedOptimizers in one job, also with equal parameter names (C4)."""

from __future__ import annotations

import gc

import pytest
import torch

import horovod.torch as hvd
from horovod.common import basics
from parallel.training import SGD, assert_same_weights, batches, loss_of, model, shard, wrap


class Gan:
    """Generator and discriminator whose parameters have the same names, not the same shapes."""

    def __init__(self, named: bool, wrapped: bool) -> None:
        torch.manual_seed(5)
        self.g = torch.nn.Sequential(torch.nn.Linear(3, 9), torch.nn.Tanh()).double()
        self.d = torch.nn.Sequential(torch.nn.Linear(9, 1), torch.nn.Sigmoid()).double()
        self.optimizers: list[torch.optim.Optimizer] = []
        for net in (self.g, self.d):
            optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
            if wrapped:
                names = net.named_parameters() if named else None
                optimizer = hvd.DistributedOptimizer(optimizer, names)
            self.optimizers.append(optimizer)

    def train(self, real: torch.Tensor, noise: torch.Tensor) -> None:
        """Take a step of the discriminator and one of the generator."""
        of_g, of_d = self.optimizers
        of_d.zero_grad()
        fake = self.g(noise).detach()
        (self.d(fake) - self.d(real)).mean().backward()
        of_d.step()
        of_g.zero_grad()
        self.d.requires_grad_(False)
        (-self.d(self.g(noise))).mean().backward()
        self.d.requires_grad_(True)
        of_g.step()


@pytest.mark.parametrize("named", [True, False])
def test_a_gan_trains_as_on_one_rank(named: bool) -> None:
    gan, whole = Gan(named, True), Gan(named, False)
    for x, y in batches(10):
        gan.train(shard(x), shard(y))
        whole.train(x, y)
    assert_same_weights(gan.g, whole.g)
    assert_same_weights(gan.d, whole.d)


def test_names_of_two_models_in_flight_together_do_not_collide() -> None:
    nets, references = [model(), model()], [model(), model()]
    optimizers = [wrap(net) for net in nets]
    plain = [torch.optim.SGD(net.parameters(), **SGD) for net in references]
    for x, y in batches(3):
        sum(loss_of(net, shard(x), shard(y)) for net in nets).backward()
        sum(loss_of(net, x, y) for net in references).backward()
        for optimizer in reversed(optimizers):
            optimizer.step()
            optimizer.zero_grad()
        for optimizer in plain:
            optimizer.step()
            optimizer.zero_grad()
    for net, reference in zip(nets, references, strict=True):
        assert_same_weights(net, reference)


def test_two_models_of_one_name_stay_in_the_cache(size: int) -> None:
    """Shapes that change under one name would be negotiated again in every step."""
    if size == 1:
        pytest.skip("needs 2 ranks")
    gan = Gan(True, True)
    data = list(batches(6))
    for x, y in data[:2]:
        gan.train(shard(x), shard(y))
    before = basics.engine().counters()["cache_misses"]
    for x, y in data[2:]:
        gan.train(shard(x), shard(y))
    hvd.barrier()
    assert basics.engine().counters()["cache_misses"] - before <= 1  # the barrier


def test_gradients_of_another_loss_are_explained(two_ranks: None) -> None:
    gan = Gan(True, True)
    x, y = next(batches(1))
    gan.d(gan.g(shard(y))).mean().backward()
    gan.optimizers[0].step()
    with pytest.raises(AssertionError, match=r"another optimizer's loss.*requires_grad_\(False\)"):
        gan.optimizers[1].zero_grad()
    with pytest.raises(AssertionError, match=r"another optimizer's loss.*requires_grad_\(False\)"):
        gan.d(shard(x)).mean().backward()
    gan.optimizers[1].synchronize()
    gan.optimizers[1].zero_grad()


def test_an_optimizer_that_is_gone_reduces_nothing(rank: int) -> None:
    net = model()
    x, y = next(batches(1))
    optimizer = wrap(net)
    del optimizer
    gc.collect()
    if rank == 0:
        loss_of(net, shard(x), shard(y)).backward()
    hvd.barrier()


def test_more_optimizers_than_one_share_a_model(rank: int) -> None:
    """Each has some of the parameters; one of them is stepped less often."""
    net, reference = model(), model()
    names = list(net.named_parameters())
    halves = [names[:7], names[7:]]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in half], **SGD), half)
        for half in halves
    ]
    whole = torch.optim.SGD(reference.parameters(), **SGD)
    for x, y in batches(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        whole.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        loss_of(reference, x, y).backward()
        for optimizer in optimizers:
            optimizer.step()
        whole.step()
    assert_same_weights(net, reference)
