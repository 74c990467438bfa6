"""1,000 steps of random operations, sizes and process sets, compared on the GPU; no memory is lost.

GPU_SOAK_STEPS=10000 for the long run.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from gpu.device import DEVICE, ON_GPU, busy, finish, new_stream, shares_gpu, using
from horovod import _engine
from horovod.common import basics
from parallel.values import FLOATS, INTEGERS

STEPS = int(os.environ.get("GPU_SOAK_STEPS", "1000"))
SETTLED = min(300, STEPS // 3)
MIB = 1 << 20
FUSION_BUFFERS = 64 * MIB
"""What they may have grown by: they are torch's memory, as large as the fused tensors of a step and
the threshold in force. A leak of one result a step would be more."""
KINDS = ("allreduce", "group", "allgather", "broadcast", "alltoall", "reducescatter")
LENGTHS = [0, 1, 3, 17, 256, 1000, 4099, 65_536, 300_001] + ([1_500_000] if ON_GPU else [])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One operation, the same on all ranks; names come again with the same and other requests."""

    number: int
    kind: str
    length: int
    dtype: torch.dtype
    op: int
    root: int
    in_place: bool
    named: bool
    set_index: int
    ranks: tuple[int, ...]

    @property
    def name(self) -> str | None:
        return f"soak.{self.kind}.{self.number % 7}" if self.named else None


def make_sets(size: int) -> list[hvd.ProcessSet]:
    """**Collective.** The global set and two more: they overlap where there are ranks enough."""
    ranks = [[0, 1, 2], [1, 3]] if size >= 4 else [[0], [1]]
    return [hvd.global_process_set, *(hvd.add_process_set(each) for each in ranks)]


def draw(rng: np.random.Generator, number: int, sets: list[hvd.ProcessSet]) -> Plan:
    set_index = int(rng.choice(len(sets), p=(0.7, 0.15, 0.15)))
    ranks = tuple(sets[set_index].ranks)
    dtypes = [*FLOATS, *INTEGERS]
    kind = str(rng.choice(KINDS, p=(0.4, 0.2, 0.1, 0.1, 0.1, 0.1)))
    ops = [hvd.Sum, hvd.Average] + [hvd.Min, hvd.Max] * (kind in ("allreduce", "group"))
    return Plan(
        number=number,
        kind=kind,
        length=int(rng.choice(LENGTHS)),
        dtype=dtypes[rng.integers(len(dtypes))],
        op=int(rng.choice(ops)),
        root=int(rng.choice(ranks)),
        in_place=bool(rng.integers(2)),
        named=bool(rng.integers(2)),
        set_index=set_index,
        ranks=ranks,
    )


def make(plan: Plan, rank: int, length: int) -> torch.Tensor:
    """Small whole numbers, exact in every type; the mean over 1, 2, 3 or 4 ranks is, too."""
    counted = torch.arange(length, device=DEVICE)
    return (12 * ((counted * 7 + rank * 3 + plan.number) % 3)).to(plan.dtype)


