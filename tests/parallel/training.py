"""A small model in float64 and its data, for tests that compare n ranks with one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

import horovod.torch as hvd

BATCH = 24  # divisible by 1, 2 and 4 ranks
SGD = {"lr": 0.05, "momentum": 0.9}


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    layers: list[torch.nn.Module] = []
    for _ in range(6):
        layers += [torch.nn.Linear(9, 9), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(9, 3)).double()


def batches(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(3)
    for _ in range(steps):
        yield (
            torch.from_numpy(rng.normal(size=(BATCH, 9))),
            torch.from_numpy(rng.normal(size=(BATCH, 3))),
        )


def loss_of(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(net(x), y)


def shard(tensor: torch.Tensor) -> torch.Tensor:
    length = BATCH // hvd.size()
    return tensor[hvd.rank() * length : (hvd.rank() + 1) * length]


def train_whole(steps: int, make: type = torch.optim.SGD, **options: object) -> torch.nn.Module:
    """Return the model trained by one process on whole batches."""
    net = model()
    optimizer = make(net.parameters(), **options)
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()
    return net


def train_shards(net: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Train ``net`` on this rank's shards."""
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        optimizer.step()


def assert_same_weights(
    net: torch.nn.Module, reference: torch.nn.Module, tolerance: float = 1e-9
) -> None:
    for parameter, right in zip(net.parameters(), reference.parameters(), strict=True):
        assert (parameter - right).abs().max() < tolerance


def assert_equal_on_all_ranks(net: torch.nn.Module) -> None:
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    gathered = hvd.allgather(weights.reshape(1, -1))
    assert torch.equal(gathered, weights.expand_as(gathered))


def wrap(net: torch.nn.Module, **options: object) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), **SGD),
        named_parameters=net.named_parameters(),
        **options,
    )
