"""Gradients of layers in ``channels_last`` travel as they lie: right, and without a copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.collectives import prepared
from horovod.torch.collectives.layout import as_it_lies, as_it_stands, is_channels_last
from horovod.torch.collectives.repeated import RepeatedAllreduces
from horovod.torch.wrapped.gradients import Gradient, Options

LAST, LAST_3D = torch.channels_last, torch.channels_last_3d


class Flat(hvd.Compression.none):
    """Makes something of another shape."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        return tensor.flatten(), tensor.shape

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor.reshape(context)


def layers(dimensions: int) -> nn.Module:
    """Return layers whose weights lie in every way: also of equal sides, and of one element."""
    torch.manual_seed(3)
    make = nn.Conv2d if dimensions == 2 else nn.Conv3d
    return nn.Sequential(make(2, 3, 3), make(3, 3, 3), make(3, 5, 1), make(5, 1, 3, groups=1))


def train(net: nn.Module, dimensions: int, *, reduced: bool = True, **options: Any) -> nn.Module:
    """Make four steps, on this rank's part of what there is or, not ``reduced``, on all."""
    rank, size = hvd.rank(), hvd.size()
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    if reduced:
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), **options)
    torch.manual_seed(5)
    for step in range(4):
        x = torch.randn(size, 2, *[8] * dimensions)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        net(x[rank : rank + 1] if reduced else x).square().mean().backward()
        optimizer.step()
    return net


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.bf16, "groups": 1},
        {"compression": Flat},
        {"backward_passes_per_step": 1, "op": hvd.Sum, "gradient_predivide_factor": 1.0},
    ],
)
@pytest.mark.parametrize(("dimensions", "memory_format"), [(2, LAST), (3, LAST_3D)])
def test_training_is_the_same(
    dimensions: int, memory_format: torch.memory_format, options: dict[str, Any], size: int
) -> None:
    net = train(layers(dimensions).to(memory_format=memory_format), dimensions, **options)
    plain = train(layers(dimensions), dimensions, **options)
    for own, other in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.contiguous(), other.contiguous(), rtol=1e-3, atol=1e-4)
        if own.dim() > 1:
            assert own.grad is not None and own.grad.is_contiguous(memory_format=memory_format)
    if options in ({}, {"groups": 2}):
        whole = train(layers(dimensions), dimensions, reduced=False)
        for own, other in zip(net.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_gradients_that_lie_otherwise_than_their_parameters(rank: int, size: int) -> None:
    weights = [torch.zeros(4, 2, 3, 5), torch.zeros(4, 2, 3, 5).to(memory_format=LAST)]
    parameters = [nn.Parameter(weight) for weight in weights]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
    value = torch.arange(120.0).reshape(4, 2, 3, 5)
    for step in range(3):
        formats = [LAST, torch.contiguous_format][:: 1 if step % 2 else -1]
        for parameter, memory_format in zip(parameters, formats, strict=True):
            parameter.grad = (value + rank).contiguous(memory_format=memory_format)
        optimizer.step()
        for parameter in parameters:
            assert torch.equal(parameter.grad, value + (size - 1) / 2)


@pytest.mark.parametrize("shape", [(4, 2, 3, 5), (4, 3, 3, 3)])
def test_ranks_whose_parameters_lie_differently_are_told(
    two_ranks: None, rank: int, shape: tuple[int, ...]
) -> None:
    weight = torch.zeros(shape)
    parameter = nn.Parameter(weight.to(memory_format=LAST) if rank else weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(HorovodInternalError, match=r"shape"):
        optimizer.step()


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.bf16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_step_but_the_first_goes_the_fast_way(
    dtype: torch.dtype, compression: Any, monkeypatch: pytest.MonkeyPatch, rank: int, size: int
) -> None:
    started: list[int] = []
    start = RepeatedAllreduces.start
    monkeypatch.setattr(
        RepeatedAllreduces, "start", lambda self, ts: (started.append(len(ts)), start(self, ts))[1]
    )
    weights = [torch.zeros(4, 2, 3, 5), torch.zeros(8, 3, 3, 3), torch.zeros(3)]
    parameters = [
        nn.Parameter(w.to(dtype, memory_format=LAST if w.dim() == 4 else torch.contiguous_format))
        for w in weights
    ]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parameters, lr=1.0), compression=compression
    )
    for step in range(3):
        optimizer.zero_grad()
        sum((p * (rank + step + 1)).sum() for p in parameters).backward()  # type: ignore[union-attr]
        optimizer.synchronize()
        for parameter in parameters:
            assert torch.all(parameter.grad == step + (size + 1) / 2)
        if step == 0:
            first = len(started)
    by_hook = size > 1 and prepared._reader is not None
    if by_hook and (compression is hvd.Compression.none or dtype is torch.bfloat16):
        assert 0 < first == len(started)


