"""DistributedOptimizer: sparse gradients."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd
from parallel.training import assert_same_weights


class Words(torch.nn.Module):
    """Word vectors and a linear layer."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.vectors = torch.nn.Embedding(20, 4, sparse=sparse).double()
        self.linear = torch.nn.Linear(4, 1).double()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.linear(self.vectors(words)).squeeze(-1)


def words_of(rank: int, step: int) -> torch.Tensor:
    return torch.tensor([rank, rank + step, 7, 7]) % 20


def train_words(sparse: bool, ranks: list[int], wrapped: bool, **options: object) -> Words:
    """Return ``Words`` trained on the words of ``ranks``, by one process unless ``wrapped``."""
    net = Words(sparse)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), **options)
    for step in range(4):
        optimizer.zero_grad()
        torch.stack([net(words_of(r, step)).square().mean() for r in ranks]).mean().backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients_are_reduced(as_dense: bool, groups: int, rank: int, size: int) -> None:
    net = train_words(True, [rank], True, sparse_as_dense=as_dense, groups=groups)
    assert net.vectors.weight.grad.is_sparse
    assert_same_weights(net, train_words(False, list(range(size)), False))


@pytest.mark.parametrize("as_dense", [False, True])
def test_a_rank_without_words_takes_part(as_dense: bool, rank: int, size: int) -> None:
    """Its gradient is missing; what it was the last time says that it is sparse."""
    net, reference = Words(True), Words(True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(net.vectors.parameters(), lr=0.1), sparse_as_dense=as_dense
    )
    plain = torch.optim.SparseAdam(reference.vectors.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        if rank == 0 or step == 0:
            net.vectors(torch.tensor([3, 4])).sum().backward()
        count = size if step == 0 else 1
        (reference.vectors(torch.tensor([3, 4])).sum() * count / size).backward()
        optimizer.step()
        plain.step()
    torch.testing.assert_close(net.vectors.weight, reference.vectors.weight)


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("as_dense", [False, True])
def test_ranks_without_words_from_the_first_step_on_take_part(
    as_dense: bool, groups: int, rank: int, size: int
) -> None:
    """In the first step no rank has any, in the second one only the last rank."""
    net, reference = Words(True), Words(True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.5),
        net.named_parameters(),
        sparse_as_dense=as_dense,
        groups=groups,
    )
    plain = torch.optim.SGD(reference.parameters(), lr=0.5)
    for step in range(4):
        optimizer.zero_grad()
        plain.zero_grad()
        net.linear.weight.square().sum().backward()
        reference.linear.weight.square().sum().backward()
        if step > 0:
            if rank == size - 1:
                net.vectors(torch.tensor([3, step])).sum().backward()
            (reference.vectors(torch.tensor([3, step])).sum() / size).backward()
        optimizer.step()
        plain.step()
    assert_same_weights(net, reference)


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("as_dense", [False, True])
def test_only_some_ranks_have_words_in_the_first_step(
    as_dense: bool, groups: int, rank: int, size: int
) -> None:
    """The last one, then rank 0, then the last one again, then all."""
    net, reference = Words(True), Words(True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.5),
        net.named_parameters(),
        sparse_as_dense=as_dense,
        groups=groups,
    )
    plain = torch.optim.SGD(reference.parameters(), lr=0.5)
    for step, ranks in enumerate(([size - 1], [0], [size - 1], range(size))):
        optimizer.zero_grad()
        plain.zero_grad()
        net.linear.weight.square().sum().backward()
        reference.linear.weight.square().sum().backward()
        if rank in ranks:
            net.vectors(torch.tensor([3, step])).sum().backward()
        (reference.vectors(torch.tensor([3, step])).sum() * len(ranks) / size).backward()
        optimizer.step()
        plain.step()
    assert_same_weights(net, reference)
