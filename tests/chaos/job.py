"""The job that faults meet: every collective again and again, every result checked.

python job.py FOLDER SECONDS

Each rank leaves FOLDER/up-R when it has begun, then FOLDER/done-R or, with the time
(time.monotonic) and the text of what it was told, FOLDER/error-R. What else it says is on stderr.
CHAOS_FULL_SHM=1: /dev/shm has no room left once MPI has what it wants. CHAOS_AFTER=1: the seconds
begin when there is FOLDER/struck.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import torch

import horovod.torch as hvd

LENGTHS = (3, 1000, 40_000, 300_000)


def fill_shared_memory() -> None:
    """Take all that is left of /dev/shm on this host."""
    from mpi4py import MPI

    local = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    if local.rank == 0:
        with open("/dev/shm/full", "wb") as file, contextlib.suppress(OSError):
            while True:
                os.posix_fallocate(file.fileno(), file.tell(), 1 << 20)
                file.seek(1 << 20, os.SEEK_CUR)
    local.Barrier()


def step(number: int) -> None:
    """Every collective once; AssertionError where a result is wrong."""
    rank, size = hvd.rank(), hvd.size()
    tensors = [torch.full((length,), float(rank + number)) for length in LENGTHS]
    handles = [
        hvd.allreduce_async_(tensor, name=f"gradient.{i}", op=hvd.Sum)
        for i, tensor in enumerate(tensors)
    ]
    for handle in handles:
        hvd.synchronize(handle)
    total = float(sum(range(size)) + size * number)
    assert all(torch.equal(tensor, torch.full_like(tensor, total)) for tensor in tensors)
    gathered = hvd.allgather(torch.full((rank + 1, 100), rank), name="rows")
    right = torch.cat([torch.full((r + 1, 100), r) for r in range(size)])
    assert torch.equal(gathered, right)
    sent = hvd.broadcast(torch.full((50_000,), rank + number), number % size, name="sent")
    assert torch.equal(sent, torch.full((50_000,), number % size + number))
    swapped = hvd.alltoall(torch.arange(size) + 10 * rank, name="swapped")
    assert torch.equal(swapped, torch.arange(size) * 10 + rank)


def main(folder: Path, seconds: float) -> None:
    torch.set_num_threads(1)
    if os.environ.get("CHAOS_FULL_SHM"):
        fill_shared_memory()
    hvd.init()
    rank = hvd.rank()
    (folder / f"up-{rank}").touch()
    deadline = None if os.environ.get("CHAOS_AFTER") else time.monotonic() + seconds
    over = torch.zeros(1)
    number = 0
    try:
        while not over[0]:
            step(number)
            number += 1
            if deadline is None and (folder / "struck").exists():
                deadline = time.monotonic() + seconds
            over[0] = float(deadline is not None and time.monotonic() > deadline)
            hvd.broadcast_(over, 0, name="over")
    except hvd.HorovodInternalError as error:
        (folder / f"error-{rank}.part").write_text(f"{time.monotonic()} {error}")
        (folder / f"error-{rank}.part").rename(folder / f"error-{rank}")
        raise
    hvd.shutdown()
    (folder / f"done-{rank}").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
