"""Sparse reductions, broadcasts of a state, and SyncBatchNorm, against one process on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import horovod.torch as hvd
from gpu.device import DEVICE, ON_GPU, full, put
from parallel.test_functions import Layers
from parallel.test_sparse import embedding_gradient
from parallel.test_sync_batch_norm import CHANNELS, PLAIN, loss_of, parts_of, prepared


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [None, "sparse", "sparse"])
def test_sparse_sums_and_averages(
    name: str | None, dtype: torch.dtype, rank: int, size: int
) -> None:
    total = sum(embedding_gradient(r, dtype).to_dense() for r in range(size))
    own = put(embedding_gradient(rank, dtype))
    start = hvd.sparse_allreduce_async(own, name, hvd.Sum)
    mean = hvd.sparse_allreduce_async(own, f"{name}.mean", hvd.Average)
    result = start()
    assert (result.is_sparse, result.is_cuda, result.dtype) == (True, ON_GPU, dtype)
    torch.testing.assert_close(result.to_dense().cpu(), total)
    torch.testing.assert_close(mean().to_dense().cpu(), total / size)


def net(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2)]
    return torch.nn.Sequential(*layers)


@pytest.mark.parametrize("root", [0, -1], ids=["first", "last"])
def test_parameters_and_buffers_become_roots(root: int, rank: int, size: int) -> None:
    root %= size
    ours, roots = net(rank).to(DEVICE), net(root)
    hvd.broadcast_parameters(ours.state_dict(), root)
    for name, value in ours.state_dict().items():
        assert value.is_cuda == ON_GPU
        assert torch.equal(value.cpu(), roots.state_dict()[name])
    tensor = full((3, 4), rank).t()
    hvd.broadcast_parameters({"a": tensor, "b": None}, root)
    assert torch.equal(tensor.cpu(), torch.full((4, 3), float(root)))


VARIANTS: dict[str, tuple[type, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.5}),
    "Adam": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "AdamW, fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    "Adam, capturable": (torch.optim.Adam, {"lr": 0.01, "capturable": ON_GPU}),
}


def train_step(layers: Layers, optimizer: torch.optim.Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    vectors = layers.words(put(torch.tensor([seed, 2, 2])))
    layers.rest(vectors).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("variant", VARIANTS)
def test_optimizer_state_becomes_roots(variant: str, rank: int) -> None:
    """Root has trained; the others have no state yet, and other options."""
    make, options = VARIANTS[variant]
    ours, roots = Layers(rank, "").to(DEVICE), Layers(0, "").to(DEVICE)
    other = options if rank == 0 else options | {"lr": 0.5}
    optimizer = make(ours.parameters(), **other)
    right = make(roots.parameters(), **options)
    for seed in range(2):
        train_step(roots, right, seed)
        if rank == 0:
            train_step(ours, optimizer, seed)
    hvd.broadcast_optimizer_state(optimizer, 0)
    hvd.broadcast_parameters(ours.state_dict(), 0)
    state, expected = optimizer.state_dict(), right.state_dict()
    torch.testing.assert_close(state["state"], expected["state"], rtol=1e-5, atol=1e-6)
    assert state["param_groups"] == expected["param_groups"]
    train_step(ours, optimizer, 1)
    train_step(roots, right, 1)
    torch.testing.assert_close(
        dict(ours.named_parameters()), dict(roots.named_parameters()), rtol=1e-5, atol=1e-6
    )


def test_objects_with_tensors_travel(rank: int, size: int) -> None:
    thing = {"epoch": 3, "t": full(3, 2.0)} if rank == 0 else None
    received = hvd.broadcast_object(thing, 0, name="thing")
    assert received["epoch"] == 3
    assert received["t"].tolist() == [2.0] * 3
    assert hvd.allgather_object({"rank": rank}) == [{"rank": r} for r in range(size)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("dimensions", PLAIN)
def test_sync_batch_norm_is_batch_norm_of_the_whole_batch(
    dimensions: int, dtype: torch.dtype, rank: int, size: int
) -> None:
    ours = prepared(hvd.SyncBatchNorm(CHANNELS), dtype).to(DEVICE)
    plain = prepared(PLAIN[dimensions](CHANNELS), dtype)
    close = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-4}

    def check(result: torch.Tensor, expected: torch.Tensor) -> None:
        assert result.is_cuda == ON_GPU
        torch.testing.assert_close(result.cpu(), expected, **close)

    for step in range(3):
        parts = parts_of(dimensions, size, dtype, step)
        lengths = [len(part) for part in parts]
        x = put(parts[rank].clone()).requires_grad_()
        whole = torch.cat(parts).requires_grad_()
        output, expected = ours(x), plain(whole)
        check(output, expected.split(lengths)[rank])
        weights = torch.linspace(-1, 1, output[0].numel()).view(output[0].shape)
        (output * put(weights)).exp().sum().backward()
        loss_of(expected).backward()
        check(x.grad, whole.grad.split(lengths)[rank])
        for name, parameter in ours.named_parameters():
            total = hvd.allreduce(parameter.grad, op=hvd.Sum)
            check(total, plain.get_parameter(name).grad)
            parameter.grad, plain.get_parameter(name).grad = None, None
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer.cpu(), plain.get_buffer(name), **close)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sync_batch_norm_of_short_types(dtype: torch.dtype, rank: int, size: int) -> None:
    parts = parts_of(4, size, dtype)
    output = hvd.SyncBatchNorm(CHANNELS).to(DEVICE)(put(parts[rank]))
    expected = torch.nn.BatchNorm2d(CHANNELS)(torch.cat(parts).float())
    own = expected.split([len(part) for part in parts])[rank]
    assert output.dtype == dtype
    torch.testing.assert_close(output.cpu().float(), own, rtol=0.02, atol=0.02)
