from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import LogBusyError, LogError
from autotune.storage import locking
from autotune.storage.locking import FileLock, holder


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log.csv")


def test_a_second_job_is_told_who_has_the_log(path: str) -> None:
    lock = FileLock(path, host="node1", pid=4242)
    with pytest.raises(LogBusyError, match=r"log\.csv.*process 4242 on host node1"):
        FileLock(path, host="node2", pid=1)
    held = holder(path)
    assert held is not None and (held.host, held.pid) == ("node1", 4242)
    lock.close()


def test_a_log_that_is_given_up_in_time_is_waited_for(path: str) -> None:
    code = (
        "import sys, time; from autotune.storage.locking import FileLock\n"
        "lock = FileLock(sys.argv[1], host='node1', pid=1); print(flush=True); time.sleep(1)"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        FileLock(path, host="node2", pid=2, patience_s=30.0).close()


def test_a_closed_lock_leaves_no_file_and_can_be_taken_again(path: str) -> None:
    for _ in range(2):
        lock = FileLock(path, host="node1", pid=1)
        assert json.loads(Path(path + ".lock").read_text())["host"] == "node1"
        lock.close()
        lock.close()
        assert not os.path.exists(path + ".lock")
        assert holder(path) is None


def test_a_file_that_a_killed_job_left_means_nothing(path: str) -> None:
    Path(path + ".lock").write_text("not even JSON")
    assert holder(path) is None
    FileLock(path, host="node1", pid=1).close()


def test_kill_releases_the_lock(path: str) -> None:
    code = (
        "import sys, time; from autotune.storage.locking import FileLock\n"
        "lock = FileLock(sys.argv[1], host='node1', pid=1); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        with pytest.raises(LogBusyError):
            FileLock(path, host="node1", pid=2)
        job.send_signal(signal.SIGKILL)
    FileLock(path, host="node1", pid=2).close()


def test_children_do_not_inherit_the_lock(path: str) -> None:
    lock = FileLock(path, host="node1", pid=1)
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        lock.close()
        Path(path + ".lock").touch()
        FileLock(path, host="node1", pid=2).close()
        child.kill()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="missing"):
        FileLock(str(tmp_path / "missing" / "log.csv"), host="node1", pid=1)


def test_without_locks_in_the_file_system_the_job_goes_on(path: str, monkeypatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(locking.fcntl, "flock", unsupported)
    lock = FileLock(path, host="node1", pid=1)
    assert not lock.supported
    lock.close()
