"""What a step of 161 gradients over messages is made of.

    mpirun -n 16 --bind-to none python experiments/many_ranks/parts.py [--tcp] [--large]

Rank 0 prints medians (smallest, largest) in ms of the slowest rank: of the 0.9 MB of the narrow
ResNet-50, or the 102 MB of ResNet-50, as 161 tensors, handed over one by one and together, as such
that lie in a row, and as one tensor; of 161 tensors of one element; of handing over alone; and of
bare ``MPI_Allreduce`` of all bytes at once, or in pieces of 256 KiB. They take turns in random
orders, each after one that is not counted.
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
import numpy.typing as npt
import torch
from engine_speed.workloads import narrow_resnet50, resnet50_gradient_sizes
from harness import spread
from mpi4py import MPI
from transports.rank import Engine, OverTcp, start_engine

from horovod import _engine
from horovod.common import mpi

KIB = 1024
COUNTED = ("responses", "transfer_ns", "pack_ns", "unpack_ns", "protocol_ns", "skew_ns")
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
    parser.add_argument("--large", action="store_true", help="102 MB instead of 0.9")
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    os.environ["HOROVOD_HOSTNAME"] = f"host-{RANK}"
    torch.set_num_threads(1)
    job = start_engine(OverTcp if options.tcp else mpi.MpiWorld)
    sizes = [p.numel() for p in narrow_resnet50().parameters()][::-1]
    if options.large:
        sizes = resnet50_gradient_sizes()
    whole = torch.zeros(sum(sizes)).numpy()
    huge = np.zeros(sum(sizes), np.float32)  # numpy asks for huge pages
    piece = 64 * KIB if options.large else whole.size

    def bare(memory: npt.NDArray[np.float32]) -> None:
        for begin in range(0, memory.size, piece):
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, memory[begin : begin + piece])

    def tensors(*lengths: int) -> list[torch.Tensor]:
        return [torch.zeros(length) for length in lengths]

    handing_over = HandingOver(job, tensors(*sizes), 4)
    ways: dict[str, Callable[[], None]] = {
        "161 tensors": Engine(job, tensors(*sizes), 0).step,
        "161 tensors together": Together(job, tensors(*sizes), 1).step,
        "161 in a row": Engine(job, list(torch.zeros(sum(sizes)).split(sizes)), 5).step,
        "one tensor": Engine(job, tensors(sum(sizes)), 2).step,
        "161 of one element": Engine(job, tensors(*([1] * len(sizes))), 3).step,
        "handing over": handing_over.step,
        "MPI_Allreduce": lambda: bare(whole),
        "the same, huge pages": lambda: bare(huge),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    counted: dict[str, list[list[float]]] = {name: [] for name in ways}
    order, end = random.Random(0), time.monotonic() + options.seconds
    while MPI.COMM_WORLD.bcast(time.monotonic() < end):
        for name in order.sample(list(ways), len(ways)):
            slowest_ms(ways[name])  # not counted
            part = (lambda: handing_over.elapsed_s) if name == "handing over" else None
            before = job.engine.counters()
            samples[name].append(slowest_ms(ways[name], part))
            after = job.engine.counters()
            counted[name].append([after[each] - before[each] for each in COUNTED])
    if RANK == 0:
        for name, values in samples.items():
            cells = zip(COUNTED, np.median(counted[name], axis=0), strict=True)
            print(f"{name:<22} {spread(values, 2)} ", *(f"{n} {v:.5g}" for n, v in cells))
    MPI.COMM_WORLD.Barrier()
    job.engine.shutdown()


if __name__ == "__main__":
    main()
