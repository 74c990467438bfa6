"""Broadcast and gathering of whole states and objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import horovod.torch as hvd


def net(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2)
    )


@pytest.mark.parametrize("root", [0, -1], ids=["first", "last"])
def test_parameters_and_buffers_become_roots(root: int, rank: int, size: int) -> None:
    root %= size
    ours, roots = net(rank), net(root)
    hvd.broadcast_parameters(ours.state_dict(), root)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, roots.state_dict()[name])


def test_lists_are_accepted_and_generators_are_not(rank: int) -> None:
    ours = net(rank)
    hvd.broadcast_parameters(list(ours.named_parameters()), 0)
    hvd.broadcast_parameters([p.data for p in net(rank).parameters()], 0)
    for parameter, right in zip(ours.parameters(), net(0).parameters(), strict=True):
        assert torch.equal(parameter, right)
    with pytest.raises(ValueError, match="expected a dictionary or a list, got generator"):
        hvd.broadcast_parameters(ours.named_parameters(), 0)


def test_non_contiguous_and_other_entries(rank: int) -> None:
    tensor = torch.full((3, 4), float(rank)).t()
    hvd.broadcast_parameters({"a": tensor, "b": None, "c": 3}, 0)
    assert torch.equal(tensor, torch.zeros(4, 3))


def optimizer_classes() -> dict[str, type[torch.optim.Optimizer]]:
    """Return every class of torch.optim whose state belongs to parameters."""
    found = [c for c in vars(torch.optim).values() if isinstance(c, type)]
    left_out = (torch.optim.Optimizer, torch.optim.LBFGS)
    return {c.__name__: c for c in found if c not in left_out}


CLASSES = optimizer_classes()
VARIANTS: dict[str, dict[str, Any]] = {name: {} for name in CLASSES} | {
    "SGD, momentum": {"momentum": 0.5, "nesterov": True},
    "Adam, amsgrad on root": {"betas": (0.5, 0.8), "amsgrad": True},
    "Adam, tensor_lr": {"lr": torch.tensor(0.1)},
    "AdamW, fused": {"fused": True},
    "RMSprop, centered": {"centered": True, "momentum": 0.1},
}


class Layers(torch.nn.Module):
    """Parameters that the optimizer can have: Muon takes matrices, SparseAdam sparse gradients."""

    def __init__(self, seed: int, kind: str) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = torch.nn.Embedding(6, 4, sparse=kind == "SparseAdam")
        if kind not in ("Muon", "SparseAdam"):
            self.rest = torch.nn.Linear(4, 2)

    def train_step(self, optimizer: torch.optim.Optimizer, seed: int) -> None:
        optimizer.zero_grad()
        vectors = self.words(torch.tensor([seed, 2, 2]))
        output = self.rest(vectors) if hasattr(self, "rest") else vectors
        output.square().sum().backward()
        optimizer.step()


def make_optimizer(layers: Layers, variant: str, own: bool) -> torch.optim.Optimizer:
    """Return the optimizer of ``variant``, with other options where it is not root's."""
    make = CLASSES[variant.split(",")[0]]
    options = dict(VARIANTS[variant]) if own else {}
    if not own and "lr" not in VARIANTS[variant]:
        options["lr"] = 0.123
    return make(layers.parameters(), **options)


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "distributed"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_optimizer_state_becomes_roots(variant: str, wrapped: bool, rank: int) -> None:
    """Root has trained (a restored checkpoint); the others have neither state nor its options."""
    ours, roots = Layers(rank, variant), Layers(0, variant)
    optimizer = make_optimizer(ours, variant, rank == 0)
    right = make_optimizer(roots, variant, True)
    for seed in range(2):
        roots.train_step(right, seed)
        if rank == 0:
            ours.train_step(optimizer, seed)
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, ours.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, 0)
    hvd.broadcast_parameters(ours.state_dict(), 0)
    state, expected = optimizer.state_dict(), right.state_dict()
    torch.testing.assert_close(state["state"], expected["state"], rtol=0, atol=0)
    assert state["param_groups"] == expected["param_groups"]
    for options, wanted in zip(state["param_groups"], expected["param_groups"], strict=True):
        assert {k: type(v) for k, v in options.items()} == {k: type(v) for k, v in wanted.items()}
    ours.train_step(optimizer, 1)
    roots.train_step(right, 1)
    torch.testing.assert_close(dict(ours.named_parameters()), dict(roots.named_parameters()))


def test_options_of_a_fresh_optimizer_become_roots(rank: int) -> None:
    optimizer = torch.optim.SGD(net(rank).parameters(), lr=0.1 * (rank + 1), momentum=0.9)
    hvd.broadcast_optimizer_state(optimizer, 0, model=None)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state


def test_lbfgs_is_refused() -> None:
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(net(0).parameters()), 0)


@pytest.mark.parametrize("name", [None, "thing"])
def test_objects_travel(name: str | None, rank: int, size: int) -> None:
    root = size - 1
    thing = {"epoch": 3, "f": lambda x: x + 1, "t": torch.ones(2)} if rank == root else None
    received = hvd.broadcast_object(thing, root_rank=root, name=name)
    assert received["epoch"] == 3
    assert received["f"](1) == 2
    assert received is thing or rank != root
    assert torch.equal(received["t"], torch.ones(2))
    assert hvd.broadcast_object(None, 0, name=name) is None


def test_objects_are_gathered_by_rank(rank: int, size: int) -> None:
    things = hvd.allgather_object({"rank": rank, "text": "x" * rank * 1000})
    assert [thing["rank"] for thing in things] == list(range(size))
    assert [len(thing["text"]) for thing in things] == [1000 * r for r in range(size)]
