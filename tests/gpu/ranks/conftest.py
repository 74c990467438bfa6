"""Every rank runs the same tests on its own GPU; the ranks meet after each."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from gpu.device import ON_GPU, take_gpu
from tiers.between_ranks import WITHOUT_MPI, abort, gather, use_own_temporary_folder
from tiers.rank_fixtures import (  # noqa: F401
    rank,
    restart,
    size,
)

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
        if WITHOUT_MPI:
            text = "the others do not end this test"
            timer = threading.Timer(15 if self.failed else 90, abort, [text])
            timer.start()
            anyone = any(gather(self.failed))
            timer.cancel()
            self.failed = False
            self.failures += anyone
            return anyone
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
    use_own_temporary_folder(hvd.rank())


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
def on_gpu() -> None:
    if not ON_GPU:
        pytest.skip("about streams and devices")
