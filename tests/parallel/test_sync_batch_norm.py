"""SyncBatchNorm: n ranks normalise as torch.nn.BatchNorm does on the concatenated batch."""

from __future__ import annotations

import copy
import io

import pytest
import torch

import horovod.torch as hvd
from horovod.common import basics

CHANNELS = 3
SHAPES = {1: (), 2: (), 3: (5,), 4: (4, 2), 5: (2, 3, 2)}
PLAIN = {
    2: torch.nn.BatchNorm1d,
    3: torch.nn.BatchNorm1d,
    4: torch.nn.BatchNorm2d,
    5: torch.nn.BatchNorm3d,
}


def parts_of(dimensions: int, size: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Return every rank's batch; their lengths differ."""
    generator = torch.Generator().manual_seed(seed)
    shape = CHANNELS, *SHAPES[dimensions]
    scale = torch.tensor([1.0, 5.0, 0.1]).view(1, -1, *([1] * (dimensions - 2)))
    return [
        (torch.randn((4 + 3 * rank, *shape), generator=generator) * scale + 2.0 * scale).to(dtype)
        for rank in range(size)
    ]


def prepared(layer: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([0.5, -1.0, 2.0]))
            layer.bias.copy_(torch.tensor([0.0, 0.3, -0.2]))
    return layer.to(dtype)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return (output * torch.linspace(-1, 1, output[0].numel()).view(output[0].shape)).exp().sum()


OPTIONS = {
    "default": {},
    "no weights": {"affine": False},
    "no statistics": {"track_running_stats": False},
    "plain mean": {"momentum": None},
    "large eps": {"eps": 0.1, "momentum": 0.7},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("dimensions", [2, 3, 4, 5])
def test_equal_to_batch_norm_of_the_whole_batch(
    dimensions: int, kind: str, dtype: torch.dtype, rank: int, size: int
) -> None:
    ours = prepared(hvd.SyncBatchNorm(CHANNELS, **OPTIONS[kind]), dtype)
    plain = prepared(PLAIN[dimensions](CHANNELS, **OPTIONS[kind]), dtype)
    close = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-5}
    for step in range(3):
        parts = parts_of(dimensions, size, dtype, step)
        x = parts[rank].clone().requires_grad_()
        whole = torch.cat(parts).requires_grad_()
        output, expected = ours(x), plain(whole)
        lengths = [len(part) for part in parts]
        torch.testing.assert_close(output, expected.split(lengths)[rank], **close)
        loss_of(output).backward()
        loss_of(expected).backward()
        torch.testing.assert_close(x.grad, whole.grad.split(lengths)[rank], **close)
        for name, parameter in ours.named_parameters():
            total = hvd.allreduce(parameter.grad, op=hvd.Sum)
            torch.testing.assert_close(total, plain.get_parameter(name).grad, **close)
            parameter.grad, plain.get_parameter(name).grad = None, None
    torch.testing.assert_close(dict(ours.named_buffers()), dict(plain.named_buffers()), **close)
    ours.eval()
    plain.eval()
    x = parts_of(dimensions, size, dtype, 9)[rank]
    torch.testing.assert_close(ours(x), plain(x), **close)


def test_gradients_are_the_derivatives(rank: int, size: int) -> None:
    """Differences of the loss of all ranks, one entry of one rank's input at a time."""
    layer = prepared(hvd.SyncBatchNorm(CHANNELS), torch.float64)
    x = parts_of(2, size, torch.float64)[rank]
    variable = x.clone().requires_grad_()
    loss_of(layer(variable)).backward()

    def loss_at(moved: torch.Tensor) -> float:
        return hvd.allreduce(loss_of(layer(moved)).detach(), op=hvd.Sum).item()

    h = 1e-6
    for owner in range(size):
        for index in ((0, 0), (1, 1), (3, 2)):
            step = torch.zeros_like(x)
            step[index] = h if rank == owner else 0.0
            slope = (loss_at(x + step) - loss_at(x - step)) / (2 * h)
            if rank == owner:
                assert variable.grad[index].item() == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_a_large_mean_loses_no_variance(rank: int, size: int) -> None:
    x = parts_of(2, size, torch.float32)[rank] + 1000.0
    output = hvd.SyncBatchNorm(CHANNELS)(x)
    whole = torch.cat(parts_of(2, size, torch.float32)) + 1000.0
    expected = torch.nn.BatchNorm1d(CHANNELS)(whole).split([4 + 3 * r for r in range(size)])[rank]
    torch.testing.assert_close(output, expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_types_are_calculated_in_float32(dtype: torch.dtype, rank: int, size: int) -> None:
    parts = parts_of(4, size, dtype)
    x = parts[rank].clone().requires_grad_()
    output = hvd.SyncBatchNorm(CHANNELS)(x)
    expected = torch.nn.BatchNorm2d(CHANNELS)(torch.cat(parts).float())
    own = expected.split([len(part) for part in parts])[rank]
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), own, rtol=0.02, atol=0.02)
    output.float().sum().backward()
    assert x.grad.dtype == dtype


