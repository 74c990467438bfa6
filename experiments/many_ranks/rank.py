"""One rank: the engine over MPI and over TCP, bare ``MPI_Allreduce`` and gloo take turns.

    mpirun -n 16 python rank.py --seconds 30 --folder /tmp/of-all-ranks

Every rank is a host of its own by its name, so that the engine exchanges messages alone. What a
sample is, and what is left out, is as in ``transports/rank.py``. Bare MPI reduces the same bytes in
place, in pieces of each size, in torch's memory, where gradients lie (``plain``), and in numpy's,
which asks for huge pages (``bare``): the fastest size of each is what the engine is compared with.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch
import torch.distributed as dist
from engine_speed.workloads import narrow_resnet50, resnet50_gradient_sizes
from harness import tell
from mpi4py import MPI
from transports.rank import Engine, Gloo, OverTcp, measure, start_engine

from horovod.common import mpi

KIB, MIB = 1024, 1 << 20
PIECES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 1 << 40)
LEAST_ROUNDS = 3
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


@dataclass
class Bare:
    """The same bytes by ``MPI_Allreduce`` in place; they lie in a row.

    Attributes:
        sizes: Elements of each tensor.
        is_huge: The memory is numpy's, which asks for huge pages; else torch's.
        piece: Bytes that one call reduces.
    """

    sizes: Sequence[int]
    is_huge: bool
    piece: int = MIB
    tensors: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = sum(self.sizes)
        self._buffer = np.zeros(count, np.float32) if self.is_huge else torch.zeros(count).numpy()
        self.tensors = list(torch.from_numpy(self._buffer).split(list(self.sizes)))

    def step(self) -> None:
        length = max(1, min(self.piece // 4, self._buffer.size))
        for begin in range(0, self._buffer.size, length):
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, self._buffer[begin : begin + length])


def pieces_of(payload_bytes: int) -> list[int]:
    """Return the sizes of pieces that differ for so many bytes; the largest one is all of them."""
    return [piece for piece in PIECES if piece < payload_bytes] + [PIECES[-1]]


def compare(
    engines: dict[str, Engine], sizes: Sequence[int], seconds: float, number: int
) -> dict[str, list[float]]:
    """Return {way: samples in ms}; of bare MPI each size of pieces is a way."""
    bares = {"bare": Bare(sizes, is_huge=True), "plain": Bare(sizes, is_huge=False)}
    gloo = Gloo([torch.zeros(n) for n in sizes])
    ways: dict[str, tuple[Callable[[], None], list[torch.Tensor], int]] = {
        name: (engine.step, engine.tensors, 0) for name, engine in engines.items()
    }
    ways["gloo"] = gloo.step, gloo.tensors, 0
    for name, bare in bares.items():
        for piece in pieces_of(4 * sum(sizes)):
            ways[f"{name} {piece}"] = bare.step, bare.tensors, piece
    samples: dict[str, list[float]] = {name: [] for name in ways}
    order = random.Random(number)
    end = time.monotonic() + seconds
    count = 0
    while MPI.COMM_WORLD.bcast(count < LEAST_ROUNDS or time.monotonic() < end):
        for name in order.sample(list(ways), len(ways)):
            step, tensors, piece = ways[name]
            for bare in bares.values():
                bare.piece = piece
            measure(step, tensors)  # not counted
            samples[name].append(measure(step, tensors))
        count += 1
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True, help="for each workload")
    parser.add_argument("--folder", required=True)
    arguments = parser.parse_args()
    os.environ["HOROVOD_HOSTNAME"] = f"host-{RANK}"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{arguments.folder}/store", rank=RANK, world_size=SIZE
    )
    jobs = {"mpi": start_engine(mpi.MpiWorld), "tcp": start_engine(OverTcp)}
    assert all(job.topology.local_size == 1 for job in jobs.values()), "shared memory is in use"
    workloads = {
        "large": resnet50_gradient_sizes(),
        "small": [p.numel() for p in narrow_resnet50().parameters()][::-1],
    }
    result: dict[str, Any] = {}
    for number, (name, sizes) in enumerate(workloads.items()):
        engines = {
            way: Engine(job, [torch.zeros(n) for n in sizes], number) for way, job in jobs.items()
        }
        samples = compare(engines, sizes, arguments.seconds, number)
        result[name] = {"tensors": len(sizes), "bytes": 4 * sum(sizes), "step_ms": samples}
    MPI.COMM_WORLD.Barrier()
    for job in jobs.values():
        job.engine.shutdown()
    dist.destroy_process_group()
    if RANK == 0:
        tell(result)


if __name__ == "__main__":
    main()
