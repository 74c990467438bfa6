"""A rank that dies while the others are inside NCCL: they learn it, and the job ends."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from e2e.commands import wait_until
from gpu.jobs.conftest import RANKS, Jobs

PEERS = Path(__file__).with_name("peers.py")
FIRST = Path(__file__).with_name("first_alltoall.py")
STARTS, MOST_MS = 15, 20.0
HANG_S = 60
PATIENCE_S = 20
"""How long mpirun lets the survivors live after its first signal."""


@pytest.mark.limit(150)
@pytest.mark.parametrize("how", ["killed", "exits"])
def test_the_survivors_raise_and_the_job_ends(how: str, jobs: Jobs) -> None:
    variables = {
        f"{prefix}_MCA_odls_base_sigkill_timeout": str(PATIENCE_S) for prefix in ("OMPI", "PRTE")
    }
    process = jobs.start(*jobs.words(PEERS, how, jobs.folder), **variables)
    files = [jobs.folder / f"pid-{rank}" for rank in range(RANKS)]
    wait_until(lambda: all(file.exists() for file in files) or process.poll() is not None, 60)
    assert process.poll() is None or how == "exits", process.communicate()[1]
    if how == "killed":
        time.sleep(0.5)
        os.kill(int(files[-1].read_text()), signal.SIGKILL)
        died = time.time()
    _, err = process.communicate(timeout=HANG_S)
    ended = time.time()
    if how == "exits":
        died = float(_text(jobs, "died"))
    assert process.returncode != 0
    for rank in range(RANKS - 1):
        assert (jobs.folder / f"error-{rank}").exists(), err[-3000:]
        when, text = _text(jobs, f"error-{rank}").split(" ", 1)
        print(f"rank {rank} was told after {float(when) - died:.1f} s: {text}")
        assert re.search(rf"rank {RANKS - 1}\b", text)
        assert float(when) - died < 10
    print(f"the job ended after {ended - died:.1f} s")


@pytest.mark.limit(200)
def test_a_rank_that_dies_while_the_ranks_connect_does_not_hold_up_the_others(jobs: Jobs) -> None:
    variables = {
        f"{prefix}_MCA_odls_base_sigkill_timeout": str(PATIENCE_S) for prefix in ("OMPI", "PRTE")
    }
    started = []
    for i in range(STARTS):
        folder = jobs.folder / str(i)
        folder.mkdir()
        words = jobs.words(FIRST, str(MOST_MS * i / (STARTS - 1)), folder)
        started.append((folder, jobs.start(*words, **variables)))
    for folder, process in started:
        _, err = process.communicate(timeout=2 * HANG_S)
        assert process.returncode != 0
        assert (folder / "error-0").exists(), err[-3000:]
        seconds, text = (folder / "error-0").read_text().split(" ", 1)
        print(f"{folder.name}: rank 0 was told after {float(seconds):.1f} s: {text}")
        assert float(seconds) < 10


def _text(jobs: Jobs, name: str) -> str:
    return (jobs.folder / name).read_text()
