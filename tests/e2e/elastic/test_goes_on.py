"""What a job writes outlives its rounds: timelines, and what the tuner has learned."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from e2e.commands import FAST, Commands, wait_until
from e2e.elastic.running import Running
from e2e.processes import whole_rows

pytestmark = pytest.mark.timeout(300)


def test_timelines_of_earlier_rounds_are_kept(commands: Commands) -> None:
    timeline = commands.folder / "t.json"
    job = Running(
        commands, ["-np", "2", "--min-np", "1"], environ={"HOROVOD_TIMELINE": str(timeline)}
    )
    job.wait_for_step(20, size=2)
    wait_until(lambda: timeline.stat().st_size > 1000)
    before = timeline.read_bytes()
    job.kill(0)
    job.wait_for_step(21, size=1)
    job.wait_for_step(40, size=2)
    job.stop()
    code, err = job.result()
    assert code == 0, err
    assert timeline.read_bytes().startswith(before[:1000])
    others = sorted(path.name for path in commands.folder.glob("t.*.json"))
    assert others == ["t.1.json", "t.2.json"], "one for each of the next two rounds"


def test_the_tuner_goes_on_after_rank_0_was_killed(commands: Commands) -> None:
    log = commands.folder / "log.csv"
    environ = {**FAST, "HOROVOD_AUTOTUNE_LOG": str(log)}
    job = Running(
        commands, ["-np", "3", "--min-np", "1"], sleep_s=0.001, environ=environ, kind="torch"
    )
    before = wait_until(lambda: whole_rows(log)[:2] if len(whole_rows(log)) > 1 else None)
    was = job.rank(0)["round"]
    job.kill(0)
    wait_until(lambda: job.rank(0)["round"] > was and job.rank(0)["size"] == 2)
    wait_until(lambda: job.rank(0)["size"] == 3)
    wait_until(lambda: whole_rows(log)[:2] == before)
    job.wait_for_step(job.lines("step")[-1]["step"] + 400, size=3)
    job.stop()
    code, err = job.result()
    assert code == 0, err
    assert whole_rows(log)[:2] == before, "the log of 3 ranks goes on"
    assert "the job is not tuned" not in err
    with contextlib.closing(sqlite3.connect(commands.folder / "log.db")) as database:
        sizes = {size for (size,) in database.execute("select size from runs")}
    assert 3 in sizes
