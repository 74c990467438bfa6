"""One rank: ``mpirun -n 2 python memory.py``; rank 0 tells what the engine adds to a rank's memory.

Four readings of one process: torch, mpi4py and MPI with ResNet-50's 161 gradients in memory; then
``import horovod.torch``; then ``hvd.init()``; then 100 steps. With ``--bare`` the same gradients go
through 100 rounds of ``MPI_Allreduce`` instead: what the MPI library takes by itself. With
``--hosts 2`` the engine takes every second rank for one of another host, so that fusion buffers and
MPI messages are used.

Resident memory counts a shared page in full in every process: an upper bound. "shm" is the share
of shared memory (n processes that have a page count 1/n each), so the sum over the ranks of a host
counts every segment once; "private" is anonymous memory.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from harness import tell
from mpi4py import MPI
from workloads import resnet50_gradient_sizes

KINDS = {"Rss": "rss", "Pss_Anon": "private", "Pss_Shmem": "shm"}
Reading = dict[str, float]


def read() -> Reading:
    """Return this process's memory in MB (10^6 bytes), all ranks having come this far."""
    gc.collect()
    MPI.COMM_WORLD.Barrier()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    MPI.COMM_WORLD.Barrier()  # nobody goes on while another rank's shares are read
    return {name: kib[key] * 1024 / 1e6 for key, name in KINDS.items()}


def bare(tensors: list[torch.Tensor], steps: int) -> dict[str, Reading]:
    """Reduce the gradients with MPI alone."""
    for _ in range(steps):
        for tensor in tensors:
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, tensor.numpy())
    return {"steps": read()}


def engine(tensors: list[torch.Tensor], steps: int) -> dict[str, Reading]:
    """Reduce the gradients with the engine."""
    import horovod.torch as hvd
    from horovod.common import basics

    readings = {"import": read()}
    hvd.init()
    readings["init"] = read()
    for _ in range(steps):
        handles = [hvd.allreduce_async_(t, name=f"g{i}", op=hvd.Sum) for i, t in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)
        basics.engine().end_step()
    readings["steps"] = read()
    hvd.shutdown()
    return readings


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--bare", action="store_true", help="MPI instead of the engine")
    parser.add_argument("--hosts", type=int, default=1, help="hosts that the ranks pretend to be")
    arguments = parser.parse_args()
    if arguments.hosts > 1:
        os.environ["HOROVOD_HOSTNAME"] = f"host{MPI.COMM_WORLD.Get_rank() % arguments.hosts}"
    torch.set_num_threads(1)
    tensors = [torch.zeros(size) for size in resnet50_gradient_sizes()]
    for tensor in tensors:
        tensor.fill_(0.0)  # fresh pages of zeros are not in memory yet
    before = read()
    readings = {"before": before} | (bare if arguments.bare else engine)(tensors, arguments.steps)
    ranks = MPI.COMM_WORLD.gather(readings)
    if ranks is not None:
        tell(ranks)


if __name__ == "__main__":
    main()