def test_a_rank_without_data_takes_part(rank: int, size: int) -> None:
    parts = parts_of(2, size, torch.float64)
    if size > 1:
        parts[-1] = parts[-1][:0]
    x = parts[rank].clone().requires_grad_()
    whole = torch.cat(parts).requires_grad_()
    layer, plain = hvd.SyncBatchNorm(CHANNELS).double(), torch.nn.BatchNorm1d(CHANNELS).double()
    output, expected = layer(x), plain(whole)
    loss_of(output).backward() if len(x) else output.sum().backward()
    loss_of(expected).backward()
    lengths = [len(part) for part in parts]
    torch.testing.assert_close(output, expected.split(lengths)[rank])
    torch.testing.assert_close(x.grad, whole.grad.split(lengths)[rank])
    torch.testing.assert_close(layer.running_var, plain.running_var)


def test_one_value_in_all_is_an_error_on_every_rank(rank: int) -> None:
    layer = hvd.SyncBatchNorm(CHANNELS)
    with pytest.raises(ValueError, match=r"more than one value per channel|more than 1 value"):
        layer(torch.ones(1 if rank == 0 else 0, CHANNELS))


def test_wrong_inputs_are_refused_before_anything_is_sent() -> None:
    layer = hvd.SyncBatchNorm(CHANNELS)
    for shape in ((CHANNELS,), (2, CHANNELS + 1)):
        with pytest.raises(ValueError, match=r"expected input of shape \(N, 3, \.\.\.\)"):
            layer(torch.ones(shape))


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    layers: list[torch.nn.Module] = []
    for _ in range(3):
        layers += [torch.nn.Linear(CHANNELS, CHANNELS), hvd.SyncBatchNorm(CHANNELS)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(CHANNELS, 1)).double()


def test_a_pass_over_several_layers_is_one_step(two_ranks: None, rank: int, size: int) -> None:
    """Names that repeat within a step, as Horovod's do, would make several steps of it."""
    hvd.shutdown()
    hvd.init()
    net = network()
    x = parts_of(2, size, torch.float64)[rank]
    for _ in range(8):
        net(x).square().mean().backward()
    records, _ = basics.engine().drain_steps()
    bytes_of_a_step = 3 * 8 * (2 * CHANNELS + 1 + 2 * CHANNELS)
    assert records
    assert all(record.payload_bytes == bytes_of_a_step * record.count for record in records)


def test_copies_and_pickles_work(rank: int, size: int) -> None:
    net = network()
    x = parts_of(2, size, torch.float64)[rank]
    expected = net(x)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for other in (copy.deepcopy(net), torch.load(file, weights_only=False)):
        torch.testing.assert_close(other(x), expected)
    other = network()
    other.load_state_dict(net.state_dict())
    assert torch.equal(other[1].running_mean, net[1].running_mean)


def test_a_rank_that_has_joined_adds_nothing(rank: int, size: int) -> None:
    """Uneven numbers of batches, as with any other layer: rank 0 has one more than the others."""
    layer = hvd.SyncBatchNorm(CHANNELS).double()
    plain = torch.nn.BatchNorm1d(CHANNELS).double()
    parts = parts_of(2, size, torch.float64)
    layer(parts[rank])
    plain(torch.cat(parts))
    if rank == 0:
        last = parts[0].clone().requires_grad_()
        loss_of(layer(last)).backward()
        assert last.grad.isfinite().all()
    plain(parts[0])
    hvd.join()
    if rank == 0:
        torch.testing.assert_close(dict(layer.named_buffers()), dict(plain.named_buffers()))
