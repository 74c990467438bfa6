"""One rank: messages over TCP, messages by MPI and torch's gloo take turns in one process.

    mpirun -n 2 python rank.py --seconds 60 --folder /tmp/of-all-ranks

The process holds two engines, which differ in their transport alone: MPI's, and the one of jobs
without MPI. A sample of theirs is what ``hvd.allreduce_async_`` and ``synchronize`` do with a
step's 161 gradients; one of gloo is ``all_reduce`` of buckets as DistributedDataParallel makes
them (25 MiB, the first one 1 MiB), in whose memory the gradients lie: DDP's own work is left out.
Orders are random, all ranks start a sample together, and the slowest rank's time is the sample.
Every way's sums are checked each time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch.distributed as dist
from engine_speed.workloads import narrow_resnet50, resnet50_gradient_sizes
from harness import tell
from mpi4py import MPI

from horovod import _engine
from horovod.common import mpi
from horovod.common.starting import Job, Start, start_job
from horovod.tuning.session import Session

MIB = 1 << 20
BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 * MIB, MIB
"""DistributedDataParallel's defaults."""
LEAST_ROUNDS = 3
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


class OverTcp(mpi.MpiWorld):
    """Ranks that MPI has started and that exchange messages over TCP all the same."""

    def transport(
        self, key: bytes, hosts: Sequence[int], interfaces: str
    ) -> _engine.Transport | None:
        """As of ``World``."""
        listener = _engine.TcpListener(self.rank, key, interfaces)
        return listener.connect(self.allgather(listener.address), hosts)


@dataclass
class Engine:
    """A job's engine with a step's gradients."""

    job: Job
    tensors: list[torch.Tensor]
    first_number: int

    def __post_init__(self) -> None:
        kind = _engine.Kind(operation="allreduce", dtype="float32", reduce_op="sum")
        self.operations = [
            _engine.Prepared(kind, f"{self.first_number}.{i}", list(tensor.shape))
            for i, tensor in enumerate(self.tensors)
        ]

    def step(self) -> None:
        engine = self.job.engine
        handles = [
            engine.start_prepared(operation, tensor.data_ptr(), tensor.data_ptr())
            for operation, tensor in zip(self.operations, self.tensors, strict=True)
        ]
        for handle in handles:
            engine.wait(handle)
            engine.release(handle)
        engine.end_step()


@dataclass
class Gloo:
    """The same gradients in buckets; the last layer's come first."""

    tensors: list[torch.Tensor]

    def __post_init__(self) -> None:
        self.buckets: list[torch.Tensor] = []
        waiting: list[int] = []
        sizes = [tensor.numel() for tensor in self.tensors]
        for i in range(len(sizes)):
            waiting.append(i)
            limit = BUCKET_BYTES if self.buckets else FIRST_BUCKET_BYTES
            if 4 * sum(sizes[j] for j in waiting) >= limit or i == len(sizes) - 1:
                bucket = torch.zeros(sum(sizes[j] for j in waiting))
                for j, part in zip(waiting, bucket.split([sizes[j] for j in waiting]), strict=True):
                    self.tensors[j] = part
                self.buckets.append(bucket)
                waiting = []

    def step(self) -> None:
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in self.buckets]:
            work.wait()


def start_engine(kind: type[mpi.MpiWorld]) -> Job:
    module, _ = mpi.start()
    world = kind(module, MPI.COMM_WORLD.Dup(), ours=False)
    start = Start(
        world=world, process_sets=None, tuner=Session(), init_began_ns=time.monotonic_ns()
    )
    return start_job(start)


def set_levels(job: Job, epoch: int, two_levels: bool) -> None:
    """Let the engine use one level or two from the next step on."""
    if RANK == 0:
        params = job.engine.params()
        params.hierarchical_allreduce = two_levels
        job.engine.propose(epoch, params)


def measure(step: Callable[[], None], tensors: list[torch.Tensor]) -> float:
    """Return the slowest rank's time of a step in ms, whose sums are right."""
    for number, tensor in enumerate(tensors):
        tensor.fill_(number + RANK)
    MPI.COMM_WORLD.Barrier()
    begin = time.perf_counter()
    step()
    elapsed_ms = (time.perf_counter() - begin) * 1e3
    ranks = sum(range(SIZE))
    for number, tensor in enumerate(tensors):
        assert bool((tensor == number * SIZE + ranks).all()), f"gradient {number} is wrong"
    return float(MPI.COMM_WORLD.allreduce(elapsed_ms, MPI.MAX))


def compare(
    jobs: dict[str, Job], sizes: list[int], seconds: float, levels: Sequence[bool], number: int
) -> dict[str, list[float]]:
    """Return {way: samples in ms}."""
    engines = {
        name: Engine(job, [torch.zeros(n) for n in sizes], number) for name, job in jobs.items()
    }
    gloo = Gloo([torch.zeros(n) for n in sizes])
    samples: dict[str, list[float]] = {}
    order = random.Random(number)
    end = time.monotonic() + seconds
    count = 0
    while MPI.COMM_WORLD.bcast(count < LEAST_ROUNDS or time.monotonic() < end):
        turns: list[tuple[str, bool]] = [(name, two) for name in jobs for two in levels]
        for name, two_levels in order.sample([*turns, ("gloo", False)], len(turns) + 1):
            if name == "gloo":
                step, tensors, label = gloo.step, gloo.tensors, name
                measure(step, tensors)
            else:
                epochs[name] += 1
                set_levels(jobs[name], epochs[name], two_levels)
                step, tensors = engines[name].step, engines[name].tensors
                label = f"{name}, two levels" if two_levels else name
                measure(step, tensors)  # the setting takes effect at its end
            samples.setdefault(label, []).append(measure(step, tensors))
        count += 1
    return samples


epochs = {"tcp": 0, "mpi": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--folder", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{arguments.folder}/store", rank=RANK, world_size=SIZE
    )
    jobs = {"tcp": start_engine(OverTcp), "mpi": start_engine(mpi.MpiWorld)}
    topology = jobs["tcp"].topology
    levels = (False, True) if topology.local_size > 1 else (False,)
    workloads = {
        "large": resnet50_gradient_sizes(),
        "small": [p.numel() for p in narrow_resnet50().parameters()][::-1],
    }
    result: dict[str, Any] = {}
    for number, (name, sizes) in enumerate(workloads.items()):
        samples = compare(jobs, sizes, arguments.seconds, levels, number)
        result[name] = {"tensors": len(sizes), "bytes": 4 * sum(sizes), "step_ms": samples}
    MPI.COMM_WORLD.Barrier()
    for job in jobs.values():
        job.engine.shutdown()
    dist.destroy_process_group()
    if RANK == 0:
        tell(result)


if __name__ == "__main__":
    main()
