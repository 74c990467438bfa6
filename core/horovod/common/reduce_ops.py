"""The reductions by Horovod's numbers, and what the keywords ``op`` and ``average`` mean."""

from __future__ import annotations

import warnings

Average, Sum, Adasum, Min, Max, Product = range(6)

ENGINE_NAMES = ("average", "sum", "adasum", "min", "max", "product")
"""The engine's names, by number."""


def resolve_op(op: int | None, average: bool | None) -> int:
    """**Local.** Return the reduction that the two keywords mean.

    Raises:
        ValueError: Both are given, or no such reduction.
    """
    if average is not None:
        if op is not None:
            raise ValueError("allreduce: op and average are mutually exclusive; leave out average")
        warnings.warn("average= is deprecated: use op=", DeprecationWarning, stacklevel=4)
        return Average if average else Sum
    if op is None:
        return Average
    if op not in range(len(ENGINE_NAMES)):
        raise ValueError(f"op: expected Average, Sum, Adasum, Min, Max or Product, got {op!r}")
    return op


handle_average_backwards_compatibility = resolve_op
"""Horovod's name of it, which libraries import."""
