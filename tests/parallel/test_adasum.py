"""Adasum: pairs of ranks are combined by a rule that does not double what both have."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import horovod.torch as hvd
from horovod.common.util import num_rank_is_power_2


def combine(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """a (1 - ab / 2aa) + b (1 - ab / 2bb), neighbours first; shape and type of one tensor."""
    if len(tensors) == 1:
        return tensors[0]
    half = len(tensors) // 2
    a, b = combine(tensors[:half]), combine(tensors[half:])
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    first = 1 - dot / (2 * aa) if aa > 0 else 1.0
    second = 1 - dot / (2 * bb) if bb > 0 else 1.0
    return a * first + b * second


def inputs(size: int, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(count, generator=generator).to(dtype) for _ in range(size)]


TOLERANCE = {
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
    torch.float32: 1e-5,
    torch.float64: 1e-12,
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000, 30_001])
def test_the_rule(dtype: torch.dtype, count: int, rank: int, size: int) -> None:
    tensors = inputs(size, count, dtype)
    expected = combine([tensor.double() for tensor in tensors])
    tolerance = TOLERANCE[dtype]
    for name in (None, f"adasum.{dtype}.{count}", f"adasum.{dtype}.{count}"):
        result = hvd.allreduce(tensors[rank], op=hvd.Adasum, name=name)
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
    hvd.allreduce_(tensors[rank], op=hvd.Adasum)
    torch.testing.assert_close(tensors[rank].double(), expected, rtol=tolerance, atol=tolerance)


def test_equal_tensors_stay_and_orthogonal_ones_add(rank: int, size: int) -> None:
    equal = torch.arange(1.0, 9.0)
    torch.testing.assert_close(hvd.allreduce(equal, op=hvd.Adasum), equal)
    own = torch.zeros(8)
    own[rank] = 3.0
    expected = torch.tensor([3.0] * size + [0.0] * (8 - size))
    torch.testing.assert_close(hvd.allreduce(own, op=hvd.Adasum), expected)


def test_zeros_are_no_division(rank: int, size: int) -> None:
    assert torch.equal(hvd.allreduce(torch.zeros(5), op=hvd.Adasum), torch.zeros(5))
    own = torch.full((5,), 2.0 if rank == 0 else 0.0)
    assert torch.equal(hvd.allreduce(own, op=hvd.Adasum), torch.full((5,), 2.0))


def test_every_tensor_of_a_group_by_itself(rank: int, size: int) -> None:
    """Fused or not: the coefficients are each tensor's own."""
    tensors = {count: inputs(size, count, torch.float64) for count in (3, 50, 1000)}
    results = hvd.grouped_allreduce([each[rank] for each in tensors.values()], op=hvd.Adasum)
    handles = [
        hvd.allreduce_async(each[rank], op=hvd.Adasum, name=f"one.{count}")
        for count, each in tensors.items()
    ]
    for result, handle, each in zip(results, handles, tensors.values(), strict=True):
        torch.testing.assert_close(result, combine(each))
        torch.testing.assert_close(hvd.synchronize(handle), combine(each))


def test_scales_apply_before_and_after(rank: int, size: int) -> None:
    tensors = inputs(size, 20, torch.float64)
    result = hvd.allreduce(tensors[rank], op=hvd.Adasum, prescale_factor=0.5, postscale_factor=3.0)
    torch.testing.assert_close(result, combine([each * 0.5 for each in tensors]) * 3.0)


def test_what_has_no_adasum_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="int32"):
        hvd.allreduce(torch.ones(3, dtype=torch.int32), op=hvd.Adasum)
    hvd.barrier()


@pytest.mark.usefixtures("two_ranks")
def test_only_powers_of_two(rank: int, size: int) -> None:
    """Also in process sets."""
    if size < 4:
        pytest.skip("needs 4 ranks")
    three, two = hvd.add_process_set([0, 1, 2]), hvd.add_process_set([1, 3])
    assert not num_rank_is_power_2(3)
    if three.included():
        with pytest.raises(ValueError, match=r"power of two.*3"):
            hvd.allreduce(torch.ones(3), op=hvd.Adasum, process_set=three)
    if two.included():
        tensors = inputs(size, 20, torch.float64)
        result = hvd.allreduce(tensors[rank], op=hvd.Adasum, process_set=two)
        torch.testing.assert_close(result, combine([tensors[1], tensors[3]]))
    hvd.barrier()
    hvd.remove_process_set(three)
    hvd.remove_process_set(two)


def test_the_gradient_is_adasum_of_the_gradients(rank: int, size: int) -> None:
    tensor = torch.ones(4, dtype=torch.float64, requires_grad=True)
    weights = inputs(size, 4, torch.float64)
    (hvd.allreduce(tensor, op=hvd.Adasum) * weights[rank]).sum().backward()
    torch.testing.assert_close(tensor.grad, combine(weights))
