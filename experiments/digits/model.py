"""Two networks for 8 x 8 grey images.

``DigitsNet``: a residual network, 65 parameter tensors, 343,418 numbers. ``PixelNet``: a table of
embeddings, of which a step touches few rows, and two linear layers.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two 3 x 3 convolutions beside the identity; the first one may halve the image."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.grow = channels - channels_in
        self.stride = stride

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.norm1(self.conv1(images)))
        out = self.norm2(self.conv2(out))
        shortcut = images[:, :, :: self.stride, :: self.stride]
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, self.grow))
        return functional.relu(out + shortcut)


class DigitsNet(nn.Module):
    """Stem, three stages of blocks (8 x 8, 4 x 4, 2 x 2), mean, linear layer."""

    def __init__(self, width: int = 16, blocks: tuple[int, ...] = (3, 3, 4)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        layers: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for index in range(count):
                wider = width * 2**stage
                stride = 2 if stage and index == 0 else 1
                layers.append(Block(channels, wider, stride))
                channels = wider
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.blocks(self.stem(images))
        return self.head(features.mean(dim=(2, 3)))


class PixelNet(nn.Module):
    """Sum of one embedding per pixel, by place and grey; then two linear layers.

    The table's gradient is sparse: the rows of the pixels that a batch has.
    """

    GREYS = 17

    def __init__(self, width: int, pixels: int = 64) -> None:
        super().__init__()
        self.register_buffer("first_rows", torch.arange(pixels) * self.GREYS, persistent=False)
        self.table = nn.EmbeddingBag(pixels * self.GREYS, width, mode="sum", sparse=True)
        nn.init.normal_(self.table.weight, std=0.1)
        self.head = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        greys = (images.flatten(1) * (self.GREYS - 1)).round().long()
        return self.head(self.table(greys + self.first_rows))
