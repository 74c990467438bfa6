"""Results of a new setting are checked: right ones of every type are right, and nobody waits."""

from __future__ import annotations

from collections.abc import Callable

import torch

import horovod.torch as hvd
from gpu.device import put
from horovod import _engine
from horovod.common import basics
from parallel.values import FLOATS, INTEGERS

STEPS = 40
"""Enough for a change and for the check, which is made some steps after the operation."""


def checks_after_change(rank: int, step: Callable[[], object]) -> list[tuple[str, bool, float]]:
    """**Collective.** Put an epoch into force, take steps; return the checks on rank 0.

    Which operation of a step is checked goes by the step before: that is one of these, too.
    """
    engine = basics.engine()
    for _ in range(2):
        step()
        engine.end_step()  # hvd.autotune.step() leaves that to an optimizer of an earlier test
    engine.drain_checks()
    if rank == 0:
        params = {name: getattr(engine.params(), name) for name, *_ in _engine.Params.fields()}
        engine.propose(engine.epoch() + 1, _engine.Params(**params))
    for _ in range(STEPS):
        step()
        engine.end_step()
    return [(name, ok, worst) for _, name, ok, worst, _ in engine.drain_checks()]


def test_right_results_are_right_in_every_type(rank: int, size: int) -> None:
    for dtype in (*FLOATS, *INTEGERS):
        for op in (hvd.Sum, hvd.Average, hvd.Max):
            generator = torch.Generator().manual_seed(rank)
            sent = put((torch.randn(100_003, generator=generator) * 20).abs().to(dtype))
            name = f"{dtype} {op}"
            checks = checks_after_change(rank, lambda: hvd.allreduce(sent, op=op, name=name))  # noqa: B023
            assert len(checks) <= 1
            assert all(ok for _, ok, _ in checks), checks
            if rank == 0 and dtype.is_floating_point and size > 1:
                assert checks, f"{name} was not checked"


def test_right_results_are_right_compressed_in_groups_and_gathered(rank: int, size: int) -> None:
    sent = [put(torch.randn(length) * 3e4) for length in (5, 3000, 700_000)]
    rows = put(torch.full((rank + 2, 300), float(rank)))
    steps: list[Callable[[], object]] = [
        lambda: hvd.grouped_allreduce(sent, name="group"),
        lambda: hvd.grouped_allreduce(sent, name="fp16", compression=hvd.Compression.fp16),
        lambda: hvd.grouped_allreduce(sent, name="bf16", compression=hvd.Compression.bf16),
        lambda: hvd.allgather(rows, name="rows"),
    ]
    for step in steps:
        checks = checks_after_change(rank, step)
        assert all(ok for _, ok, _ in checks), checks
        if rank == 0 and size > 1:
            assert len(checks) == 1
