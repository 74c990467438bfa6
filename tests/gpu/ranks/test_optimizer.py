"""DistributedOptimizer on GPUs against one process that trains on whole batches on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import horovod.torch as hvd
from gpu.device import DEVICE, ON_GPU, full, put
from parallel.training import SGD, batches, loss_of, model, shard, train_whole, wrap

STEPS = 4


def on_device() -> torch.nn.Module:
    return model().to(DEVICE)


def backward(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    loss_of(net, put(shard(x)), put(shard(y))).backward()


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        backward(net, x, y)
        optimizer.step()


def close(net: torch.nn.Module, reference: torch.nn.Module, tolerance: float = 1e-9) -> None:
    for parameter, right in zip(net.parameters(), reference.parameters(), strict=True):
        assert parameter.is_cuda == ON_GPU
        assert (parameter.detach().cpu() - right.detach()).abs().max() < tolerance


def gradients_close(net: torch.nn.Module, reference: torch.nn.Module, **tolerance: float) -> None:
    for parameter, right in zip(net.parameters(), reference.parameters(), strict=True):
        assert parameter.grad.dtype == right.grad.dtype
        torch.testing.assert_close(parameter.grad.cpu(), right.grad, **tolerance)


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "one group": {"groups": 1},
    "three groups": {"groups": 3},
    "predivided": {"gradient_predivide_factor": 4.0},
    "predivided groups": {"gradient_predivide_factor": 4.0, "groups": 2},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_weights_are_those_of_one_process(kind: str) -> None:
    net = on_device()
    optimizer = wrap(net, **OPTIONS[kind])
    hvd.broadcast_parameters(net.state_dict(), 0)
    train(net, optimizer)
    close(net, train_whole(STEPS, **SGD))


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_other_optimizers(make: type, how: str) -> None:
    net = on_device()
    optimizer = hvd.DistributedOptimizer(
        make(net.parameters(), lr=0.01, **{how: True}), named_parameters=net.named_parameters()
    )
    train(net, optimizer)
    close(net, train_whole(STEPS, make, lr=0.01), 1e-7)


@pytest.mark.parametrize("passes", [2, 3])
def test_passes_are_summed(passes: int) -> None:
    net, reference = on_device(), model()
    optimizer = wrap(net, backward_passes_per_step=passes)
    whole = torch.optim.SGD(reference.parameters(), **SGD)
    for number, (x, y) in enumerate(batches(2 * passes), 1):
        backward(net, x, y)
        loss_of(reference, x, y).backward()
        if number % passes == 0:
            for each in (optimizer, whole):
                each.step()
                each.zero_grad()
    close(net, reference)


@pytest.mark.parametrize("groups", [None, 2], ids=["single", "groups"])
@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_compressed_gradients_keep_their_type(name: str, groups: int | None) -> None:
    net, reference = on_device(), model()
    optimizer = wrap(net, compression=getattr(hvd.Compression, name), groups=groups)
    for x, y in batches(2):
        optimizer.zero_grad()
        reference.zero_grad()
        backward(net, x, y)
        optimizer.synchronize()
        loss_of(reference, x, y).backward()
        exact = {"rtol": 1e-9, "atol": 1e-12}
        gradients_close(net, reference, **exact if name == "none" else {"rtol": 0.05, "atol": 0.01})


def test_gradients_are_clipped_between_synchronize_and_step() -> None:
    net, reference = on_device(), model()
    optimizer = wrap(net)
    whole = torch.optim.SGD(reference.parameters(), **SGD)
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        backward(net, x, y)
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        whole.zero_grad()
        loss_of(reference, x, y).backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        whole.step()
    close(net, reference)


def test_a_gradient_scaler_skips_a_step_on_all_ranks(on_gpu: None, rank: int, size: int) -> None:
    """An infinite gradient on one rank is one on all."""
    weight = torch.nn.Parameter(full(10, 1.0))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), named_parameters=[("w", weight)]
    )
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    for factor in (1.0, float("inf") if rank == size - 1 else 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0
    assert weight.detach().tolist() == [-1.0] * 10


def test_mixed_precision_trains(rank: int, size: int) -> None:
    """bfloat16 weights among float32 ones; all ranks end with the same."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64).bfloat16())
    net = net.to(DEVICE)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), named_parameters=net.named_parameters()
    )
    hvd.broadcast_parameters(net.state_dict(), 0)
    before = [p.detach().clone() for p in net.parameters()]
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + rank)
        optimizer.zero_grad()
        net[1](net[0](put(torch.randn(4, 64, generator=generator))).bfloat16()).sum().backward()
        optimizer.step()
    for old, parameter in zip(before, net.parameters(), strict=True):
        assert not torch.equal(old, parameter)
        everyone = hvd.allgather(parameter.detach().unsqueeze(0))
        assert torch.equal(everyone, parameter.detach().expand_as(everyone))


def test_gradients_in_another_memory_format(rank: int, size: int) -> None:
    torch.manual_seed(1)
    layer = torch.nn.Conv2d(2, 4, 3).to(DEVICE, memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.0))
    x = full((2, 2, 5, 5), rank + 1.0).to(memory_format=torch.channels_last)
    expected = torch.full(layer.weight.shape, 2 * 9 * (size + 1) / 2)
    for _ in range(3):
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()
        torch.testing.assert_close(layer.weight.grad.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_gradients_of_collectives(rank: int, size: int) -> None:
    """Autograd runs the backward pass of a CUDA graph of operations on its own thread."""
    tensor = full(4, 1.0, dtype=torch.float64).requires_grad_()
    weights = put(torch.arange(4.0, dtype=torch.float64)) * (rank + 1)
    (hvd.allreduce(tensor, op=hvd.Sum) * weights).sum().backward()
    expected = torch.arange(4.0, dtype=torch.float64) * size * (size + 1) / 2
    torch.testing.assert_close(tensor.grad.cpu(), expected)
    tensor = full((rank + 1, 2), 1.0).requires_grad_()
    (hvd.allgather(tensor) * (rank + 1)).sum().backward()
    torch.testing.assert_close(tensor.grad.cpu(), torch.full((rank + 1, 2), (size + 1) / 2))
