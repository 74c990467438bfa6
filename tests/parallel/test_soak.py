"""Random collectives over overlapping process sets, with errors, joins and changing parameters.

2,000 operations in the tier; SOAK_OPERATIONS=10000 for the long run. Nothing differs from numpy,
nothing hangs, and after the first 1,000 operations the memory of a rank stays what it is.
"""

from __future__ import annotations

import gc
import os
import re
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from horovod import _engine
from horovod.common import basics
from parallel.random_collectives import Plan, check, data, draw, start

OPERATIONS = int(os.environ.get("SOAK_OPERATIONS", "2000"))
SETTLED = 1000
BATCH = 20
MIB = 1 << 20
JOIN_SHARE = 0.1


def random_params(rng: np.random.Generator) -> _engine.Params:
    return _engine.Params(
        fusion_threshold_bytes=int(rng.choice([0, 1, 1000, 64 * 1024, MIB, 16 * MIB, 512 * MIB])),
        cycle_time_ms=float(rng.choice([0.0, 0.1, 0.5, 1.0, 3.0])),
        cache_capacity=int(rng.choice([0, 1, 4, 16, 1024])),
        hierarchical_allreduce=bool(rng.integers(2)),
        hierarchical_allgather=bool(rng.integers(2)),
    )


def make_sets(size: int) -> list[hvd.ProcessSet]:
    """The global set and two more: they overlap where there are ranks enough."""
    if size == 1:
        return [hvd.global_process_set]
    ranks = [[0, 1, 2], [1, 3]] if size >= 4 else [[0], [1]]
    return [hvd.global_process_set, *(hvd.add_process_set(each) for each in ranks)]


def run_batch(
    plans: list[Plan], sets: list[hvd.ProcessSet], own: np.random.Generator, rank: int
) -> int:
    """**Collective.** Run ``plans``, finishing them in an order of our own; count the errors."""
    handles = [
        (plan, start(plan, data(plan, rank), rank, sets[plan.set_index]))
        for plan in plans
        if rank in plan.ranks
    ]
    errors = 0
    for i in own.permutation(len(handles)):
        plan, handle = handles[i]
        if plan.mismatch:
            words = rf"{re.escape(plan.name or 'noname')}.*rank.*\b{plan.ranks[-1]}\b"
            with pytest.raises(hvd.HorovodInternalError, match=words):
                hvd.synchronize(handle)
            errors += 1
        else:
            check(plan, hvd.synchronize(handle), rank)
    return errors


def run_until_joined(rng: np.random.Generator, rank: int, size: int) -> None:
    """**Collective.** Every rank does another number of steps, none at all included."""
    steps = rng.integers(0, 6, size=size)
    for step in range(int(steps[rank])):
        active = int((steps > step).sum())
        tensor = torch.full((17,), 2.0)
        total = hvd.allreduce(tensor, op=hvd.Sum, name=None if step % 2 else "uneven")
        assert torch.equal(total, tensor * active)
    assert steps[hvd.join()] == steps.max()


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.timeout(max(300, OPERATIONS // 10))
def test_random_collectives_differ_from_numpy_in_nothing(rank: int, size: int) -> None:
    rng, own = np.random.default_rng(1), np.random.default_rng([1, rank])
    sets = make_sets(size)
    ranks = [list(each.ranks) for each in sets]
    done = changes = errors = joins = settled_bytes = 0
    epoch = basics.engine().epoch()
    while done < OPERATIONS:
        count = int(rng.integers(1, BATCH + 1))
        plans = unique_keys([draw(rng, done + i, ranks) for i in range(count)])
        seen_epoch = basics.engine().epoch()
        params = random_params(rng)
        if rank == 0:
            epoch += 1
            basics.engine().propose(epoch, params)
        errors += run_batch(plans, sets, own, rank)
        if rng.random() < JOIN_SHARE:
            run_until_joined(rng, rank, size)
            joins += 1
        basics.engine().end_step()
        changes += basics.engine().epoch() != seen_epoch
        done += len(plans)
        if not settled_bytes and done >= SETTLED:
            settled_bytes = resident_bytes()
    growth = resident_bytes() / settled_bytes - 1
    print(
        f"rank {rank}: {done} operations, {errors} errors, {joins} joins, {changes} epochs, "
        f"memory {settled_bytes / MIB:.1f} MiB {growth:+.2%}"
    )
    assert changes > 20
    assert joins > 5
    assert errors > 5 or size == 1
    assert growth < 0.05
    hvd.barrier()
    for each in sets[1:]:
        hvd.remove_process_set(each)


def unique_keys(plans: list[Plan]) -> list[Plan]:
    """Leave out operations whose name would be in flight twice in their set."""
    named = {plan.key: plan for plan in plans if plan.name is not None}
    return [plan for plan in plans if plan.name is None or named[plan.key] is plan]
