"""One rank of the experiment: ``mpirun -np 2 python rank.py PART``; rank 0 prints one JSON line.

Every part interleaves what it compares inside one job: settings are changed between steps by the
engine itself, baselines run in turns with what they are compared to.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from gradients import GRIDS, KIB, MIB, gradients, timed_ms
from harness import summary, tell
from mpi4py import MPI
from settings import Setting, propose
from workloads import GRADIENTS, narrow_resnet50

import horovod.torch as hvd


def small_loop() -> dict[str, Any]:
    """(a) A 4 kB synchronous allreduce loop at the defaults, against bare MPI from Python."""
    tensor, array = torch.ones(1024), np.ones(1024, np.float32)
    calls, ours, bare = 2000, [], []

    def engine_loop() -> None:
        for _ in range(calls):
            hvd.allreduce_(tensor, name="loop", op=hvd.Max)

    def bare_loop() -> None:
        for _ in range(calls):
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array, MPI.MAX)

    for _ in range(9):
        ours.append(timed_ms(engine_loop) / calls)
        bare.append(timed_ms(bare_loop) / calls)
    assert float(tensor[0]) == 1.0
    return {"ours_ms": summary(ours[1:]), "bare_mpi_ms": summary(bare[1:])}


def small_tensors(passes: int) -> dict[str, Any]:
    """(c) A real model of 161 small tensors, against the same loop without communication."""
    torch.manual_seed(hvd.rank())
    model, plain = narrow_resnet50(), narrow_resnet50()
    inputs, labels = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    alone = torch.optim.SGD(plain.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def train(net: torch.nn.Module, using: torch.optim.Optimizer) -> None:
        using.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), labels).backward()
        using.step()

    grid = [(t, c) for t in (0, 256 * KIB, MIB, 64 * MIB) for c in (0.1, 1.0, 5.0, 25.0)]
    times: dict[tuple[int, float], list[float]] = {cell: [] for cell in grid}
    without: list[float] = []
    order = random.Random(1)
    for _ in range(5):
        train(model, optimizer)
        train(plain, alone)
    for _ in range(passes):
        for threshold, cycle in order.sample(grid, len(grid)):
            propose(Setting(fusion_threshold_bytes=threshold, cycle_time_ms=cycle))
            train(model, optimizer)
            times[threshold, cycle].append(timed_ms(lambda: train(model, optimizer)))
            without.append(timed_ms(lambda: train(plain, alone)))
    sums = torch.stack([p.detach().double().sum() for p in model.parameters()])
    assert torch.equal(sums, hvd.broadcast(sums, 0, name="check")), "the ranks' weights differ"
    return {
        "tensors": len(list(model.parameters())),
        "bytes": sum(p.numel() * 4 for p in model.parameters()),
        "cells": [
            {"threshold": t, "cycle_ms": c, "ms": summary(values)}
            for (t, c), values in times.items()
        ],
        "without_communication_ms": summary(without),
    }


def idle(seconds: float) -> dict[str, Any]:
    """(d) CPU time of this process, all threads, while the training thread sleeps."""
    hvd.allreduce(torch.ones(10), name="before")
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    shares = MPI.COMM_WORLD.allgather(100 * used / seconds)
    return {"percent_of_a_core_by_rank": shares}


def tuner_cost(steps: int) -> dict[str, Any]:
    """(e) What the tuner costs rank 0's training thread: time inside its only hook, per step."""
    tensors = [torch.zeros(5000) for _ in range(161)]
    inside: list[float] = []
    durations: list[float] = []

    def compute() -> None:
        until = time.perf_counter() + 0.004
        while time.perf_counter() < until:
            pass

    for _ in range(steps):
        start = time.perf_counter()
        compute()
        handles = [hvd.allreduce_async_(t, name=str(i), op=hvd.Max) for i, t in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)
        hook = time.perf_counter()
        hvd.autotune.step()
        end = time.perf_counter()
        inside.append((end - hook) * 1e6)
        durations.append((end - start) * 1e3)
    return {
        "state": hvd.autotune.status().state,
        "hook_us": summary(inside) | {"mean": statistics.fmean(inside)},
        "step_ms": summary(durations) | {"mean": statistics.fmean(durations)},
    }


def main() -> None:
    """Run one part and print its result on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["a", "b", "c", "d", "e"])
    parser.add_argument("--model", choices=list(GRADIENTS), default="resnet50", help="of part b")
    parser.add_argument("--grid", choices=list(GRIDS), default="wide", help="of part b")
    parser.add_argument("--passes", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    defaults = hvd.autotune.params()  # before any part proposes others
    result = {
        "a": small_loop,
        "b": lambda: gradients(GRADIENTS[arguments.model](), arguments.grid, arguments.passes),
        "c": lambda: small_tensors(arguments.passes),
        "d": lambda: idle(5.0),
        "e": lambda: tuner_cost(1000),
    }[arguments.part]()
    result["defaults"] = defaults
    if hvd.rank() == 0:
        tell(result)
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
