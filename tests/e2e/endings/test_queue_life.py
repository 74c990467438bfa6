"""Life in a queue: jobs are ended from outside, run again, chained; nothing found is lost."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from pathlib import Path

from e2e.commands import FAST, JOB, Commands, settings_of, wait_until
from e2e.processes import kill_all, whole_rows

HERE = ("mpirun", "--bind-to", "none", "-np", "2")


def runs(log: Path) -> list[tuple[str, str]]:
    """Return (state, number of trials) of the runs in the log's database."""
    with sqlite3.connect(f"file:{log.with_suffix('.db')}?mode=ro", uri=True) as database:
        return database.execute("SELECT state, trial_count FROM run_summary").fetchall()


def cut_short(commands: Commands, log: Path, end, **environ: str) -> list[str]:
    """Tune until two trials are known, end the job by ``end(process id)``; return the rows."""
    process = commands.start(*HERE, *commands.arrays_job(100_000), **environ)
    wait_until(lambda: len(whole_rows(log)) >= 2)
    end(process.pid)
    process.communicate(timeout=30)
    assert process.returncode != 0
    return whole_rows(log)


def wall_time(pid: int) -> None:
    """End a job as a queue does at its wall time: SIGTERM to everything, then SIGKILL."""
    kill_all(pid, signal.SIGTERM)
    time.sleep(0.05)
    kill_all(pid)


def test_a_terminated_job_leaves_all_that_it_found(commands: Commands) -> None:
    log = commands.folder / "log.csv"
    environ = {**FAST, "HOROVOD_AUTOTUNE_LOG": str(log)}
    before = cut_short(commands, log, lambda pid: os.kill(pid, signal.SIGTERM), **environ)
    wait_until(lambda: runs(log)[0][0] == "unfinished")
    rows = whole_rows(log)  # the tuner's process may outlive mpirun by a trial
    assert rows[: len(before)] == before and runs(log) == [("unfinished", len(rows))]


def test_a_chained_job_goes_on_where_the_wall_time_ended_the_first(commands: Commands) -> None:
    log = commands.folder / "log.csv"
    environ = {**FAST, "HOROVOD_AUTOTUNE_LOG": str(log)}
    before = cut_short(commands, log, wall_time, **environ)
    best = commands.run("autotune", "best", log, "--format", "env")
    assert best.returncode == 0 and "tuning has not finished" in best.stderr
    result = commands.run(*HERE, *commands.arrays_job(100_000), limit_s=90, **environ)
    assert result.returncode == 0, result.stderr
    after = whole_rows(log)
    assert after[: len(before)] == before
    *earlier, last = settings_of(after)
    assert last in earlier and len(set(earlier)) == len(earlier)
    assert runs(log) == [("done", len(after) - 1)]
    listed = commands.run("autotune", "runs", log)
    assert listed.returncode == 0 and "done" in listed.stdout and "%" in listed.stdout


def test_each_job_of_a_queue_has_a_log_of_its_own_and_finds_it_again(commands: Commands) -> None:
    name = str(commands.folder / "{job_id}-{host}.csv")
    environ = {**FAST, "HOROVOD_AUTOTUNE_LOG": name, "PBS_JOBID": "12.server"}
    log = commands.folder / f"12.server-{os.uname().nodename}.csv"
    before = cut_short(commands, log, kill_all, **environ)
    again = cut_short(commands, log, kill_all, **environ)
    assert again[: len(before)] == before and len(runs(log)) == 1


def test_a_job_id_that_no_queue_gives_is_an_error_on_every_rank(commands: Commands) -> None:
    name = str(commands.folder / "{job_id}.csv")
    job = [sys.executable, JOB.with_name("settings_job.py"), commands.folder]
    result = commands.run(*HERE, *job, HOROVOD_AUTOTUNE_LOG=name, **FAST)
    assert result.returncode != 0
    assert result.stderr.count(f"HOROVOD_AUTOTUNE_LOG={name}: {{job_id}} is not known") == 2
