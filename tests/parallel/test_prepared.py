"""Operations that come back are prepared once; what is not like the first time is noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod import _engine
from horovod.common import basics
from horovod.torch.collectives import start
from horovod.torch.collectives.prepared import DTYPES, Prepared, PreparedGroup
from tiers.between_ranks import barrier


def prepared(tensor: torch.Tensor, name: str = "x") -> Prepared:
    kind = _engine.Kind(operation="allreduce", dtype=DTYPES[tensor.dtype])
    return Prepared(basics.engine(), kind, name, 0, tensor)


class Subclass(torch.Tensor):
    """A tensor that may do things of its own."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (3, 1, 2)])
def test_the_address_is_the_tensors(by_c: bool, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(dtype)
    made = prepared(tensor)
    assert made.place(tensor) == tensor.data_ptr()
    moved = torch.cat([torch.zeros(7).to(dtype), tensor.reshape(-1)])[7:].reshape(shape)
    assert made.place(moved) == moved.data_ptr()
    for other in set(DTYPES) - {dtype}:
        assert made.place(torch.ones(shape).to(other)) is None


def test_what_is_not_alike_has_no_place(by_c: bool) -> None:
    made = prepared(torch.ones(4, 4))
    strided = torch.ones(8, 4)
    strange: list[Any] = [
        *(torch.ones(4, 5), torch.ones(16), torch.ones(4, 4, 1), torch.tensor(1.0)),
        *(torch.ones(4, 4).t(), strided[::2], torch.ones(1, 4).expand(4, 4)),
        *(torch.ones(4, 4).to_sparse(), torch.ones(4, 4, device="meta")),
        *(None, 5, "x", [torch.ones(4, 4)]),
    ]
    for each in strange:
        assert made.place(each) is None, each
    for alike in (nn.Parameter(torch.ones(4, 4)), torch.ones(4, 4).as_subclass(Subclass)):
        assert made.place(alike) == alike.data_ptr()
    assert prepared(torch.ones(1, 4)).place(torch.ones(4, 4)[:, :1].t()) is None
    row = torch.ones(2, 4)[:1].transpose(0, 1)  # of shape (4, 1): dense, whatever its strides are
    assert prepared(torch.ones(4, 1)).place(row) == row.data_ptr()


def test_a_group_has_places_when_all_fit(by_c: bool) -> None:
    tensors = [torch.ones(3), torch.ones(2, 2, dtype=torch.int64)]
    members = [prepared(t, str(i)) for i, t in enumerate(tensors)]
    group = PreparedGroup(basics.engine(), 0, members, -1)
    assert isinstance(group.places(tensors), _engine.Places)
    assert isinstance(group.places(tuple(tensors)), _engine.Places)
    for wrong in ([], tensors[:1], tensors[::-1], [*tensors, tensors[0]], [tensors[0], None]):
        assert group.places(wrong) is None


def test_another_api_is_refused() -> None:
    with pytest.raises(ValueError, match="PyCapsule_GetPointer"):
        _engine.TensorReader(torch.utils.dlpack.to_dlpack(torch.ones(1)), [torch.Tensor])


def test_an_operation_that_changes_is_made_anew(by_c: bool, rank: int, size: int) -> None:
    for number in range(12):
        dtype = torch.float32 if number % 4 < 2 else torch.float64
        shape = (3,) if number % 6 < 3 else (2, 2)
        own = torch.full(shape, rank + number, dtype=dtype)
        expected = torch.full(shape, (size - 1) / 2 + number, dtype=dtype)
        got = [
            hvd.allreduce(own, name="changing"),
            hvd.synchronize(hvd.allreduce_async(own, name="changing.too")),
            *hvd.grouped_allreduce([own, own], name="changing.group"),
            hvd.broadcast(expected if rank == 0 else own, 0, name="changing.b"),
        ]
        for each in got:
            assert torch.equal(each, expected)
        gathered = hvd.allgather(own, name="changing.g")
        assert gathered.shape == (size * shape[0], *shape[1:])
        blocks = hvd.alltoall(own.repeat(size, *[1] * (own.dim() - 1)), name="changing.a")
        assert blocks.shape == gathered.shape


def test_what_comes_back_goes_the_short_way(
    by_c: bool, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    long_way = []
    start_first = start._start_first

    def count(*args: Any) -> int:
        long_way.append(args)
        return start_first(*args)

    monkeypatch.setattr(start, "_start_first", count)
    for _ in range(4):
        started = [hvd.allreduce_async_(torch.ones(3), name=f"{by_c}.{i}") for i in range(3)]
        for handle in started:
            assert torch.equal(hvd.synchronize(handle), torch.ones(3))
        total = hvd.allreduce(torch.ones(3), name=f"{by_c}.3", op=hvd.Sum)
        assert torch.equal(total, torch.full((3,), float(size)))
    assert len(long_way) == 4


def test_every_way_refuses_a_name_in_flight(
    two_ranks: None, by_c: bool, rank: int, size: int
) -> None:
    name = f"twice.{by_c}"
    for _ in range(3):
        if rank == size - 1:  # the others' cannot end before
            barrier()
        first = hvd.allreduce_async_(torch.ones(3), name=name)
        if rank < size - 1:
            with pytest.raises(ValueError, match=name):
                hvd.allreduce_async_(torch.ones(3), name=name)
            barrier()
        assert torch.equal(hvd.synchronize(first), torch.ones(3))


class Halving(hvd.Compression.none):
    """Changes gradients in place."""

    calls = 0

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        Halving.calls += 1
        return tensor.mul_(0.5), 2.0

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        return tensor * ctx


def test_a_compression_of_the_scripts_own_is_called_for_every_gradient(
    by_c: bool, rank: int, size: int
) -> None:
    if size == 1:
        pytest.skip("one rank alone communicates no gradients")
    weights = [nn.Parameter(torch.zeros(3)) for _ in range(4)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(weights, lr=1.0),
        named_parameters=[(f"halving.{i}", p) for i, p in enumerate(weights)],
        compression=Halving,
    )
    Halving.calls = 0
    for step in range(3):
        optimizer.zero_grad()
        sum(((rank + 1) * p).sum() for p in weights).backward()
        optimizer.step()
        assert Halving.calls == 4 * (step + 1)
    for weight in weights:
        assert torch.equal(weight.detach(), torch.full((3,), -3 * (size + 1) / 2))


def test_a_gradient_that_was_exchanged_on_its_way_gets_the_result(
    by_c: bool, rank: int, size: int
) -> None:
    if size == 1:
        pytest.skip("one rank alone communicates no gradients")
    count = 300_000  # enough to be started by the hook, before the exchange
    weights = [nn.Parameter(torch.zeros(count)) for _ in range(3)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(weights, lr=1.0),
        named_parameters=[(f"exchanged.{i}", p) for i, p in enumerate(weights)],
    )
    for _ in range(3):
        optimizer.zero_grad()
        sum(((rank + 1) * p).sum() for p in weights).backward()
        new = weights[1].grad = torch.full((count,), 7.0)
        optimizer.synchronize()
        for weight in weights:
            assert torch.equal(weight.grad, torch.full((count,), (size + 1) / 2))
        assert weights[1].grad is new
        with optimizer.skip_synchronize():
            optimizer.step()
