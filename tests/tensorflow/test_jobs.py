"""Whole jobs of TensorFlow: tuned, with a rank that dies, with unequal ends."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from e2e.commands import FAST, Commands, wait_until

pytestmark = pytest.mark.timeout(300)  # three ranks import TensorFlow on as few cores as there are

HERE = Path(__file__).parent
RANKS = [sys.executable, str(HERE.parent / "tiers/tcp_ranks.py"), "-n"]


def job(size: int, kind: str, commands: Commands) -> list[str | Path]:
    return [*RANKS, str(size), sys.executable, HERE / "job.py", kind, commands.folder]


def said(commands: Commands, size: int) -> list[str]:
    return [(commands.folder / f"rank-{rank}").read_text() for rank in range(size)]


@pytest.mark.parametrize("kind", ["steps", "epochs"])
def test_a_job_is_tuned_with_no_line_for_it(kind: str, commands: Commands) -> None:
    log = commands.folder / "log.csv"
    output = commands.run(
        *job(2, kind, commands), limit_s=240, HOROVOD_AUTOTUNE_LOG=str(log), **FAST
    )
    assert output.returncode == 0, output.stderr
    assert said(commands, 2)[0] == "done", output.stderr
    rows = log.read_text().splitlines()[1:]
    assert len(rows) >= 2
    (score,) = {row.rpartition(",")[2] for row in rows[:1]}
    assert float(score) > 0
    assert "nothing to gain" not in output.stderr


def test_a_killed_rank_fails_the_operations_of_the_others(commands: Commands) -> None:
    process = commands.start(*job(3, "endless", commands))
    files = [commands.folder / f"pid-{rank}" for rank in range(3)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files), 120)
    time.sleep(0.5)
    killed = time.monotonic()
    os.kill(int(files[1].read_text()), signal.SIGKILL)
    _, err = process.communicate(timeout=40)
    assert time.monotonic() - killed < 10
    assert process.returncode == 128 + signal.SIGKILL, err
    for survivor in (0, 2):
        text = (commands.folder / f"rank-{survivor}").read_text()
        assert re.search(r"rank 1 .*ended its process", text)


def test_ranks_that_end_one_after_the_other_do_not_hang(commands: Commands) -> None:
    output = commands.run(*job(3, "unequal", commands), limit_s=150)
    assert output.returncode == 0, output.stderr
    first, *others = said(commands, 3)
    assert first == "through"
    for text in others:
        assert re.search("was shut down", text)
