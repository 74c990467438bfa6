"""Random operations over several process sets, and what numpy makes of them.

All ranks draw the same plan from one seed, so each of them can compute what every rank sends.
Integers must be equal; floating-point sums may be off by a multiple of sum |x| (never of the sum).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import horovod.torch as hvd

# |error| <= tolerance x sum |x_i|: float32 by agreement, the short types by their rounding step.
TOLERANCE = {
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.float32: 1e-6,
    torch.float64: 1e-14,
}
DTYPES = [*TOLERANCE, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
WRAPS = {torch.uint8: np.uint8, torch.int8: np.int8, torch.int16: np.int16}
SHAPES = [(), (1,), (3,), (7, 5), (64,), (1000,), (33, 31), (4096,), (20_000,), (0,)]
KINDS = ("allreduce", "group", "allgather", "broadcast", "alltoall", "reducescatter")
SHARES = (0.4, 0.1, 0.15, 0.1, 0.1, 0.15)
NAMES = 20
"""How many names there are of a kind."""


@dataclass(frozen=True)
class Plan:
    """One random operation. ``mismatch``: the last member's tensor does not fit the others'."""

    kind: str
    set_index: int
    ranks: tuple[int, ...]
    name: str | None
    seed: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    op: int
    prescale: float
    root: int
    in_place: bool
    mismatch: bool

    @property
    def key(self) -> tuple[str, int, str | None]:
        """What may be in flight once only."""
        return self.kind, self.set_index, self.name


def draw(rng: np.random.Generator, number: int, sets: list[list[int]]) -> Plan:
    """Return a plan for one of the ``sets`` (ranks by index)."""
    kind = str(rng.choice(KINDS, p=SHARES))
    set_index = int(rng.integers(len(sets)))
    ranks = tuple(sets[set_index])
    shape = SHAPES[rng.integers(len(SHAPES))]
    dtype = DTYPES[rng.integers(len(DTYPES))]
    ops = [hvd.Sum, hvd.Average] + [hvd.Min, hvd.Max] * (kind != "reducescatter")
    op = int(rng.choice(ops))
    # A name that comes again with the same request is cached, with another one it is evicted.
    base = f"soak.{number % NAMES}"
    name = [None, base, f"{base}.{shape}.{dtype}.{op}"][rng.integers(3)]
    plan = Plan(
        kind=kind,
        set_index=set_index,
        ranks=ranks,
        name=name,
        seed=int(rng.integers(2**31)),
        shape=shape if kind in ("allreduce", "group", "broadcast") or shape else (1,),
        dtype=dtype,
        op=op,
        prescale=float(rng.choice([1.0, 2.0])) if dtype.is_floating_point else 1.0,
        root=int(rng.choice(ranks)),
        in_place=bool(rng.integers(2)),
        mismatch=bool(rng.random() < 0.03) and len(ranks) > 1,
    )
    return plan if kind in ("allreduce", "group", "reducescatter") else replace(plan, prescale=1.0)


def data(plan: Plan, rank: int) -> torch.Tensor:
    """Return what ``rank`` sends, where it does as planned."""
    rng = np.random.default_rng([plan.seed, rank])
    shape = plan.shape
    if plan.kind in ("allgather", "alltoall"):
        shape = (shape[0] // 4 + int(rng.integers(3)), *shape[1:])
    if plan.dtype.is_floating_point:
        return torch.from_numpy(np.asarray(rng.normal(size=shape))).to(plan.dtype)
    low = 0 if plan.dtype == torch.uint8 else -30
    return torch.from_numpy(np.asarray(rng.integers(low, 31, size=shape))).to(plan.dtype)


def splits(plan: Plan, rank: int) -> list[int]:
    """Return how many rows ``rank`` sends to each member; their sum may be less than it has."""
    rng = np.random.default_rng([plan.seed, rank, 1])
    rows, found = data(plan, rank).shape[0], []
    for _ in plan.ranks:
        found.append(int(rng.integers(rows + 1)))
        rows -= found[-1]
    return found


def start(plan: Plan, tensor: torch.Tensor, rank: int, process_set: hvd.ProcessSet) -> int:
    """**Collective** over the members. Start the operation on this rank's ``tensor``."""
    if plan.mismatch and rank == plan.ranks[-1]:
        tensor = torch.zeros((2, 2, 2, 2), dtype=plan.dtype)
    common: dict[str, Any] = {"name": plan.name, "process_set": process_set}
    scaled: dict[str, Any] = common | {"op": plan.op, "prescale_factor": plan.prescale}
    match plan.kind:
        case "allgather":
            return hvd.allgather_async(tensor, **common)
        case "broadcast":
            call = hvd.broadcast_async_ if plan.in_place else hvd.broadcast_async
            return call(tensor, plan.root, **common)
        case "alltoall":
            parts = splits(plan, rank) if tensor.dim() < 4 else [0] * len(plan.ranks)
            return hvd.alltoall_async(tensor, parts, **common)
        case "reducescatter":
            return hvd.reducescatter_async(tensor, **scaled)
        case "group":
            call = hvd.grouped_allreduce_async_ if plan.in_place else hvd.grouped_allreduce_async
            return call([tensor, tensor.flatten()[:5].clone()], **scaled)
    call = hvd.allreduce_async_ if plan.in_place else hvd.allreduce_async
    return call(tensor, **scaled)


