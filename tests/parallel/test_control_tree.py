"""Ranks that speak for others in negotiation: the same results, the same errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from horovod import _engine
from horovod.common import basics
from parallel.random_collectives import draw
from parallel.test_soak import (
    make_sets,
    random_params,
    run_batch,
    run_until_joined,
    unique_keys,
)

Restart = Callable[[dict[str, str]], None]
FAN_OUTS = (1, 2, 3)


@pytest.fixture(params=FAN_OUTS)
def fan_out(request: pytest.FixtureRequest, restart: Restart) -> int:
    restart({"HOROVOD_CONTROL_FANOUT": str(request.param)})
    return int(request.param)


def test_shapes() -> None:
    one_host = [0] * 4
    assert _engine.control_parents(one_host) == [-1, 0, 0, 0]
    assert _engine.control_parents(one_host, 1) == [-1, 0, 1, 2]
    assert _engine.control_parents(one_host, 2) == [-1, 0, 0, 1]
    assert _engine.control_parents([0, 0, 1, 1], 1) == [-1, 0, 0, 2]
    assert _engine.control_parents([0] * 20).count(0) == 19


def test_rank_0_hears_one_message_of_each_that_reports_to_it_in_a_step(
    fan_out: int, rank: int, size: int
) -> None:
    steps = 50
    tensors = [torch.ones(4) for _ in range(30)]

    def step() -> None:
        results = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="step")
        assert all(torch.equal(each, torch.full((4,), 1.0 * size)) for each in results)

    for _ in range(4):
        step()
    before = basics.engine().counters()["heard"]
    for _ in range(steps):
        step()
    heard = basics.engine().counters()["heard"] - before
    children = min(fan_out, size - 1) if rank == 0 else 0
    if rank == 0 and size > 1:
        assert heard >= children * steps
        # Of ranks that share cores some are late now and then: what is there goes up by itself.
        assert heard < (size - 1) * steps or children == size - 1


def test_what_ranks_disagree_on_is_named_and_the_next_operation_works(
    fan_out: int, rank: int, size: int
) -> None:
    if size == 1:
        return
    for _ in range(3):
        length = 4 if rank == size - 1 else 3
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.allreduce(torch.ones(length), name="shape")
        assert f"[3] on rank 0 and [4] on rank {size - 1} (of {size})" in str(caught.value)
        for _ in range(2):
            result = hvd.allreduce(torch.ones(3), name="shape", op=hvd.Sum)
            assert torch.equal(result, torch.full((3,), 1.0 * size))


def test_random_operations_of_sets_with_joins_give_what_numpy_gives(
    fan_out: int, rank: int, size: int
) -> None:
    rng, own = np.random.default_rng(fan_out), np.random.default_rng([fan_out, rank])
    sets = make_sets(size)
    ranks = [list(each.ranks) for each in sets]
    for epoch in range(1, 31):
        plans = unique_keys([draw(rng, 10 * epoch + i, ranks) for i in range(10)])
        params = random_params(rng)
        if rank == 0:
            basics.engine().propose(epoch, params)
        run_batch(plans, sets, own, rank)
        if epoch % 5 == 0:
            run_until_joined(rng, rank, size)
        basics.engine().end_step()
    hvd.barrier()
    for each in sets[1:]:
        hvd.remove_process_set(each)
