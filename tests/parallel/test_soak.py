"""2,000 random collectives against numpy, while the parameters change between the steps.

All ranks draw the same plan from one seed, so each of them can compute what every rank sends.
Integers must be equal; floating-point sums may be off by a multiple of sum |x| (never of the sum).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from horovod import _engine, basics

OPERATIONS = 2000
BATCH = 20
MIB = 1 << 20

# |error| <= tolerance x sum |x_i|: float32 by agreement, the short types by their rounding step.
TOLERANCE = {
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.float32: 1e-6,
    torch.float64: 1e-14,
}
DTYPES = [*TOLERANCE, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
WIDE = {torch.uint8: np.uint8, torch.int8: np.int8, torch.int16: np.int16}
SHAPES = [(), (1,), (3,), (7, 5), (64,), (1000,), (33, 31), (4096,), (20_000,), (0,)]


@dataclass(frozen=True)
class Plan:
    """One random operation."""

    kind: str
    name: str | None
    seed: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    op: int
    root: int
    in_place: bool


def draw(rng: np.random.Generator, number: int, size: int) -> Plan:
    kind = str(rng.choice(["allreduce", "allreduce", "allreduce", "allgather", "broadcast"]))
    shape = SHAPES[rng.integers(len(SHAPES))]
    dtype = DTYPES[rng.integers(len(DTYPES))]
    op = int(rng.choice([hvd.Sum, hvd.Average, hvd.Min, hvd.Max]))
    # A name that comes again with the same request is cached, with another one it is evicted.
    name = [None, f"soak.{number % BATCH}", f"soak.{number % BATCH}.{shape}.{dtype}.{op}"]
    return Plan(
        kind=kind,
        name=name[rng.integers(3)],
        seed=int(rng.integers(2**31)),
        shape=shape if kind != "allgather" or shape else (1,),
        dtype=dtype,
        op=op,
        root=int(rng.integers(size)),
        in_place=bool(rng.integers(2)),
    )


def data(plan: Plan, rank: int) -> torch.Tensor:
    rng = np.random.default_rng([plan.seed, rank])
    shape = plan.shape
    if plan.kind == "allgather":
        shape = (shape[0] // 4 + int(rng.integers(3)), *shape[1:])
    if plan.dtype.is_floating_point:
        return torch.from_numpy(np.asarray(rng.normal(size=shape))).to(plan.dtype)
    low = 0 if plan.dtype == torch.uint8 else -30
    return torch.from_numpy(np.asarray(rng.integers(low, 31, size=shape))).to(plan.dtype)


def start(plan: Plan, tensor: torch.Tensor) -> int:
    if plan.kind == "allgather":
        return hvd.allgather_async(tensor, name=plan.name)
    if plan.kind == "broadcast":
        call = hvd.broadcast_async_ if plan.in_place else hvd.broadcast_async
        return call(tensor, plan.root, name=plan.name)
    call = hvd.allreduce_async_ if plan.in_place else hvd.allreduce_async
    return call(tensor, op=plan.op, name=plan.name)


def check(plan: Plan, result: torch.Tensor, size: int) -> None:
    inputs = [data(plan, rank) for rank in range(size)]
    if plan.kind == "allgather":
        assert torch.equal(result, torch.cat(inputs)), plan
    elif plan.kind == "broadcast":
        assert torch.equal(result, inputs[plan.root]), plan
    else:
        check_allreduce(plan, result, np.stack([np.asarray(each.double()) for each in inputs]))


def check_allreduce(plan: Plan, result: torch.Tensor, inputs: np.ndarray) -> None:
    """``inputs`` has shape (size, ...), float64: exact for all integers used here."""
    size = len(inputs)
    if plan.op in (hvd.Min, hvd.Max):
        expected = inputs.min(0) if plan.op == hvd.Min else inputs.max(0)
        assert np.array_equal(np.asarray(result.double()), expected), plan
        return
    if plan.dtype.is_floating_point:
        expected = inputs.sum(0) / (size if plan.op == hvd.Average else 1)
        allowed = TOLERANCE[plan.dtype] * np.abs(inputs).sum(0)
        assert np.all(np.abs(np.asarray(result.double()) - expected) <= allowed), plan
        return
    # small enough that no type overflows, except the 8-bit ones, which wrap
    total = inputs.sum(0).astype(np.int64)
    if plan.dtype in WIDE:
        total = total.astype(WIDE[plan.dtype])
    expected = np.trunc(total / size) if plan.op == hvd.Average else total
    assert np.array_equal(np.asarray(result, dtype=np.int64), expected.astype(np.int64)), plan


def random_params(rng: np.random.Generator) -> _engine.Params:
    return _engine.Params(
        fusion_threshold_bytes=int(rng.choice([0, 1, 1000, 64 * 1024, MIB, 16 * MIB, 512 * MIB])),
        cycle_time_ms=float(rng.choice([0.0, 0.1, 0.5, 1.0, 3.0])),
        cache_capacity=int(rng.choice([0, 1, 4, 16, 1024])),
        hierarchical_allreduce=bool(rng.integers(2)),
        hierarchical_allgather=bool(rng.integers(2)),
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1])
def test_random_collectives_under_changing_parameters(seed: int, rank: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    own = np.random.default_rng([seed, rank])
    done = 0
    epoch = basics.engine().epoch()
    changes = 0
    while done < OPERATIONS:
        count = int(rng.integers(1, BATCH + 1))
        plans = unique_names([draw(rng, done + i, size) for i in range(count)])
        tensors = [data(plan, rank) for plan in plans]
        seen_epoch = basics.engine().epoch()
        params = random_params(rng)
        if rank == 0:
            epoch += 1
            basics.engine().propose(epoch, params)
        in_flight = [(p, start(p, t)) for p, t in zip(plans, tensors, strict=True)]
        for i in own.permutation(len(plans)):
            plan, handle = in_flight[i]
            check(plan, hvd.synchronize(handle), size)
        basics.engine().end_step()
        changes += basics.engine().epoch() != seen_epoch
        done += len(plans)
    assert changes > 20


def unique_names(plans: list[Plan]) -> list[Plan]:
    """Leave out operations whose name would be in flight twice."""
    seen: set[str] = set()
    kept = []
    for plan in plans:
        key = f"{plan.kind}.{plan.name}"
        if plan.name is None or key not in seen:
            kept.append(plan)
            seen.add(key)
    return kept
