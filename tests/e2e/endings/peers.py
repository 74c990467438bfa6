"""Ranks that go wrong for the e2e tests: python peers.py WHAT FOLDER

Every rank leaves FOLDER/pid-R once the job runs, and FOLDER/error-R with what it was told. With
PEERS_START_MPI the script imports mpi4py first, which then ends MPI.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path

import torch

import horovod.torch as hvd


def train(folder: Path) -> None:
    """Steps for ever; the error that ends them is written down."""
    try:
        while True:
            hvd.allreduce(torch.ones(100), name="step")
    except hvd.HorovodInternalError as error:
        write(folder / f"error-{hvd.rank()}", f"{time.time()} {error}")
        raise


def skip(folder: Path) -> None:
    """The last rank never calls "skipped"."""
    for _ in range(3):  # "cached" is known to all by then
        hvd.allreduce(torch.ones(3), name="cached")
    write(folder / f"begin-{hvd.rank()}", str(time.time()))
    if hvd.rank() == hvd.size() - 1:
        time.sleep(30)
        return
    handles = [hvd.allreduce_async(torch.ones(3), name=name) for name in ("skipped", "cached")]
    try:
        hvd.synchronize(handles[0])
    except hvd.HorovodInternalError as error:
        write(folder / f"error-{hvd.rank()}", f"{time.time()} {error}")
        raise


def transfer(folder: Path) -> None:
    """Nearly always inside a transfer, until FOLDER/enough is there: the last number says so."""
    tensor = torch.zeros(1 << 24)
    try:
        while not tensor[-1]:
            tensor[0], tensor[-1] = hvd.rank(), float((folder / "enough").exists())
            hvd.allreduce_(tensor, name="large", op=hvd.Max)
            assert tensor[0] == hvd.size() - 1
    except hvd.HorovodInternalError as error:
        write(folder / f"error-{hvd.rank()}", f"{time.time()} {error}")
        raise
    write(folder / f"done-{hvd.rank()}", "")


def recover(folder: Path) -> None:
    """The ranks wait for each other until the engine fails; then they begin anew."""
    last = hvd.rank() == hvd.size() - 1
    try:
        hvd.allreduce(torch.ones(3), name="the last" if last else "others")
    except hvd.HorovodInternalError:
        hvd.shutdown()
        hvd.init()
    assert torch.equal(hvd.allreduce(torch.ones(3)), torch.ones(3))
    write(folder / f"done-{hvd.rank()}", "")


def fork(folder: Path) -> None:
    """Children that end like scripts, with all that runs at the end of an interpreter."""
    for how in (sys.exit, lambda code: os.kill(os.getpid(), signal.SIGTERM)):
        child = os.fork()
        if child == 0:
            how(0)
        os.waitpid(child, 0)
        assert torch.equal(hvd.allreduce(torch.ones(3)), torch.ones(3))
    write(folder / f"done-{hvd.rank()}", "")


def parent(folder: Path) -> None:
    """As ``train``; rank 1 has forked a child that outlives it, as a data loader's worker may."""
    if hvd.rank() == 1:
        child = os.fork()
        if child == 0:
            os.setsid()  # what ends a rank's process group leaves it alone
            time.sleep(60)
            os._exit(0)
        write(folder / "child", str(child))
    train(folder)


def write(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all."""
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    if "PEERS_START_MPI" in os.environ:
        importlib.import_module("mpi4py.MPI")
    hvd.init()
    own_folder = Path(sys.argv[2])
    write(own_folder / f"pid-{hvd.rank()}", str(os.getpid()))
    named = (train, skip, transfer, recover, fork, parent)
    modes = {each.__name__: each for each in named}
    modes[sys.argv[1]](own_folder)
