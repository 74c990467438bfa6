"""What both runtimes train: bare gradients of large models, and two small real models."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from engine_speed.workloads import GRADIENTS, narrow_resnet50
from torch import nn
from torch.nn import functional

KIB, MIB = 1024, 2**20


class _AllAtOnce(torch.autograd.Function):
    """A loss whose backward pass only hands over given gradients, one per parameter."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *_: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[Any, ...]:
        return (None, *ctx.gradients)


@functools.cache
def _weights_and_gradients(model: str, rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return what all ``Gradients`` of a rank share: nobody writes to it."""
    sizes = GRADIENTS[model]()[::-1]
    ready = [torch.full((size,), float(i + rank)) for i, size in enumerate(sizes)]
    return [torch.zeros(size) for size in sizes], ready


class Gradients(nn.Module):
    """A large model's gradients without the model: parameter i of rank r has gradient i + r."""

    def __init__(self, model: str, rank: int) -> None:
        super().__init__()
        weights, self.ready = _weights_and_gradients(model, rank)
        self.weights = nn.ParameterList(nn.Parameter(tensor) for tensor in weights)

    def forward(self) -> torch.Tensor:
        return _AllAtOnce.apply(self.ready, *self.weights)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """A small transformer: 2 layers, 256 wide, 4 heads; 27 tensors of up to 1 MB, 7.4 MB."""

    def __init__(self, symbols: int = 512, width: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, symbols)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layers(self.embed(symbols)))
        return logits.flatten(0, 1)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, the loss of one batch, and the 8 settings that each runtime may choose from.

    Attributes:
        build: Makes the model; on every rank the same weights.
        loss: Runs the model (wrapped or not) on this rank's batch.
        updates: Steps end with an SGD update; else with the synchronised gradients.
        ours: (fusion threshold in bytes, cycle time in ms).
        buckets_mb: DDP's bucket_cap_mb.
    """

    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module], torch.Tensor]
    updates: bool
    ours: tuple[tuple[int, float], ...]
    buckets_mb: tuple[float, ...]


def make_workload(name: str, rank: int) -> Workload:
    """Return the workload of this rank."""
    data = torch.Generator().manual_seed(1000 + rank)
    if name in ("gradients", "bert"):
        model = "bert" if name == "bert" else "resnet50"
        sizes = (MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB)
        return Workload(
            build=lambda: Gradients(model, rank),
            loss=lambda model: model(),
            updates=False,
            ours=(*((size, 1.0) for size in sizes), (4 * MIB, 5.0), (16 * MIB, 0.2)),
            buckets_mb=(1, 4, 10, 25, 50, 100, 200, 400),
        )
    sizes = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
    ours = (*((size, 1.0) for size in sizes), (16 * MIB, 0.2), (16 * MIB, 5.0), (16 * MIB, 25.0))
    buckets = (0.0625, 0.25, 1, 2, 4, 10, 25, 100)
    if name == "resnet":
        images = torch.randn(8, 3, 16, 16, generator=data)
        labels = torch.randint(10, (8,), generator=data)
        return Workload(
            build=narrow_resnet50,
            loss=lambda model: functional.cross_entropy(model(images), labels),
            updates=True,
            ours=ours,
            buckets_mb=buckets,
        )
    symbols = torch.randint(512, (4, 32), generator=data)
    return Workload(
        build=Encoder,
        loss=lambda model: functional.cross_entropy(model(symbols), symbols.flatten()),
        updates=True,
        ours=ours,
        buckets_mb=buckets,
    )
