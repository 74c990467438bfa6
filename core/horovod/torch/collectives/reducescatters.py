"""Reducescatter: every rank gets its share of the reduction of all ranks' tensors.

The first dimension is divided among the ranks; the first ones get one row more where it does not
divide. The gradient follows Horovod: the allgather of the gradients, with Sum times the number of
ranks, and times the factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.exceptions import HorovodInternalError
from horovod.common.operation import How
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.reduce_ops import Adasum, Average, Sum
from horovod.torch.collectives.plain import (
    apply,
    gather,
    gather_group,
    of_gradient,
    wants_gradient,
)
from horovod.torch.collectives.results import result_allocated, results_allocated
from horovod.torch.collectives.start import start, start_group
from horovod.torch.compression import Compression, Compressor

__all__ = [
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """**Collective.** Start reducing ``tensor`` and scattering the rows of the result.

    Args:
        tensor: Shape (n, ...), n >= 0: the same shape and type on all ranks.
        name: Name of the operation, the same on all ranks.
        op: Average or Sum.
        process_set: Its members take part.
        prescale_factor: Factor before the reduction.
        postscale_factor: Factor after it.

    Raises:
        ValueError: Unsuitable tensor (a scalar), another ``op``, this rank is not in the process
            set, or the name is in flight already.
    """
    how = _how(name, op, prescale_factor, postscale_factor, process_set)
    return start(how, tensor, None, result_allocated)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """**Collective.** As ``reducescatter_async`` for several tensors under one handle."""
    how = _how(name, op, prescale_factor, postscale_factor, process_set)
    return start_group(how, list(tensors), None, results_allocated)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """**Collective.** Return this rank's rows of the reduction; differentiable.

    Args:
        tensor: As ``reducescatter_async``, and so are the others.
        name: Name of the operation.
        compression: How floating-point tensors travel.
        op: The reduction.
        process_set: Its members take part.
        prescale_factor: Factor before it.
        postscale_factor: Factor after it.

    Returns:
        Shape (rows, ...): n // size rows, one more on the first n % size ranks.
    """
    how = _how(name, op, prescale_factor, postscale_factor, process_set)
    return _scatter([tensor], how, compression, grouped=False)[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """**Collective.** As ``reducescatter`` for several tensors; differentiable."""
    how = _how(name, op, prescale_factor, postscale_factor, process_set)
    return _scatter(tensors, how, compression, grouped=True)


def _how(
    name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> How:
    if op == Adasum:
        raise HorovodInternalError("reducescatter: there is no Adasum; use op=Average or Sum")
    if op not in (Average, Sum):
        raise ValueError(f"reducescatter: expected op Average or Sum, got {op!r}")
    return How("reducescatter", name, process_set, op, float(prescale), float(postscale))


def _scatter(
    tensors: Sequence[torch.Tensor], how: How, compression: type[Compressor], *, grouped: bool
) -> list[torch.Tensor]:
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [pair[0] for pair in pairs]
    if wants_gradient(compressed):
        scattered = apply(_Reducescatter, how, grouped, *compressed)
    else:
        scattered = _run(compressed, how, grouped)
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(scattered, pairs, strict=True)
    ]


def _run(tensors: Sequence[torch.Tensor], how: How, grouped: bool) -> list[torch.Tensor]:
    return gather_group(tensors, how) if grouped else [gather(tensors[0], how)]


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: How, grouped: bool, *tensors: torch.Tensor) -> Any:
        ctx.how, ctx.grouped = how, grouped
        return tuple(_run(tensors, how, grouped))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        how: How = ctx.how
        factor = how.prescale * how.postscale
        if how.op == Sum:
            factor *= how.process_set.size() or 1
        scaled = [(gradient * factor).contiguous() for gradient in gradients]
        back = of_gradient(How("allgather", how.name, how.process_set))
        if ctx.grouped:
            return (None, None, *gather_group(scaled, back))
        return None, None, gather(scaled[0], back)
