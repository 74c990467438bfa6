"""An engine that ends inside a transfer: python freed_tensors.py OPERATION, under 2 host names.

Rank 0 stops rank 1 in the transfer, ends its engine, uses the tensor again, lets rank 1 go on and
looks what MPI still does: prints "written" where the tensor changed, else "untouched".
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from mpi4py import MPI

import horovod.torch as hvd
from horovod.common import basics

STEPS_BEFORE = 3
SECONDS_OF_POLLING = 3.0


def poll_for(seconds: float) -> None:
    """Let MPI do what it still has to do."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        MPI.COMM_WORLD.Iprobe()


def main(operation: str) -> None:
    hvd.init()
    pids = hvd.allgather(torch.tensor([os.getpid()])).tolist()
    tensor = torch.ones(1 << 24)

    def start() -> int:
        if operation == "broadcast":
            return hvd.broadcast_async_(tensor, 1, name="large")
        return hvd.allreduce_async_(tensor, name="large", op=hvd.Sum)

    try:
        for _ in range(STEPS_BEFORE):
            hvd.synchronize(start())
        handle = start()
        if hvd.rank() == 1:
            hvd.synchronize(handle)
            hvd.allreduce_(torch.ones(1), name="never done")
    except hvd.HorovodInternalError:
        poll_for(60)  # rank 0 ends the job
    os.kill(pids[1], signal.SIGSTOP)
    time.sleep(0.3)
    if hvd.poll(handle):
        print("too late", flush=True)
    engine = basics.engine()
    engine.shutdown(0.5)
    tensor.fill_(7)
    os.kill(pids[1], signal.SIGCONT)
    poll_for(SECONDS_OF_POLLING)
    print("untouched" if bool((tensor == 7).all()) else "written", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
