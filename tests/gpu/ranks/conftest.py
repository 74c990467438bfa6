"""Every rank runs the same tests on its own GPU; the ranks meet after each."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from gpu.device import ON_GPU, take_gpu

MOST_FAILURES = 8


class Meeting:
    """Where all ranks meet after every test: did it fail on any of them?

    A rank that failed waits a while for the others, which may be stuck in a collective of the test
    that it left; then it ends the job.
    """

    def __init__(self) -> None:
        self.failed = False
        self.failures = 0

    def anyone_failed(self) -> bool:
        """**Collective.** Count and return it."""
        from mpi4py import MPI

        found = np.zeros(1, dtype=np.int32)
        own = np.array([self.failed], dtype=np.int32)
        deadline = time.monotonic() + (15 if self.failed else 90)
        request = MPI.COMM_WORLD.Iallreduce(own, found, MPI.MAX)
        while not request.Test():
            if time.monotonic() > deadline:
                print(f"rank {hvd.rank()}: the others do not end this test", file=sys.__stderr__)
                sys.__stderr__.flush()
                MPI.COMM_WORLD.Abort(1)
            time.sleep(0.0002)
        self.failed = False
        self.failures += int(found[0])
        return bool(found[0])


meeting = Meeting()


def pytest_configure() -> None:
    if ON_GPU and not torch.cuda.is_available():
        raise pytest.UsageError("torch finds no GPU here; HVD_TEST_DEVICE=cpu tests the tests")
    torch.set_num_threads(1)
    hvd.init()
    take_gpu()
    # pytest removes old folders: not those of another rank, which does the same at this moment
    folder = Path(tempfile.gettempdir()) / f"pytest-of-gpu-rank-{hvd.rank()}"
    folder.mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    if report.failed:
        meeting.failed = True
        rank = f"rank {hvd.rank()}" if hvd.is_initialized() else "a rank without hvd.init()"
        print(f"{rank}: {report.nodeid}\n{report.longreprtext}", file=sys.__stderr__)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """After a failure all ranks start the runtime anew and go on; few times."""
    done = yield
    if meeting.anyone_failed():
        hvd.shutdown()
        hvd.init()
        if meeting.failures >= MOST_FAILURES:
            item.session.shouldstop = f"{MOST_FAILURES} tests failed"
    return done


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """Start the runtime again under other environment variables; put everything back at the end."""

    def start(environ: dict[str, str]) -> None:
        hvd.shutdown()
        for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
            monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        hvd.init()

    yield start
    start({})


@pytest.fixture
def rank() -> int:
    return hvd.rank()


@pytest.fixture
def size() -> int:
    return hvd.size()


@pytest.fixture
def on_gpu() -> None:
    if not ON_GPU:
        pytest.skip("about streams and devices")
