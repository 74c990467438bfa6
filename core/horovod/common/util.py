"""Small helpers that scripts and libraries import from here."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def split_list(items: Sequence[T], parts: int) -> list[list[T]]:
    """Return ``items`` in ``parts`` consecutive lists whose lengths differ by at most one.

    **Local.** Longer lists come first; with fewer items than parts the last lists are empty.

    Raises:
        ValueError: ``parts`` is not positive.
    """
    if parts < 1:
        raise ValueError(f"split_list: expected at least 1 part, got {parts}")
    length, longer = divmod(len(items), parts)
    bounds = [i * length + min(i, longer) for i in range(parts + 1)]
    return [list(items[low:high]) for low, high in pairwise(bounds)]


def num_rank_is_power_2(size: int) -> bool:
    """**Local.** Return True when ``size`` (a number of ranks) is a power of two."""
    return size > 0 and size & (size - 1) == 0
