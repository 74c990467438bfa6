"""Batch normalisation over the batches of all ranks.

Notation, per channel: ``n`` values with sum ``s`` and sum of squares ``q`` over all ranks, mean
``m = s / n``, variance ``v = q / n - m^2``, ``xhat = (x - m) / sqrt(v + eps)``. With ``dy`` the
gradient of the output and the sums taken over all ranks

    dx = weight / sqrt(v + eps) * (dy - sum(dy) / n - xhat * sum(dy * xhat) / n).

One allreduce of ``(n, s, q)`` goes forward and one of ``(sum(dy), sum(dy * xhat))`` backward, both
in float64, so that ``q / n - m^2`` loses nothing that float32 had. A rank without data, or one that
has joined, adds zeros.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.common.process_set import ProcessSet, global_process_set
from horovod.torch.operations import Sum, allreduce_

_used: Counter[int | None] = Counter()
"""{process set: layers that were used in it}; the order of first use is the same on all ranks."""


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation whose mean and variance are those of all ranks' batches together.

    In evaluation, or with one rank, it is ``torch.nn.BatchNorm``. Weight and bias get this
    rank's share of their gradients, as any other parameter: a DistributedOptimizer averages them.

    Args:
        num_features: Channels C of the input.
        eps: Added to the variance.
        momentum: Weight of a new batch in the running statistics; None for a plain mean.
        affine: Whether there are a weight and a bias per channel.
        track_running_stats: Whether statistics are kept for evaluation.
        process_set: Ranks whose batches belong together; other ranks normalise by themselves.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set
        self._name = ""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """**Collective** over the process set in training, else **Local.** Normalise ``input``.

        Args:
            input: Shape (N, C, ...), on the CPU or a GPU; N may differ between ranks and be 0.

        Raises:
            ValueError: Less than two dimensions, other channels, or one value per channel in all.
            HorovodInternalError: The reduction failed.
        """
        self._check_input_dim(input)
        alone = self.process_set.size() == 1 or not self.process_set.included()
        if alone or not self.training:
            return super().forward(input)
        name = self._operation_name()
        with torch.no_grad():
            count, mean, variance = _statistics(input, f"{name}.forward", self.process_set)
            self._track(count, mean, variance)
        scale = (variance + self.eps).rsqrt()
        arguments = count, mean, scale, f"{name}.backward", self.process_set
        output: torch.Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, *arguments
        )
        return output

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm: expected input of shape (N, {self.num_features}, ...), got "
                f"{tuple(input.shape)}"
            )

    def _operation_name(self) -> str:
        if not self._name:
            key = self.process_set.process_set_id
            self._name = f"sync_batch_norm.{_used[key]}"
            _used[key] += 1
        return self._name

    def _track(self, count: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Take a batch of ``count`` values per channel into the running statistics."""
        if self.running_mean is None or self.running_var is None:
            return
        weight = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if weight is None:
                weight = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean), weight or 0.0)
        self.running_var.lerp_(unbiased.to(self.running_var), weight or 0.0)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the global process set, which is not copied with a model."""
        state = self.__dict__.copy()
        if self.process_set is global_process_set:
            del state["process_set"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore: Any = super().__setstate__
        restore({"process_set": global_process_set, **state})


def _statistics(
    input: torch.Tensor, name: str, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """**Collective.** Return count (), mean (C,) and variance (C,) of all ranks' values.

    All in float64. ``q`` is found from this rank's own mean and variance, which do not cancel.
    """
    channels = input.shape[1]
    own = input.numel() // channels
    sums = torch.zeros(2 * channels + 1, dtype=torch.float64, device=input.device)
    if own:
        variance, mean = torch.var_mean(_precise(input), _others(input), correction=0)
        mean = mean.double()
        sums[0] = own
        sums[1 : channels + 1] = own * mean
        sums[channels + 1 :] = own * (variance.double() + mean.square())
    allreduce_(sums, name=name, op=Sum, process_set=process_set)
    count, mean, squares = sums[0], *(sums[1:] / sums[0]).chunk(2)
    if own <= 1 and count <= 1:
        raise ValueError(
            "SyncBatchNorm: expected more than one value per channel in all in training, got "
            f"{int(count)}"
        )
    return count, mean, (squares - mean.square()).clamp_(min=0.0)


class _Normalise(torch.autograd.Function):
    """``weight * (x - mean) * scale + bias`` where mean and scale depend on all ranks' ``x``."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        count: torch.Tensor,
        mean: torch.Tensor,
        scale: torch.Tensor,
        name: str,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight, count, mean, scale)
        ctx.name, ctx.process_set = name, process_set
        result = _standardised(input, mean, scale)
        if weight is not None:
            result *= _per_channel(weight, result)
        if bias is not None:
            result += _per_channel(bias, result)
        return result.to(input.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        input, weight, count, mean, scale = ctx.saved_tensors
        dy, xhat = _precise(gradients[0]), _standardised(input, mean, scale)
        own = torch.stack([dy.sum(_others(dy)), (dy * xhat).sum(_others(dy))]).double()
        of_weight = of_bias = of_input = None
        if weight is not None:
            of_bias, of_weight = own.to(weight.dtype)
        if ctx.needs_input_grad[0]:
            sums = own.clone()
            allreduce_(sums, name=ctx.name, op=Sum, process_set=ctx.process_set)
            dy_mean, dy_xhat_mean = (_per_channel(part, dy) for part in sums / count)
            factor = scale if weight is None else scale * weight.double()
            of_input = (dy - dy_mean - xhat * dy_xhat_mean) * _per_channel(factor, dy)
            of_input = of_input.to(input.dtype)
        return of_input, of_weight, of_bias, *([None] * 5)


def _standardised(input: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    x = _precise(input)
    return (x - _per_channel(mean, x)) * _per_channel(scale, x)


def _precise(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` in the type that is calculated in: float32 at least."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _others(tensor: torch.Tensor) -> list[int]:
    """Return all dimensions but that of the channels."""
    return [0, *range(2, tensor.dim())]


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return ``values`` (C,) in the type of ``like`` and in a shape that broadcasts to it."""
    return values.to(like.dtype).view(1, -1, *([1] * (like.dim() - 2)))
