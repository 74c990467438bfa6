"""What tests on ranks do beside the engine, by MPI or without it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from horovod.common import basics

WITHOUT_MPI = "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ
"""This rank was started without MPI."""
OF_THE_LAUNCHER = {
    name: value
    for name, value in os.environ.items()
    if WITHOUT_MPI
    and (
        name in ("HOROVOD_CONTROLLER", "HOROVOD_SECRET_KEY")
        or name.startswith("HOROVOD_GLOO_")
        or name.endswith(("RANK", "SIZE"))
    )
}
"""Variables by which the ranks of a job without MPI were joined, as they were."""

needs_mpi = pytest.mark.skipif(WITHOUT_MPI, reason="communicators of MPI; this job does without")


def use_own_temporary_folder(rank: int) -> None:
    """After ``hvd.init``: give pytest a folder of this rank's own.

    It removes old folders: not those of another rank, which does the same at that moment.
    """
    folder = Path(tempfile.gettempdir()) / f"pytest-of-rank-{rank}"
    folder.mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)


def barrier() -> None:
    """Return when all ranks are here, whatever the engine does."""
    world = basics._process.world
    assert world is not None
    world.wait()
    world.allgather(None)


def gather(value: object) -> list[object]:
    """Return every rank's ``value``, whatever the engine does."""
    world = basics._process.world
    assert world is not None
    return world.allgather(value)


def abort(text: str) -> None:
    """End the job of all ranks by an error, unless there is only one."""
    world = basics._process.world
    if world is None or world.size == 1:
        return
    sys.__stderr__.write(f"rank {world.rank}: {text}\n")
    sys.__stderr__.flush()
    if world.kind == "tcp":  # who has started the ranks ends the others
        os._exit(1)
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(1)
