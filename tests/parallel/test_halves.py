"""Averages of float16 and bfloat16 overflow only where the result does, whoever asks for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import horovod.torch as hvd

MOST = {torch.float16: 65504.0, torch.bfloat16: 3e38}
AVERAGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "allreduce": hvd.allreduce,
    "in place": lambda x: hvd.allreduce_(x.clone()),
    "a group": lambda x: hvd.grouped_allreduce([x, x.clone()])[1],
    "with factors": lambda x: hvd.allreduce(x, prescale_factor=2.0, postscale_factor=0.5),
    "reducescatter": hvd.reducescatter,
    "reducescatters": lambda x: hvd.grouped_reducescatter([x, x.clone()])[1],
}


@pytest.mark.parametrize("dtype", MOST, ids=str)
@pytest.mark.parametrize("how", AVERAGES)
@pytest.mark.parametrize("count", [64, 400_000])
def test_averages(how: str, dtype: torch.dtype, count: int) -> None:
    tensor = torch.full((count,), MOST[dtype], dtype=dtype)
    average = AVERAGES[how](tensor)
    assert torch.equal(average, tensor[: average.numel()])


def test_compressed_gradients_and_those_of_half_models() -> None:
    for compression, dtype in ((hvd.Compression.fp16, None), (hvd.Compression.none, torch.half)):
        net = torch.nn.Linear(3, 2).to(dtype or torch.float32)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=1.0), compression=compression
        )
        (net.weight.sum() * 30_000 - net.bias.sum() * 60_000).backward()
        optimizer.synchronize()
        assert torch.equal(net.weight.grad, torch.full_like(net.weight, 30_000))
        assert torch.equal(net.bias.grad, torch.full_like(net.bias, -60_000))


def test_a_bfloat16_average_is_rounded_once(size: int) -> None:
    parts = [torch.randn(10_000, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    sent = [part.bfloat16() for part in parts]
    exact = torch.stack([part.double() for part in sent]).mean(0)
    average = hvd.allreduce(sent[hvd.rank()]).double()
    assert ((average - exact).abs() <= 2**-8 * exact.abs()).all()
