"""An engine that ends inside a transfer: python freed_tensors.py OPERATION, under 2 host names.

Rank 0 stops rank 1 in the transfer, ends its engine, uses the tensor again, lets rank 1 go on and
looks what MPI still does: prints "written" where the tensor changed, else "untouched". Then both
end as scripts do that have caught the error; rank 0 prints last whether MPI had messages left to
deliver and was ended.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time

import torch

import horovod.torch as hvd
from horovod import _engine
from horovod.common import basics

STEPS_BEFORE = 3
SECONDS_OF_POLLING = 3.0


def poll_for(seconds: float) -> None:
    """Let MPI do what it still has to do."""
    from mpi4py import MPI

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        MPI.COMM_WORLD.Iprobe()


def say_whether_mpi_was_ended() -> None:
    """After what ``hvd.init`` has registered; MPI is not to be imported before it."""
    from mpi4py import MPI

    kept = "some" if _engine.messages_were_left_behind() else "none"
    end = "MPI was ended" if MPI.Is_finalized() else "MPI was left"
    print(f"{kept} kept, {end}", flush=True)


def main(operation: str) -> None:
    atexit.register(say_whether_mpi_was_ended)
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
        return atexit.unregister(say_whether_mpi_was_ended)
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


if __name__ == "__main__":
    main(sys.argv[1])