def check(plan: Plan, result: Any, rank: int) -> None:
    """Compare this rank's ``result`` with numpy's."""
    inputs = [data(plan, member) for member in plan.ranks]
    place = plan.ranks.index(rank)
    if plan.kind == "allgather":
        assert torch.equal(result, torch.cat(inputs)), plan
    elif plan.kind == "broadcast":
        assert torch.equal(result, inputs[plan.ranks.index(plan.root)]), plan
    elif plan.kind == "alltoall":
        rows = [splits(plan, member) for member in plan.ranks]
        parts = [
            tensor[sum(own[:place]) : sum(own[: place + 1])]
            for tensor, own in zip(inputs, rows, strict=True)
        ]
        assert torch.equal(result[0], torch.cat(parts)), plan
        assert result[1].tolist() == [own[place] for own in rows], plan
    else:
        _check_reduction(plan, result, np.stack([np.asarray(t.double()) for t in inputs]), place)


def _check_reduction(plan: Plan, result: Any, inputs: np.ndarray, place: int) -> None:
    """``inputs`` has shape (members, ...), float64: exact for all integers used here."""
    if plan.kind == "reducescatter":
        parts = [np.array_split(each, len(inputs))[place] for each in inputs]
        _check_values(plan, result, np.stack(parts))
    elif plan.kind == "group":
        _check_values(plan, result[0], inputs)
        _check_values(plan, result[1], inputs.reshape(len(inputs), -1)[:, :5])
    else:
        _check_values(plan, result, inputs)


def _check_values(plan: Plan, result: torch.Tensor, inputs: np.ndarray) -> None:
    size = len(inputs)
    scaled = inputs * plan.prescale
    if plan.op in (hvd.Min, hvd.Max):
        expected = scaled.min(0) if plan.op == hvd.Min else scaled.max(0)
        assert np.array_equal(np.asarray(result.double()), expected), plan
        return
    if plan.dtype.is_floating_point:
        expected = scaled.sum(0) / (size if plan.op == hvd.Average else 1)
        allowed = TOLERANCE[plan.dtype] * np.abs(scaled).sum(0)
        assert np.all(np.abs(np.asarray(result.double()) - expected) <= allowed), plan
        return
    # small enough that no type overflows, except the 8-bit ones, which wrap
    total = scaled.sum(0).astype(np.int64)
    if plan.dtype in WRAPS:
        total = total.astype(WRAPS[plan.dtype])
    expected = np.trunc(total / size) if plan.op == hvd.Average else total
    assert np.array_equal(np.asarray(result, dtype=np.int64), expected.astype(np.int64)), plan
