"""Part 4: a job that tunes itself from cold, then default and result in turns in the same job."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from ground import WARM_UP, Ground, Step, in_turns, rows
from mpi4py import MPI
from networks import make_task
from settings import Setting, in_force
from steps import SGD

import horovod.torch as hvd
from autotune.storage.reader import read_log
from horovod import _engine
from horovod.common import basics

LOOK_EVERY = 10
"""Steps between two looks at whether the tuner is done."""
WINDOW = 8
FIRST_EPOCH = 1_000_000
"""Above every epoch of the tuner's service."""
_epochs = itertools.count(FIRST_EPOCH)


def put(step: Step, setting: Setting) -> None:
    """**Collective.** Make steps until ``setting`` is in force everywhere."""
    if hvd.rank() == 0:
        basics.engine().propose(next(_epochs), _engine.Params(**setting.as_dict()))
    for _ in range(10):
        for _ in range(WARM_UP):
            step()
        if MPI.COMM_WORLD.allreduce(in_force(setting), MPI.MIN):
            return
    raise RuntimeError(f"not in force: {setting}")


def result_of(done: bool, log: str) -> dict[str, Any]:
    """Return what the tuner found, or the best line so far. **Rank 0.**"""
    if done or hvd.rank() != 0:
        return dict(hvd.autotune.params())
    best = read_log(log).best
    return dict(hvd.autotune.params() if best is None else best.params.as_dict())


def run(ground: Ground, tiny: bool, seconds: float, most_steps: int, log: str) -> dict[str, Any]:
    """**Collective.** Train until the tuner is done or time or steps are up; then compare."""
    task = make_task("gpt350m", ground.device, hvd.rank(), tiny)
    network, plain = task.build(), task.build()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), **SGD), named_parameters=network.named_parameters()
    )
    alone = torch.optim.SGD(plain.parameters(), **SGD)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(network).backward()
        optimizer.step()

    def without() -> None:
        alone.zero_grad()
        task.loss(plain).backward()
        alone.step()

    steps, done, begin = 0, False, time.monotonic()
    while MPI.COMM_WORLD.bcast(
        not done and steps < most_steps and time.monotonic() - begin < seconds
    ):
        for _ in range(LOOK_EVERY):
            step()
        steps += LOOK_EVERY
        done = hvd.autotune.status().state not in ("starting", "tuning")
    ground.wait()
    tuning_s = time.monotonic() - begin
    status = hvd.autotune.status()
    final = Setting(**MPI.COMM_WORLD.bcast(result_of(done, log)))
    hvd.autotune.pause()  # a tuner that is not done proposes nothing more

    def turn(setting: Setting) -> float:
        put(step, setting)
        return ground.timed(step, WINDOW)

    def turn_without() -> float:
        for _ in range(WARM_UP):
            without()
        return ground.timed(without, WINDOW)

    turns = {"default": lambda: turn(ground.default), "final": lambda: turn(final)}
    windows = in_turns({**turns, "alone": turn_without}, 0.25 * seconds, least=3)
    return {
        "finished": done,
        "state": status.state,
        "text": status.text,
        "steps": steps,
        "seconds": round(tuning_s, 1),
        "final": final.as_dict(),
        "windows": rows(windows),
    }
