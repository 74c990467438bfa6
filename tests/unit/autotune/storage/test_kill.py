"""``kill -9`` at any moment loses no finished trial, and the next job repairs what was half done.

A child process is killed before its n-th change of a file, for every n; and at random moments, from
outside.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.space import HOROVOD
from autotune.storage import Replay, Resume, open_logs, read_log
from autotune.storage.csv_log import row_text
from autotune.trial import RunState

HEADER = ",".join(HOROVOD.columns)

TRIALS = 2
CHANGES = ("write", "ftruncate", "replace", "link", "unlink")


def job(folder: Path, make_run, make_trial, make_sample, *, retune: bool = False) -> Iterator[int]:
    """Tune to the end, or go on with what is there; yields each trial once it is recorded."""
    logs = open_logs(str(folder / "log.csv"), None, host="node1", pid=1)
    start = logs.start(make_run())
    if retune and isinstance(start, Replay):
        start = logs.start(make_run(), retune=True)
    if not isinstance(start, Replay):
        done = len(start.trials) if isinstance(start, Resume) else 0
        for number in range(done, TRIALS):
            logs.add_sample(make_sample(number))
            logs.add_trial(make_trial(number, 10.0 + number + retune))
            yield number
        logs.finish_run(RunState.DONE, make_trial(1, 11.0 + retune))
    logs.close()


def die_before(number: int) -> None:
    """Kill this process before its ``number``-th change of a file or commit."""
    left = [number]

    def count(*_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(change: Callable) -> Callable:
        return lambda *arguments: (count(), change(*arguments))[1]

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    connect = sqlite3.connect

    def traced(*arguments: object, **options: object) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(lambda sql: count() if "COMMIT" in sql.upper() else None)
        return connection

    sqlite3.connect = traced


def run_killed(number: int, work: Callable[[], Iterator[int]]) -> tuple[bool, list[int]]:
    """Return whether the child was killed, and the trials that it had recorded by then."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        tell = os.write
        try:
            die_before(number)
            for trial in work():
                tell(send, bytes([trial]))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        recorded = list(pipe.read())
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the job failed before change {number}"
    return status != 0, recorded


def check_nothing_lost(folder: Path, recorded: list[int]) -> None:
    for name in ("log.csv", "log.db") if recorded else ():
        ids = [trial.trial_id for trial in read_log(str(folder / name)).trials]
        assert set(recorded) <= set(ids)
        assert len(ids) == len(set(ids))


@pytest.fixture
def work(make_run, make_trial, make_sample) -> Callable[..., Iterator[int]]:
    return lambda folder, **how: job(folder, make_run, make_trial, make_sample, **how)


def test_a_job_killed_between_any_two_writes_goes_on(tmp_path: Path, work, make_trial) -> None:
    rows = [row_text(make_trial(number, 10.0 + number)) for number in range(TRIALS)]
    number, killed = 0, True
    while killed:
        folder = tmp_path / str(number)
        folder.mkdir()
        killed, recorded = run_killed(number, lambda: work(folder))  # noqa: B023
        check_nothing_lost(folder, recorded)
        list(work(folder))
        assert (folder / "log.csv").read_text().split() == [HEADER, *rows, rows[1]]
        assert len(read_log(str(folder / "log.db")).trials) == TRIALS
        assert sorted(os.listdir(folder)) == ["log.csv", "log.db"]
        number += 1
    assert number > 10


def test_moving_a_log_aside_can_be_killed_anywhere(tmp_path: Path, work, make_trial) -> None:
    other = f"{HEADER}\n1,1,0,1,1,1\n1,1,0,1,1,1\n"
    number, killed = random.randrange(2), True  # every other change, in turn over the runs
    while killed:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "log.csv").write_text(other)
        killed, recorded = run_killed(number, lambda: work(folder))  # noqa: B023
        check_nothing_lost(folder, recorded)
        list(work(folder))
        assert read_log(str(folder / "log.csv")).best == make_trial(1, 11.0)
        assert (folder / "log.csv.1").read_text() == other
        assert sorted(os.listdir(folder)) == ["log.csv", "log.csv.1", "log.db"]
        number += 2


def test_a_retune_killed_anywhere_leaves_a_best_line(tmp_path: Path, work, make_trial) -> None:
    number, killed = random.randrange(2), True  # every other change, in turn over the runs
    while killed:
        folder = tmp_path / str(number)
        folder.mkdir()
        list(work(folder))
        killed, _ = run_killed(number, lambda: work(folder, retune=True))  # noqa: B023
        best = read_log(str(folder / "log.csv"))
        assert best.finished
        assert best.best in (make_trial(1, 11.0), make_trial(1, 12.0))
        list(work(folder))
        assert read_log(str(folder / "log.csv")).finished
        assert not set(os.listdir(folder)) - {"log.csv", "log.csv.1", "log.db"}
        number += 2


JOB = """
import sys
from autotune.storage import Resume, open_logs
from autotune.storage.contract import RunInfo
from autotune.trial import CommParams, Fingerprint, Trial
logs = open_logs(sys.argv[1], None, host="node1", pid=1)
fingerprint = Fingerprint(
    tensors=(), size=2, local_size=2, cross_size=1, versions={}, fixed={}
)
start = logs.start(RunInfo(fingerprint=fingerprint, host="node1", pid=1, seed=1))
print("ready", flush=True)
for number in range(len(start.trials) if isinstance(start, Resume) else 0, 10**6):
    params = CommParams(fusion_threshold_bytes=number)
    logs.add_trial(Trial(trial_id=number, params=params, score=1.0 + number))
    print(number, flush=True)
"""


def test_killing_a_process_at_random_moments_loses_no_trial(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    told = -1
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", JOB, str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(random.uniform(0.05, 0.25))
            process.kill()
            lines = [line for line in process.stdout if line.endswith("\n")]
        told = int(lines[-1]) if lines else told
        for name in (path, tmp_path / "log.db"):
            ids = [trial.trial_id for trial in read_log(str(name)).trials]
            assert ids == list(range(len(ids)))
            assert len(ids) > told
    assert told > 5
