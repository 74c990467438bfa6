"""A rank that is stopped inside a transfer: it is named, it may go on, or the job ends in time."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.commands import Commands, wait_until

PEERS = Path(__file__).with_name("peers.py")
STARTER = Path(__file__).parents[2] / "tiers/tcp_ranks.py"
ONE_PER_HOST = 'HOROVOD_HOSTNAME=host-${HOROVOD_RANK:-$OMPI_COMM_WORLD_RANK} exec "$@"'
A_HOST_EACH = ["sh", "-c", ONE_PER_HOST, "sh"]
HOSTS = {"one host": [], "a host each": A_HOST_EACH, "without MPI": A_HOST_EACH}


def start(commands: Commands, hosts: str, **environ: str) -> subprocess.Popen[str]:
    words = ["mpirun", "-n", "3", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    if hosts == "without MPI":
        words = [sys.executable, str(STARTER), "-n", "3"]
    words += [*HOSTS[hosts], sys.executable, str(PEERS), "transfer", str(commands.folder)]
    return commands.start(*words, **environ)


def stop(folder: Path, rank: int) -> int:
    """Stop a rank some steps after all have started and return its process."""
    files = [folder / f"pid-{each}" for each in range(3)]
    wait_until(lambda: all(file.exists() for file in files), 120)
    time.sleep(1)
    number = int(files[rank].read_text())
    os.kill(number, signal.SIGSTOP)
    return number


def host_of(rank: int, hosts: str) -> str:
    return socket.gethostname() if hosts == "one host" else f"host-{rank}"


@pytest.mark.parametrize(
    ("rank", "hosts"), [(0, "a host each"), (2, "one host"), (2, "without MPI")]
)
def test_a_rank_stopped_in_a_transfer_is_named_and_the_job_ends_at_the_shutdown_time(
    rank: int, hosts: str, commands: Commands
) -> None:
    times = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "8", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10"}
    process = start(commands, hosts, **times)
    stopped = stop(commands.folder, rank)
    try:
        _, err = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            os.kill(stopped, signal.SIGCONT)
    assert process.returncode != 0
    named = f"rank {rank} on {host_of(rank, hosts)} (of 3)"
    # The moment may lie between two transfers: the tensor then waits for the rank, or all do.
    how = "(allreduce '.*' has (been under way .*|waited 8 s for ))?"
    warning = rf"WARNING rank \d: {how}{re.escape(named)}"
    assert re.search(warning, err), err
    # The launcher may end the other one when the first has raised.
    errors = [file.read_text() for file in commands.folder.glob("error-[0-9]")]
    assert errors
    assert all(named in text for text in errors), errors


def test_a_stopped_rank_that_speaks_for_another_is_named_and_the_other_is_not(
    commands: Commands,
) -> None:
    times = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "8", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10"}
    process = start(commands, "one host", HOROVOD_CONTROL_FANOUT="1", **times)
    stopped = stop(commands.folder, 1)
    try:
        _, err = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            os.kill(stopped, signal.SIGCONT)
    assert process.returncode != 0
    errors = [file.read_text() for file in commands.folder.glob("error-[0-9]")]
    assert errors, err
    named = f"rank 1 on {host_of(1, 'one host')} (of 3)"
    assert all(named in text for text in errors), errors


def test_a_rank_that_is_stopped_and_goes_on_is_only_warned_of(
    commands: Commands,
) -> None:
    process = start(commands, "a host each", HOROVOD_STALL_CHECK_TIME_SECONDS="8")
    stopped = stop(commands.folder, 1)
    time.sleep(20)
    os.kill(stopped, signal.SIGCONT)
    (commands.folder / "enough").touch()
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert all((commands.folder / f"done-{rank}").exists() for rank in range(3))
    assert re.search(r"WARNING rank 0: .*rank 1 on host-1", err), err
