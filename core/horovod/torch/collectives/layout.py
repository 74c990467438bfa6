"""How tensors lie in memory, where that is not the order of their dimensions.

Layers in ``torch.channels_last`` have such weights and gradients. They travel as contiguous views
whose dimensions stand in the order of memory: no copy, and all ranks see the same shape as long as
their parameters lie alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Order", "order_of"]


@dataclass(frozen=True)
class Order:
    """An order of dimensions in memory.

    Attributes:
        there: Brings the dimensions of a tensor into the order of memory, by ``permute``.
        back: The reverse.
    """

    there: tuple[int, ...]
    back: tuple[int, ...]


_ORDERS = {
    4: (torch.channels_last, Order((0, 2, 3, 1), (0, 3, 1, 2))),
    5: (torch.channels_last_3d, Order((0, 2, 3, 4, 1), (0, 4, 1, 2, 3))),
}


def order_of(tensor: torch.Tensor) -> Order | None:
    """**Local.** Return how the dimensions of ``tensor`` lie, None for "as they stand".

    None as well where both orders have the same shape: ranks whose parameters lie differently must
    see that, not add up wrong elements.
    """
    known = _ORDERS.get(tensor.dim())
    if known is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=known[0]):
        return None
    order = known[1]
    return None if len(set(tensor.shape[1:])) == 1 else order
