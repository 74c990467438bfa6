"""Adasum of tensors on the GPU, which goes through memory."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd
from gpu.device import ON_GPU, full, put, same
from parallel.test_adasum import TOLERANCE, combine, inputs


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("count", [1, 7, 30_001])
def test_the_rule(dtype: torch.dtype, count: int, rank: int, size: int) -> None:
    tensors = inputs(size, count, dtype)
    expected = combine([tensor.double() for tensor in tensors])
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    own = put(tensors[rank])
    for name in (None, f"adasum.{dtype}.{count}", f"adasum.{dtype}.{count}"):
        result = hvd.allreduce(own, op=hvd.Adasum, name=name)
        assert (result.dtype, result.is_cuda) == (dtype, ON_GPU)
        torch.testing.assert_close(result.cpu().double(), expected, **close)
    hvd.allreduce_(own, op=hvd.Adasum)
    torch.testing.assert_close(own.cpu().double(), expected, **close)


def test_a_group_between_other_operations(rank: int, size: int) -> None:
    tensors = {count: inputs(size, count, torch.float64) for count in (3, 50, 1000)}
    before = hvd.allreduce_async(full(1000, 1.0), op=hvd.Sum, name="before")
    group = hvd.grouped_allreduce_async(
        [put(each[rank]) for each in tensors.values()], op=hvd.Adasum
    )
    after = hvd.allreduce_async(full(1000, 2.0), op=hvd.Sum, name="after")
    same(hvd.synchronize(after), torch.full((1000,), 2.0 * size))
    for result, each in zip(hvd.synchronize(group), tensors.values(), strict=True):
        torch.testing.assert_close(result.cpu(), combine(each))
    same(hvd.synchronize(before), torch.full((1000,), float(size)))


def test_the_optimizer(rank: int, size: int) -> None:
    """One step of SGD: the ranks' steps are combined."""
    gradients = inputs(size, 100, torch.float32)
    weight = torch.nn.Parameter(full(100, 0.0))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=0.5), named_parameters=[("w", weight)], op=hvd.Adasum
    )
    (weight * put(gradients[rank])).sum().backward()
    optimizer.step()
    expected = combine([-0.5 * gradient.double() for gradient in gradients]).float()
    torch.testing.assert_close(weight.detach().cpu(), expected, rtol=1e-4, atol=1e-5)
