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

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from e2e import on_arrays as hvd
from horovod.common.reduce_ops import Max


def train(folder: Path) -> None:
    """Steps for ever; the error that ends them is written down."""
    try:
        while True:
            hvd.allreduce_(np.ones(100), "step")
    except hvd.HorovodInternalError as error:
        write(folder / f"error-{hvd.rank()}", f"{time.time()} {error}")
        raise


def skip(folder: Path) -> None:
    """The last rank never calls "skipped"."""
    for _ in range(3):  # "cached" is known to all by then
        hvd.allreduce_(np.ones(3), "cached")
    write(folder / f"begin-{hvd.rank()}", str(time.time()))
    if hvd.rank() == hvd.size() - 1:
        time.sleep(30)
        return
    kept = [np.ones(3), np.ones(3)]
    started = [hvd.start(*each) for each in zip(kept, ("skipped", "cached"), strict=True)]
    try:
        hvd.wait(started[:1], kept)
    except hvd.HorovodInternalError as error:
        write(folder / f"error-{hvd.rank()}", f"{time.time()} {error}")
        raise


def transfer(folder: Path) -> None:
    """Nearly always inside a transfer, until FOLDER/enough is there: the last number says so."""
    tensor = np.zeros(1 << 24, np.float32)
    try:
        while not tensor[-1]:
            tensor[0], tensor[-1] = hvd.rank(), float((folder / "enough").exists())
            hvd.allreduce_(tensor, "large", Max)
            assert tensor[0] == hvd.size() - 1
    except hvd.HorovodInternalError as error:
        write(folder / f"error-{hvd.rank()}", f"{time.time()} {error}")
        raise
    write(folder / f"done-{hvd.rank()}", "")


def recover(folder: Path) -> None:
    """The ranks wait for each other until the engine fails; then they begin anew."""
    last = hvd.rank() == hvd.size() - 1
    try:
        hvd.allreduce_(np.ones(3), "the last" if last else "others")
    except hvd.HorovodInternalError:
        hvd.shutdown()
        hvd.init()
    assert_that_they_work()
    write(folder / f"done-{hvd.rank()}", "")


def fork(folder: Path) -> None:
    """Children that end like scripts, with all that runs at the end of an interpreter."""
    for how in (sys.exit, lambda code: os.kill(os.getpid(), signal.SIGTERM)):
        child = os.fork()
        if child == 0:
            how(0)
        os.waitpid(child, 0)
        assert_that_they_work()
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


def assert_that_they_work() -> None:
    assert (hvd.allreduce_(np.ones(3), "works") == hvd.size()).all()


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