def rows(plan: Plan, sender: int) -> list[int]:
    """Return how many rows ``sender`` sends to each member."""
    return [(plan.length // 3 + 5 * sender + r * plan.number) % 1009 for r in plan.ranks]


def start(plan: Plan, rank: int, process_set: hvd.ProcessSet) -> int:
    """**Collective.**"""
    how: dict[str, Any] = {"name": plan.name, "process_set": process_set}
    if plan.kind == "allgather":
        return hvd.allgather_async(make(plan, rank, plan.length // 2 + rank), **how)
    if plan.kind == "alltoall":
        splits = rows(plan, rank)
        return hvd.alltoall_async(make(plan, rank, sum(splits)), splits, **how)
    tensor = make(plan, rank, plan.length)
    if plan.kind == "broadcast":
        call = hvd.broadcast_async_ if plan.in_place else hvd.broadcast_async
        return call(tensor, plan.root, **how)
    how["op"] = plan.op
    if plan.kind == "reducescatter":
        return hvd.reducescatter_async(tensor, **how)
    if plan.kind == "group":
        call = hvd.grouped_allreduce_async_ if plan.in_place else hvd.grouped_allreduce_async
        return call([tensor, tensor[:5].clone(), tensor.clone()], **how)
    call = hvd.allreduce_async_ if plan.in_place else hvd.allreduce_async
    return call(tensor, **how)


def reduction(plan: Plan) -> torch.Tensor:
    stacked = torch.stack([make(plan, r, plan.length).double() for r in plan.ranks])
    reduce: dict[int, Callable[[], torch.Tensor]] = {
        hvd.Sum: lambda: stacked.sum(0),
        hvd.Average: lambda: stacked.sum(0) / len(plan.ranks),
        hvd.Min: lambda: stacked.amin(0),
        hvd.Max: lambda: stacked.amax(0),
    }
    return reduce[plan.op]().to(plan.dtype)


def expected(plan: Plan, rank: int) -> list[torch.Tensor]:
    place = plan.ranks.index(rank)
    if plan.kind == "allgather":
        return [torch.cat([make(plan, r, plan.length // 2 + r) for r in plan.ranks])]
    if plan.kind == "broadcast":
        return [make(plan, plan.root, plan.length)]
    if plan.kind == "alltoall":
        sent = {r: (make(plan, r, sum(rows(plan, r))), rows(plan, r)) for r in plan.ranks}
        return [torch.cat([tensor.split(splits)[place] for tensor, splits in sent.values()])]
    whole = reduction(plan)
    if plan.kind == "reducescatter":
        return [whole.tensor_split(len(plan.ranks))[place]]
    return [whole, whole[:5], whole] if plan.kind == "group" else [whole]


def outputs(plan: Plan, result: object) -> Sequence[torch.Tensor]:
    if plan.kind == "alltoall":
        return [result[0]]  # type: ignore[index]
    return result if plan.kind == "group" else [result]  # type: ignore[return-value, list-item]


def wrong(plan: Plan, results: Sequence[torch.Tensor], rank: int) -> torch.Tensor:
    """Return, on the device, how many elements differ; the host does not wait."""
    counts = []
    for result, right in zip(results, expected(plan, rank), strict=True):
        assert (result.dtype, result.shape, result.device.type) == (
            plan.dtype,
            right.shape,
            DEVICE.type,
        ), plan
        counts.append((result != right).sum())
    return torch.stack(counts).sum()


def used() -> tuple[int, int]:
    """Return bytes in torch's tensors, and of the GPU outside of torch, other processes' too."""
    gc.collect()
    finish()
    if not ON_GPU:
        return 0, 0
    torch.cuda.empty_cache()
    free, whole = torch.cuda.mem_get_info()
    return torch.cuda.memory_allocated(), whole - free - torch.cuda.memory_reserved()


def random_params(rng: np.random.Generator) -> _engine.Params:
    return _engine.Params(
        fusion_threshold_bytes=int(rng.choice([0, 1000, 64 * 1024, MIB, 16 * MIB, 512 * MIB])),
        cycle_time_ms=float(rng.choice([0.0, 0.1, 0.5, 1.0, 3.0])),
        cache_capacity=int(rng.choice([0, 4, 1024])),
        hierarchical_allreduce=bool(rng.integers(2)),
        hierarchical_allgather=bool(rng.integers(2)),
    )


@pytest.mark.limit(max(150, STEPS // 5))
def test_random_operations_are_right_and_cost_no_memory(rank: int, size: int) -> None:
    rng, own = np.random.default_rng(1), np.random.default_rng([1, rank])
    streams = [new_stream() for _ in range(3)]
    sets = make_sets(size)
    epoch = basics.engine().epoch()
    number = mistakes = 0
    settled = (0, 0)
    for step in range(STEPS):
        plans = []
        for _ in range(int(rng.integers(1, 9))):
            plans.append(draw(rng, number, sets))
            number += 1
        plans = list({(p.kind, p.set_index, p.name or p.number): p for p in plans}.values())
        plans = [plan for plan in plans if rank in plan.ranks]
        if step % 10 == 0:
            params = random_params(rng)
            epoch += 1
            if rank == 0:
                basics.engine().propose(epoch, params)
        with using(streams[step % 3]):
            if own.random() < 0.1:
                busy(2)
            handles = [start(plan, rank, sets[plan.set_index]) for plan in plans]
            counts = [torch.zeros((), dtype=torch.int64, device=DEVICE)]
            for i in own.permutation(len(plans)):
                results = outputs(plans[i], hvd.synchronize(handles[i]))
                counts.append(wrong(plans[i], results, rank))
                del results
            found = int(torch.stack(counts).sum())
            assert found == 0, f"{found} wrong elements in step {step}: {plans}, {counts}"
            mistakes += found
        del counts
        hvd.autotune.step()
        if step == SETTLED:
            settled = used()
    allocated, other = used()
    print(
        f"rank {rank}: {number} operations, {mistakes} wrong; tensors {settled[0]} -> {allocated} "
        f"bytes, GPU outside torch {settled[1] / MIB:.0f} -> {other / MIB:.0f} MiB"
    )
    assert allocated <= settled[0] + FUSION_BUFFERS
    if not shares_gpu():  # else it is the other rank's torch, too
        assert other <= settled[1] + 128 * MIB
    hvd.barrier()
    for each in sets[1:]:
        hvd.remove_process_set(each)
