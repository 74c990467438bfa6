"""A rank that dies or hangs: the job ends, in seconds, and those who are left know why."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from e2e.commands import Commands, wait_until

PEERS = Path(__file__).with_name("peers.py")
WITHOUT_MPI = [sys.executable, str(Path(__file__).parents[2] / "tiers/tcp_ranks.py"), "-n", "3"]
LAUNCHERS = {
    "mpirun": ["mpirun", "-n", "3", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"],
    "horovodrun": ["horovodrun", "-np", "3"],
    "without MPI": WITHOUT_MPI,
}
A_HOST_EACH = ["sh", "-c", 'HOROVOD_HOSTNAME=host-$HOROVOD_RANK exec "$@"', "sh"]


def pids(folder: Path) -> list[int]:
    files = [folder / f"pid-{rank}" for rank in range(3)]
    wait_until(lambda: all(file.exists() for file in files), 40)
    return [int(file.read_text()) for file in files]


def test_a_rank_killed_in_a_transfer_over_tcp_ends_the_job_and_the_others_know_which(
    commands: Commands,
) -> None:
    words = [*WITHOUT_MPI, *A_HOST_EACH, sys.executable, PEERS, "transfer", commands.folder]
    process = commands.start(*words)
    victim = pids(commands.folder)[1]
    time.sleep(1)
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - killed < 10
    assert process.returncode == 128 + signal.SIGKILL, err
    for survivor in (0, 2):
        text = (commands.folder / f"error-{survivor}").read_text()
        assert re.search(r"rank 1 on host-1 ended its process .*\(seen on rank [02] of 3\)", text)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_rank_ends_the_job_and_the_others_know_which(
    launcher: str, commands: Commands
) -> None:
    process = commands.start(*LAUNCHERS[launcher], sys.executable, PEERS, "train", commands.folder)
    victim = pids(commands.folder)[1]
    time.sleep(0.5)
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - killed < 10
    assert process.returncode != 0
    told = sorted(commands.folder.glob("error-[02]"))
    # mpirun ends the survivors as soon as it sees the end of rank 1: one may have no time to speak.
    assert len(told) >= (2 if launcher == "without MPI" else 1), err
    for file in told:
        expected = r"rank 1 on \S+ ended its process .*\(seen on rank [02] of 3\)"
        assert re.search(expected, file.read_text())
    if launcher != "mpirun":
        assert process.returncode == 128 + signal.SIGKILL
    if launcher == "horovodrun":
        assert "rank 1 on" in err


@pytest.mark.parametrize("launcher", ["horovodrun", "without MPI"])
def test_a_killed_rank_that_speaks_for_another_is_named_on_both_sides(
    launcher: str, commands: Commands
) -> None:
    words = [*LAUNCHERS[launcher], sys.executable, PEERS, "train", commands.folder]
    process = commands.start(*words, HOROVOD_CONTROL_FANOUT="1")
    victim = pids(commands.folder)[1]
    time.sleep(0.5)
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0
    told = sorted(commands.folder.glob("error-[02]"))
    assert len(told) >= (2 if launcher == "without MPI" else 1), err
    for file in told:
        expected = r"rank 1 on \S+ ended its process .*\(seen on rank [02] of 3\)"
        assert re.search(expected, file.read_text())


@pytest.mark.parametrize("launcher", ["mpirun", "without MPI"])
def test_a_killed_rank_is_seen_though_a_child_that_it_forked_lives(
    launcher: str, commands: Commands
) -> None:
    words = [*LAUNCHERS[launcher], sys.executable, PEERS, "parent", commands.folder]
    process = commands.start(*words)
    victim = pids(commands.folder)[1]
    wait_until(lambda: (commands.folder / "child").exists())
    child = int((commands.folder / "child").read_text())
    try:
        time.sleep(0.5)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: all((commands.folder / f"error-{r}").exists() for r in (0, 2)), 10)
        os.kill(child, 0)  # it is still there
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate(timeout=30)
    for survivor in (0, 2):
        text = (commands.folder / f"error-{survivor}").read_text()
        assert re.search(r"rank 1( on \S+)? ended its process .*\(seen on rank [02] of 3\)", text)


def test_an_interrupt_in_a_wait_ends_the_job(commands: Commands) -> None:
    process = commands.start(*LAUNCHERS["mpirun"], sys.executable, PEERS, "skip", commands.folder)
    waiting = pids(commands.folder)[0]
    wait_until(lambda: (commands.folder / "begin-0").exists())
    time.sleep(1)
    begun = time.monotonic()
    os.kill(waiting, signal.SIGINT)
    _, err = process.communicate(timeout=40)
    assert time.monotonic() - begun < 10
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err


@pytest.mark.parametrize("launcher", ["mpirun", "without MPI"])
def test_forked_children_that_end_leave_the_job_alone(launcher: str, commands: Commands) -> None:
    words = [*LAUNCHERS[launcher], sys.executable, PEERS, "fork", commands.folder]
    result = commands.run(*words, limit_s=60)
    assert result.returncode == 0, result.stderr
    assert all((commands.folder / f"done-{rank}").exists() for rank in range(3))


@pytest.mark.parametrize("launcher", ["mpirun", "mpirun, the script starts MPI", "without MPI"])
def test_a_job_that_has_begun_anew_after_an_error_ends_like_any_other(
    launcher: str, commands: Commands
) -> None:
    """With MPI's finalize, where it has one, and exit code 0."""
    times = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    launcher, _, starts_mpi = launcher.partition(", ")
    if starts_mpi:
        times["PEERS_START_MPI"] = "1"
    words = [*LAUNCHERS[launcher], sys.executable, PEERS, "recover", commands.folder]
    result = commands.run(*words, limit_s=60, **times)
    assert result.returncode == 0, result.stderr
    assert all((commands.folder / f"done-{rank}").exists() for rank in range(3))


@pytest.fixture
def stalled(commands: Commands) -> tuple[str, dict[int, tuple[float, str]], float, int]:
    """V6: stderr, {rank: (time, error)}, when the skipping began, exit code."""
    times = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    words = [*LAUNCHERS["mpirun"], sys.executable, PEERS, "skip", commands.folder]
    process = commands.start(*words, **times)
    _, err = process.communicate(timeout=60)
    errors = {}
    for rank in (0, 1):
        when, text = (commands.folder / f"error-{rank}").read_text().split(" ", 1)
        errors[rank] = (float(when), text)
    begun = max(float((commands.folder / f"begin-{r}").read_text()) for r in (0, 1))
    return err, errors, begun, process.returncode


def test_a_skipped_tensor_is_named_with_its_missing_ranks_and_ends_the_job(
    stalled: tuple[str, dict[int, tuple[float, str]], float, int],
) -> None:
    err, errors, begun, code = stalled
    for name in ("skipped", "cached"):
        assert re.search(rf"'allreduce\.{name}' has waited 1 s for rank 2 .*skip it", err), err
    assert code != 0
    for when, text in errors.values():
        assert re.search(
            r"'allreduce\.(skipped|cached)' has waited 3 s for rank 2 on \S+ \(of 3\)", text
        )
        assert when - begun > 2.5
