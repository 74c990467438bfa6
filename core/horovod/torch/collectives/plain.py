"""Collectives that autograd does not see: what those that it sees, and their gradients, consist of.

The differentiable ones import from here and not from each other: the gradient of an allgather is an
allreduce, and that of an allreduce by Max needs an allgather.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.operation import How
from horovod.torch.collectives.prepared import check
from horovod.torch.collectives.results import (
    outputs_like,
    result_allocated,
    result_output,
    results_allocated,
)
from horovod.torch.collectives.start import run, start, start_group
from horovod.torch.handles import synchronize


def reduce(tensor: torch.Tensor, how: How) -> torch.Tensor:
    """**Collective.** Return the reduction of ``tensor``, a new tensor."""
    check(tensor)
    return run(how, tensor, torch.empty_like(tensor, requires_grad=False))


def reduce_group(tensors: Sequence[torch.Tensor], how: How) -> list[torch.Tensor]:
    """**Collective.** Return the reductions of ``tensors``, new tensors."""
    result: list[torch.Tensor] = synchronize(start_reductions(tensors, None, how))
    return result


def start_reductions(
    tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None, how: How
) -> int:
    """**Collective.** Start to reduce ``tensors`` to ``outputs``; None: to new ones."""
    in_place = outputs is tensors
    tensors = list(tensors)
    if outputs is None:
        for tensor in tensors:
            check(tensor)
        outputs = outputs_like(tensors)
    return start_group(how, tensors, tensors if in_place else list(outputs), result_output)


def gather(tensor: torch.Tensor, how: How) -> torch.Tensor:
    """**Collective.** Return the result of an allgather or reducescatter of ``tensor``."""
    result: torch.Tensor = synchronize(start(how, tensor, None, result_allocated))
    return result


def gather_group(tensors: Sequence[torch.Tensor], how: How) -> list[torch.Tensor]:
    """**Collective.** As ``gather`` for several tensors."""
    started = start_group(how, list(tensors), None, results_allocated)
    result: list[torch.Tensor] = synchronize(started)
    return result


def wants_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    """**Local.** Return whether autograd would record an operation on ``tensors``.

    Raises:
        TypeError: One of them is no tensor.
    """
    try:
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    except AttributeError:
        for tensor in tensors:
            check(tensor)
        raise


def of_gradient(how: How) -> How:
    """**Local.** Return the description of the same operation on the gradient."""
    return how if how.name is None else how._replace(name=f"{how.name}.gradient")


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """**Collective.** Run ``function`` so that autograd records it."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]