@pytest.mark.parametrize("exchanged", ["another tensor", "nothing"])
def test_a_gradient_exchanged_on_its_way_gets_the_result(
    two_ranks: None, exchanged: str, rank: int, size: int
) -> None:
    shape = (256, 128, 3, 3)  # large enough to be on its way after the backward pass
    parameter = nn.Parameter(torch.zeros(shape).to(memory_format=LAST))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
    value = torch.arange(float(parameter.numel())).reshape(shape)
    for step in range(3):
        optimizer.zero_grad()
        (parameter * (value + rank + step)).sum().backward()
        other = torch.zeros(shape)
        parameter.grad = other if exchanged == "another tensor" else None
        optimizer.synchronize()
        if exchanged == "another tensor":
            assert parameter.grad is other
        assert torch.equal(parameter.grad, value + step + (size - 1) / 2)


@pytest.mark.parametrize(
    ("shape", "memory_format"),
    [
        ((6, 2, 3, 5), LAST),
        ((6, 2, 1, 5), LAST),
        ((8, 3, 3, 3), LAST),
        ((2, 2, 2, 2, 3), LAST_3D),
    ],
)
def test_nothing_is_copied(
    by_c: bool, shape: tuple[int, ...], memory_format: torch.memory_format
) -> None:
    parameter = nn.Parameter(torch.ones(shape).to(memory_format=memory_format))
    parameter.grad = torch.ones_like(parameter)
    options = Options(
        compression=hvd.Compression.none,
        op=hvd.Average,
        prescale_factor=1.0,
        postscale_factor=1.0,
        sparse_as_dense=False,
        process_set=hvd.global_process_set,
    )
    travels = Gradient(parameter, "x", 1).outgoing(options)
    assert travels.is_contiguous() and travels.data_ptr() == parameter.grad.data_ptr()
    allreduces = RepeatedAllreduces([options.how(f"lies.{shape}.{by_c}")])
    hvd.synchronize(allreduces.start([travels]))
    handle = allreduces.start_again([parameter.grad])
    assert (handle is not None) == by_c
    if handle is not None:
        hvd.synchronize(handle)
    others = [torch.ones(shape), torch.ones(shape)[..., :1], parameter.grad[:1]]
    assert all(allreduces.start_again([other]) is None for other in others)
    assert torch.equal(parameter.grad, torch.ones(shape))


def test_there_and_back() -> None:
    def last(*shape: int) -> torch.Tensor:
        numbers = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        return numbers.to(memory_format=LAST if len(shape) == 4 else LAST_3D)

    for shape in ((4, 2, 3, 5), (1, 2, 3, 5), (4, 3, 3, 3), (4, 2, 1, 5), (4, 2, 2, 3, 2)):
        tensor = last(*shape)
        assert is_channels_last(tensor)
        view = as_it_lies(tensor)
        assert view.is_contiguous() and view.data_ptr() == tensor.data_ptr()
        assert view.shape == (shape[0], torch.Size(shape[2:]).numel(), shape[1])
        assert torch.equal(as_it_stands(view, shape), tensor)
        assert torch.equal(as_it_lies(tensor.contiguous()), view)  # by a copy
    for tensor in (
        *(torch.empty(4, 2, 3, 5), torch.empty(7), torch.empty(5, 7).t()),
        *(last(4, 2, 1, 1), last(4, 1, 3, 3)),  # dense in both ways
        *(last(8, 2, 3, 5)[::2], torch.empty(4, 2, 5, 3).transpose(2, 3)),
    ):
        assert not is_channels_last(tensor)
