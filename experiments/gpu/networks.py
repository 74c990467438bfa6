"""The networks that are trained: ResNet-50, VGG-16 and a GPT of 24 layers, as published.

Their parameters are counted when they are built (``SHAPE``); "tiny" ones, for dry runs, are not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from engine_speed.workloads import RESNET50_BLOCKS, Bottleneck
from torch import nn
from torch.nn import functional

SHAPE = {
    "resnet50": (161, 25_557_032),
    "vgg16": (32, 138_357_544),
    "gpt350m": (292, 354_823_168),
}
"""{name: (parameter tensors, their elements)}; GPT-2 medium's: output and input layer are one."""
VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Channels of the convolutions; 0: halve the picture."""


def resnet50(width: int = 64) -> nn.Module:
    """Return the network for pictures (batch, 3, 224, 224); it begins with ``width`` channels."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = width
    for stage, (planes64, blocks) in enumerate(RESNET50_BLOCKS):
        planes = planes64 * width // 64
        for block in range(blocks):
            layers.append(Bottleneck(channels, planes, 2 if block == 0 and stage > 0 else 1))
            channels = 4 * planes
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers)


def vgg16(width: int = 64, hidden: int = 4096) -> nn.Module:
    """Return the network for pictures (batch, 3, 224, 224), with dropout."""
    layers: list[nn.Module] = []
    channels = 3
    for planes64 in VGG16:
        if planes64 == 0:
            layers.append(nn.MaxPool2d(2, 2))
            continue
        planes = planes64 * width // 64
        layers += [nn.Conv2d(channels, planes, 3, padding=1), nn.ReLU()]
        channels = planes
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for inputs in (49 * channels, hidden):
        layers += [nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(hidden, 1000))


class Block(nn.Module):
    """One layer: attention, then two linear layers, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Symbols (batch, length) to logits (batch x length, symbols)."""

    def __init__(
        self,
        layers: int = 24,
        width: int = 1024,
        heads: int = 16,
        symbols: int = 50_257,
        length: int = 1024,
    ) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        places = torch.arange(symbols.shape[1], device=symbols.device)
        x = self.norm(self.blocks(self.symbols(symbols) + self.places(places)))
        logits: torch.Tensor = functional.linear(x, self.symbols.weight)
        return logits.flatten(0, 1)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A network and this rank's batch, which stays where the network is.

    Attributes:
        build: Makes the network; on every rank the same weights.
        inputs, labels: The batch.
    """

    build: Callable[[], nn.Module]
    inputs: torch.Tensor
    labels: torch.Tensor

    def loss(self, network: nn.Module) -> torch.Tensor:
        return functional.cross_entropy(network(self.inputs), self.labels)


MAKERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "resnet50": (resnet50, lambda: resnet50(4)),
    "vgg16": (vgg16, lambda: vgg16(4, 32)),
    "gpt350m": (GPT, lambda: GPT(layers=2, width=32, heads=2, symbols=100, length=16)),
}


def build(name: str, device: torch.device, tiny: bool = False) -> nn.Module:
    """Return the network ``name``, with the same weights on every rank."""
    torch.manual_seed(0)
    with device:
        network = MAKERS[name][tiny]()
    sizes = [parameter.numel() for parameter in network.parameters()]
    assert tiny or (len(sizes), sum(sizes)) == SHAPE[name], f"{name}: {len(sizes)}, {sum(sizes)}"
    return network


def sizes_of(name: str, tiny: bool = False) -> list[int]:
    """Return the elements of the parameters in the order of the backward pass."""
    network = build(name, torch.device("meta"), tiny)
    return [parameter.numel() for parameter in network.parameters()][::-1]


def make_task(name: str, device: torch.device, rank: int, tiny: bool = False) -> Task:
    """Return the task of this rank: 8 pictures, or 2 x 256 symbols; random."""
    data = torch.Generator().manual_seed(1000 + rank)
    if name == "gpt350m":
        shape, symbols = ((2, 16), 100) if tiny else ((2, 256), 50_257)
        inputs = torch.randint(symbols, shape, generator=data)
        labels = inputs.flatten()
    else:
        side = 32 if tiny else 224
        inputs = torch.randn(8, 3, side, side, generator=data)
        labels = torch.randint(1000, (8,), generator=data)
    return Task(
        build=lambda: build(name, device, tiny),
        inputs=inputs.to(device),
        labels=labels.to(device),
    )
