"""The tensors that the experiment communicates, and a real model made of many small ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

RESNET50_BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))


def resnet50_gradient_sizes() -> list[int]:
    """Return the element counts of ResNet-50's 161 gradients in the order of the backward pass.

    25,557,032 elements, 102 MB in float32.
    """
    sizes = [64 * 3 * 7 * 7, 64, 64]
    width = 64
    for planes, blocks in RESNET50_BLOCKS:
        for block in range(blocks):
            sizes += [planes * width, planes, planes]
            sizes += [planes * planes * 9, planes, planes]
            sizes += [4 * planes * planes, 4 * planes, 4 * planes]
            if block == 0:
                sizes += [4 * planes * width, 4 * planes, 4 * planes]
            width = 4 * planes
    sizes += [1000 * 2048, 1000]
    return sizes[::-1]


BERT_LAYERS, BERT_WIDTH = 12, 768


def bert_base_gradient_sizes() -> list[int]:
    """Return the element counts of BERT-base's 199 gradients in the order of the backward pass.

    109,482,240 elements, 438 MB in float32: embeddings (words, positions, types, norm), 12 layers
    of 16 tensors, pooler.
    """
    width = BERT_WIDTH
    sizes = [30522 * width, 512 * width, 2 * width, width, width]
    for _ in range(BERT_LAYERS):
        sizes += [width * width, width] * 4  # query, key, value, output
        sizes += [width, width]  # norm
        sizes += [4 * width * width, 4 * width, 4 * width * width, width]
        sizes += [width, width]  # norm
    sizes += [width * width, width]
    return sizes[::-1]


GRADIENTS: dict[str, Callable[[], list[int]]] = {
    "resnet50": resnet50_gradient_sizes,
    "bert": bert_base_gradient_sizes,
}


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions with a shortcut."""

    def __init__(self, width: int, planes: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(width, planes, 1, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU(),
            nn.Conv2d(planes, planes, 3, stride, 1, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU(),
            nn.Conv2d(planes, 4 * planes, 1, bias=False),
            nn.BatchNorm2d(4 * planes),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width != 4 * planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width, 4 * planes, 1, stride, bias=False), nn.BatchNorm2d(4 * planes)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output; shapes (batch, channels, height, width)."""
        return torch.relu(self.convolutions(x) + self.shortcut(x))


def narrow_resnet50(base_width: int = 6) -> nn.Module:
    """Return ResNet-50's topology (161 parameter tensors), ``base_width`` channels instead of 64.

    The default has 0.9 MB of parameters: many small tensors.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(3, base_width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(base_width),
        nn.ReLU(),
    ]
    width = base_width
    for stage, (planes64, blocks) in enumerate(RESNET50_BLOCKS):
        planes = planes64 * base_width // 64
        for block in range(blocks):
            layers.append(Bottleneck(width, planes, 2 if block == 0 and stage > 0 else 1))
            width = 4 * planes
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
    return nn.Sequential(*layers)
