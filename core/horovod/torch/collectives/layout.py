"""Tensors whose channels are innermost in memory: ``torch.channels_last``, ``channels_last_3d``.

Gradients of layers in these formats travel as contiguous views (n, height * width, channels): no
copy, and never to be taken for one whose elements lie in the order of its dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["as_it_lies", "as_it_stands", "is_channels_last"]

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(tensor: torch.Tensor) -> bool:
    """**Local.** Return whether ``tensor`` is dense in such a format and in no other."""
    memory_format = _FORMATS.get(tensor.dim())
    return (
        memory_format is not None
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=memory_format)
    )


def as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """**Local.** Return ``tensor`` (n, channels, height, width) as (n, height * width, channels).

    Contiguous. It shares its memory where ``is_channels_last(tensor)``. Depth goes with height.
    """
    return tensor.movedim(1, -1).flatten(1, -2).contiguous()


def as_it_stands(view: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """**Local.** Return what ``as_it_lies`` made of a tensor of ``shape`` as such a tensor."""
    return view.reshape(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
