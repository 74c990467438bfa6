"""The reductions by Horovod's numbers, and what the keywords ``op`` and ``average`` mean."""

from __future__ import annotations

import warnings
from typing import NamedTuple

from horovod.common.process_set import ProcessSet, global_process_set

Average, Sum, Adasum, Min, Max, Product = range(6)

ENGINE_NAMES = ("average", "sum", "adasum", "min", "max", "product")
"""The engine's names, by number."""


class How(NamedTuple):
    """How tensors are reduced: the arguments that all forms of a reduction share."""

    name: str | None
    op: int
    prescale: float
    postscale: float
    process_set: ProcessSet = global_process_set
    wire_type: str | None = None
    """The engine's name of the type as which float32 tensors of a GPU travel."""


def how_to(
    name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> How:
    """**Local.** Return the description; factors may be anything that is a number now.

    A tensor may be another number later: operations are known again by what they are.
    """
    return How(name, op, float(prescale), float(postscale), process_set)


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
