"""torch.autograd.gradcheck of every differentiable collective, in float64.

A collective is a function of all ranks' inputs. ``Replicate`` hands every rank the whole input, of
which it uses its own part, and sums the ranks' gradients; ``Collect`` gives every rank all outputs.
Between the two, one rank's view is the whole function, which gradcheck can perturb on all ranks
alike. Horovod's conventions differ from the derivative by a factor (CONVENTIONS).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import horovod.torch as hvd

Function = Callable[[torch.Tensor], torch.Tensor]

CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{
        f"allreduce {name}": lambda x, op=op: hvd.allreduce(
            x, op=op, prescale_factor=0.5, postscale_factor=3.0
        )
        for name, op in {
            "average": hvd.Average,
            "sum": hvd.Sum,
            "min": hvd.Min,
            "max": hvd.Max,
            "product": hvd.Product,
        }.items()
    },
    "allreduce named": lambda x: hvd.allreduce(x, op=hvd.Sum, name="gradcheck"),
    "grouped_allreduce": lambda x: torch.cat(hvd.grouped_allreduce([x[:1], x[1:]], op=hvd.Sum)),
    "grouped_allreduce max": lambda x: torch.cat(
        hvd.grouped_allreduce([x[:1], x[1:]], op=hvd.Max, name="gradcheck")
    ),
    "allgather": lambda x: hvd.allgather(x),
    "allgather uneven": lambda x: hvd.allgather(x[: 1 + hvd.rank() % 3]),
    "grouped_allgather": lambda x: torch.cat(hvd.grouped_allgather([x, x[hvd.rank() % 3 :] * 2])),
    "broadcast": lambda x: hvd.broadcast(x, hvd.size() - 1),
    "alltoall": lambda x: hvd.alltoall(torch.cat([x] * hvd.size())),
    "alltoall uneven": lambda x: (
        hvd.alltoall(x, [1] + [0] * (hvd.size() - 2) + [1])[0]
        if hvd.size() > 1
        else hvd.alltoall(x, [2])[0]
    ),
    "reducescatter average": lambda x: hvd.reducescatter(x, prescale_factor=0.5),
    "reducescatter sum": lambda x: hvd.reducescatter(x, op=hvd.Sum, postscale_factor=3.0),
    "grouped_reducescatter": lambda x: torch.cat(
        hvd.grouped_reducescatter([x, x[:1] * 2], op=hvd.Sum, name="gradcheck")
    ),
}


def convention(case: str, size: int) -> float:
    """What Horovod's gradient has to be multiplied by to be the derivative."""
    kind = case.split()[0].removeprefix("grouped_")
    return {"allgather": size, "broadcast": size, "reducescatter": 1 / size}.get(kind, 1.0)


class Replicate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return whole.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            return hvd.allreduce(gradients[0].contiguous(), op=hvd.Sum) * ctx.factor, None


class Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            counts = hvd.allgather(torch.tensor([own.numel()])).tolist()
            ctx.start, ctx.shape = sum(counts[: hvd.rank()]), own.shape
            return hvd.allgather(own.flatten())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return gradients[0][ctx.start : ctx.start + ctx.shape.numel()].reshape(ctx.shape)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_derivative_up_to_horovods_factor(
    case: str, rank: int, size: int
) -> None:
    torch.manual_seed(0)
    whole = torch.rand(size, 3, 2, dtype=torch.float64).add_(0.5).requires_grad_()

    def function(x: torch.Tensor) -> torch.Tensor:
        own = Replicate.apply(x, convention(case, size))[rank]
        return Collect.apply(CASES[case](own).contiguous())

    assert torch.autograd.gradcheck(function, (whole,))


def test_equal_extremes_share_the_gradient(size: int) -> None:
    tensor = torch.ones(2, requires_grad=True)
    hvd.allreduce(tensor, op=hvd.Max).sum().backward()
    torch.testing.assert_close(tensor.grad, torch.ones(2))  # size ranks' gradients, shared by size


def test_a_zero_does_not_spoil_the_gradient_of_a_product(rank: int, size: int) -> None:
    tensor = torch.tensor([0.0 if rank == 0 else 2.0], dtype=torch.float64, requires_grad=True)
    hvd.allreduce(tensor, op=hvd.Product).sum().backward()
    others = 2.0 ** (size - 1) if rank == 0 else 0.0
    assert tensor.grad.item() == others * size


def test_nothing_is_recorded_without_a_gradient(size: int) -> None:
    tensor = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad
    assert not hvd.allgather(torch.ones(2)).requires_grad
