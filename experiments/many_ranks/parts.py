"""What a step of 161 short gradients over messages is made of.

    mpirun -n 16 --bind-to none python experiments/many_ranks/parts.py [--tcp] [--seconds 5]

Rank 0 prints medians (smallest, largest) in ms of the slowest rank: of the 0.9 MB of the narrow
ResNet-50 as 161 tensors, handed over one by one and together, and as one tensor; of 161 tensors of
one element; of handing over alone; and of bare ``MPI_Allreduce`` of all bytes at once. They take
turns in random orders, each after one that is not counted.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch
from engine_speed.workloads import narrow_resnet50
from harness import spread
from mpi4py import MPI
from transports.rank import Engine, OverTcp, start_engine

from horovod import _engine
from horovod.common import mpi

RANK = MPI.COMM_WORLD.rank


class Together(Engine):
    """As ``Engine``, but all tensors are handed over in one call."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.members = _engine.PreparedAll(self.operations)
        self.places = _engine.Places([tensor.data_ptr() for tensor in self.tensors])

    def step(self) -> None:
        engine = self.job.engine
        first = engine.start_all(self.members, self.places, self.places)
        engine.finish_all(first, len(self.tensors))
        engine.end_step()


class HandingOver(Engine):
    """As ``Engine``; ``elapsed_s`` is how long the calls took that hand the tensors over."""

    elapsed_s = 0.0

    def step(self) -> None:
        engine = self.job.engine
        begin = time.perf_counter()
        handles = [
            engine.start_prepared(operation, tensor.data_ptr(), tensor.data_ptr())
            for operation, tensor in zip(self.operations, self.tensors, strict=True)
        ]
        self.elapsed_s = time.perf_counter() - begin
        for handle in handles:
            engine.wait(handle)
            engine.release(handle)
        engine.end_step()


def slowest_ms(step: Callable[[], None], elapsed_s: Callable[[], float] | None = None) -> float:
    """Return the time of the slowest rank; ``elapsed_s``: what to take instead of the whole."""
    MPI.COMM_WORLD.Barrier()
    begin = time.perf_counter()
    step()
    took = time.perf_counter() - begin if elapsed_s is None else elapsed_s()
    return float(MPI.COMM_WORLD.allreduce(took * 1e3, MPI.MAX))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tcp", action="store_true", help="messages over TCP")
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    os.environ["HOROVOD_HOSTNAME"] = f"host-{RANK}"
    torch.set_num_threads(1)
    job = start_engine(OverTcp if options.tcp else mpi.MpiWorld)
    sizes = [p.numel() for p in narrow_resnet50().parameters()][::-1]
    whole = np.zeros(sum(sizes), np.float32)

    def tensors(*lengths: int) -> list[torch.Tensor]:
        return [torch.zeros(length) for length in lengths]

    handing_over = HandingOver(job, tensors(*sizes), 4)
    ways: dict[str, Callable[[], None]] = {
        "161 tensors": Engine(job, tensors(*sizes), 0).step,
        "161 tensors together": Together(job, tensors(*sizes), 1).step,
        "one tensor": Engine(job, tensors(sum(sizes)), 2).step,
        "161 of one element": Engine(job, tensors(*([1] * len(sizes))), 3).step,
        "handing over": handing_over.step,
        "MPI_Allreduce": lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, whole),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    order, end = random.Random(0), time.monotonic() + options.seconds
    while MPI.COMM_WORLD.bcast(time.monotonic() < end):
        for name in order.sample(list(ways), len(ways)):
            slowest_ms(ways[name])  # not counted
            part = (lambda: handing_over.elapsed_s) if name == "handing over" else None
            samples[name].append(slowest_ms(ways[name], part))
    if RANK == 0:
        for name, values in samples.items():
            print(f"{name:<22} {spread(values, 2)}")
    MPI.COMM_WORLD.Barrier()
    job.engine.shutdown()


if __name__ == "__main__":
    main()
