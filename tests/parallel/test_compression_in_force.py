"""Gradients travel in a shorter type where the parameters in force say so; nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import horovod.torch as hvd
from horovod import _engine
from horovod.common import basics

Restart = Callable[[dict[str, str]], None]
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
FINE = 1 + 2.0**-20
"""No half is it: a gradient of it says whether it was rounded."""


def optimizer_of(parameters: list[torch.nn.Parameter], **options: object) -> torch.optim.Optimizer:
    sgd = torch.optim.SGD(parameters, lr=0.0)
    names = [(f"p{i}", each) for i, each in enumerate(parameters)]
    return hvd.DistributedOptimizer(sgd, named_parameters=names, **options)


def parameters_of(*lengths: int, dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(length, dtype=dtype)) for length in lengths]


def gradients(
    optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]
) -> list[torch.Tensor]:
    """Return the reduced gradients of a step in which all are FINE on all ranks."""
    optimizer.zero_grad()
    sum((each * FINE).sum() for each in parameters).backward()  # type: ignore[union-attr]
    optimizer.step()
    found = [each.grad for each in parameters]
    assert all(each is not None for each in found)
    return found  # type: ignore[return-value]


def is_rounded(gradient: torch.Tensor, half: torch.dtype) -> bool:
    """Return whether it is what a half makes of FINE; else it has to be FINE, nearly."""
    short = torch.full_like(gradient, FINE).to(half).to(gradient.dtype)
    if torch.equal(gradient, short):
        return True
    assert torch.allclose(gradient, torch.full_like(gradient, FINE), rtol=1e-7, atol=0)
    return False


@pytest.mark.parametrize("word", HALVES)
@pytest.mark.parametrize("options", [{}, {"groups": 2}], ids=["alone", "groups"])
def test_what_is_fixed_holds_for_gradients_in_float32_alone(
    word: str, options: dict[str, object], restart: Restart, size: int
) -> None:
    restart({f"AUTOTUNE_{word.upper()}_GRADIENTS": "1"})
    assert hvd.autotune.params()[f"{word}_gradients"] is True
    single, double = parameters_of(5, 3000, 70_000), parameters_of(7, dtype=torch.float64)
    optimizer = optimizer_of(single + double, **options)
    for _ in range(3):  # also from the cache of responses
        *short, whole = gradients(optimizer, single + double)
        is_short = [is_rounded(each, HALVES[word]) for each in short]
        assert is_short == [size > 1] * 3
        assert not is_rounded(whole, HALVES[word])
    of_script = hvd.allreduce(torch.full((100,), FINE), name="of the script")
    assert not is_rounded(of_script, HALVES[word])


@pytest.mark.usefixtures("two_ranks")
def test_adasum_and_a_compression_of_the_scripts_own_are_left_alone(
    restart: Restart, size: int
) -> None:
    restart({"AUTOTUNE_BF16_GRADIENTS": "1"})
    parameters = parameters_of(1000)
    own = optimizer_of(parameters, compression=hvd.Compression.fp16)
    (gradient,) = gradients(own, parameters)
    assert is_rounded(gradient, torch.float16)
    if size & (size - 1) == 0:
        parameters = parameters_of(1000)
        adasum = optimizer_of(parameters, op=hvd.Adasum)
        gradients(adasum, parameters)  # it would be refused if it were to travel short


@pytest.mark.usefixtures("two_ranks")
def test_it_comes_and_goes_between_steps_on_all_ranks_at_once(restart: Restart, rank: int) -> None:
    restart({})
    parameters = parameters_of(5, 3000, 70_000)
    optimizer = optimizer_of(parameters)
    engine = basics.engine()
    seen = set()
    for step in range(40):
        if rank == 0:
            values = {name: value for name, value in hvd.autotune.params().items()}
            values.pop("bf16_gradients", None)
            change = _engine.Params(**values, bf16_gradients=step % 2 == 0)
            engine.propose(step + 1, change)
        found = gradients(optimizer, parameters)
        short = [is_rounded(each, torch.bfloat16) for each in found]
        assert short in ([True] * 3, [False] * 3)
        digests = hvd.allgather(torch.stack([each.double().sum() for each in found])[None])
        assert (digests == digests[0]).all()
        seen.add(short[0])
    assert seen == {True, False}
