"""kill -9 of the job, of its tuner: no finished trial is lost, training goes on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from e2e.commands import FAST, Commands, settings_of, wait_until

SLOW = {**FAST, "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "6"}


def rows(log: Path) -> list[str]:
    """Return the whole rows of the log."""
    if not log.exists():
        return []
    return [line for line in log.read_text().split("\n")[:-1] if line and line[0].isdigit()]


def service_of(pid: int) -> int:
    """Return the process of the tuner that rank 0 (``pid``) started, or 0."""
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            words = (entry / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if int(stat[1]) == pid and b"autotune.service" in words:
            return int(entry.name)
    return 0


def test_a_killed_job_loses_no_trial_and_goes_on_from_there(commands: Commands) -> None:
    log = commands.folder / "log.csv"
    environ = {**SLOW, "HOROVOD_AUTOTUNE_LOG": str(log)}
    process = commands.start("horovodrun", "-np", "2", *commands.arrays_job(100_000), **environ)
    wait_until(lambda: len(rows(log)) >= 2)
    for rank in (0, 1):
        os.kill(int((commands.folder / f"pid-{rank}").read_text()), signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode != 0
    before = rows(log)
    result = commands.run(
        "horovodrun", "-np", "2", *commands.arrays_job(100_000), limit_s=90, **environ
    )
    assert result.returncode == 0, result.stderr
    after = rows(log)
    assert after[: len(before)] == before
    *earlier, last = settings_of(after)
    assert last in earlier
    assert len({row.rsplit(",", 1)[0] for row in after}) == len(after) - 1


def test_training_goes_on_when_the_tuner_is_killed(commands: Commands) -> None:
    log = commands.folder / "log.csv"
    environ = {**SLOW, "HOROVOD_AUTOTUNE_LOG": str(log)}
    process = commands.start(
        "horovodrun", "-np", "2", *commands.arrays_job(100_000, 0.005), **environ
    )
    wait_until(lambda: len(rows(log)) >= 1)
    service = service_of(int((commands.folder / "pid-0").read_text()))
    assert service, "the tuner is a process of its own"
    os.kill(service, signal.SIGKILL)
    time.sleep(1)
    (commands.folder / "enough").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err.count("training goes on") == 1
    first, second = commands.ranks(2)
    assert first["params"] == second["params"]
    assert first["state"] == "lost"
