"""Gradient lists of well-known models, generated from their shapes, in the order of backward.

Element counts follow the papers: He et al. (2016) table 1, 50 layers; Simonyan and Zisserman (2015)
table 1, D; Devlin et al. (2019) base; Radford et al. (2019) smallest. The first entry is the last
layer: its gradient is ready first.
"""

from __future__ import annotations

from collections.abc import Callable

RESNET50_BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))
VGG16_CHANNELS = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)


def resnet50(width: int = 64) -> list[int]:
    """161 tensors, 25.6 M elements (``width`` 64); a narrow one has the same number of tensors."""
    classes = 1000 if width == 64 else 10
    sizes, before = [width * 3 * 49, width, width], width
    for planes64, blocks in RESNET50_BLOCKS:
        planes = planes64 * width // 64
        for block in range(blocks):
            sizes += [planes * before, planes, planes, planes * planes * 9, planes, planes]
            sizes += [4 * planes * planes, 4 * planes, 4 * planes]
            if block == 0:
                sizes += [4 * planes * before, 4 * planes, 4 * planes]
            before = 4 * planes
    return [*sizes, classes * before, classes][::-1]


def vgg16() -> list[int]:
    """32 tensors, 138 M elements, 103 M of them in one tensor."""
    sizes, before = [], 3
    for channels in VGG16_CHANNELS:
        sizes += [before * channels * 9, channels]
        before = channels
    for rows, columns in ((512 * 49, 4096), (4096, 4096), (4096, 1000)):
        sizes += [rows * columns, columns]
    return sizes[::-1]


def bert_base() -> list[int]:
    """199 tensors, 109 M elements: encoder with pooler."""
    width, inner = 768, 3072
    sizes = [30522 * width, 512 * width, 2 * width, width, width]
    for _ in range(12):
        sizes += [width * width, width] * 4 + [width, width]
        sizes += [width * inner, inner, inner * width, width, width, width]
    return [*sizes, width * width, width][::-1]


def gpt2() -> list[int]:
    """148 tensors, 124 M elements; the embedding is tied, so the largest gradient comes last."""
    width = 768
    sizes = [50257 * width, 1024 * width]
    for _ in range(12):
        sizes += [width, width, 3 * width * width, 3 * width, width * width, width]
        sizes += [width, width, 4 * width * width, 4 * width, 4 * width * width, width]
    return [*sizes, width, width][::-1]


MODELS: dict[str, Callable[[], list[int]]] = {
    "resnet50": resnet50,
    "vgg16": vgg16,
    "bert-base": bert_base,
    "gpt2": gpt2,
    "narrow-resnet50": lambda: resnet50(6),
}
"""Elements of each gradient, by name."""
