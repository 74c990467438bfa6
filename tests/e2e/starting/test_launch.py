"""Starting jobs: with horovodrun, with plain mpirun, alone, and ending them."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from e2e.commands import FAST, Commands, settings_of, wait_until
from e2e.processes import alive
from horovod.runner.rank_process import PLACE_VARIABLES


def test_nothing_given_leaves_every_parameter_free(commands: Commands) -> None:
    result = commands.run("horovodrun", "-np", "2", *commands.settings_job())
    assert result.returncode == 0, result.stderr
    assert [set(rank["variables"]) - set(PLACE_VARIABLES) for rank in commands.ranks(2)] == [
        set()
    ] * 2


def test_plain_mpirun_works_and_tunes(commands: Commands) -> None:
    log = commands.folder / "log.csv"
    command = ["mpirun", "-np", "2", *commands.job(100_000)]
    result = commands.run(*command, HOROVOD_AUTOTUNE_LOG=str(log), **FAST)
    assert result.returncode == 0, result.stderr
    rows = log.read_text().splitlines()[1:]
    *earlier, last = settings_of(rows)
    assert last in earlier


def test_files_of_a_killed_mpirun_do_not_hinder_the_next_of_its_number(commands: Commands) -> None:
    """Open MPI 5 names the folder of its session by its process number and wants it new."""
    place = commands.folder / "tmp"
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    last = int(Path("/proc/loadavg").read_text().split()[-1])
    coming = [last + i if last + i < most else last + i - most + 300 for i in range(3000)]
    for number in coming:
        (place / f"ompi.{number}").mkdir(parents=True, mode=0o700)
        (place / f"ompi.{number}" / f"pmix.{socket.gethostname()}.tool").write_text("stale")
    result = commands.run("horovodrun", "-np", "2", "true", TMPDIR=str(place))
    assert result.returncode == 0, result.stderr
    assert len(list(place.glob("ompi.*"))) == 3000  # their owner may live in another container
    assert len(list(place.glob("horovodrun-*"))) == 1


def test_one_rank_has_nothing_to_tune(commands: Commands) -> None:
    result = commands.run(*commands.arrays_job(20), **FAST)
    assert result.returncode == 0, result.stderr
    assert "nothing to tune" in result.stderr


def test_the_first_bad_exit_code_is_passed_on(commands: Commands) -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit(7)"]
    assert commands.run("horovodrun", "-np", "2", *failing).returncode == 7


def test_words_with_quotes_and_newlines_arrive_intact(commands: Commands) -> None:
    word = "a 'b' \"c\" $HOME;\nd"
    show = [sys.executable, "-c", "import sys; print(repr(sys.argv[1]))", word]
    result = commands.run("horovodrun", "-np", "1", *show)
    assert result.stdout.strip() == repr(word)


def test_an_interrupt_ends_all_ranks(commands: Commands) -> None:
    process = commands.start("horovodrun", "-np", "2", *commands.arrays_job(100_000, 0.01))
    files = [commands.folder / "pid-0", commands.folder / "pid-1"]
    wait_until(lambda: all(f.exists() and f.read_text() for f in files))
    pids = [int(file.read_text()) for file in files]
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(20) != 0
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)


def test_check_build_needs_no_mpi_job(commands: Commands) -> None:
    result = commands.run("horovodrun", "--check-build")
    assert result.returncode == 0
    assert "    [X] MPI" in result.stdout.splitlines()


def test_wrong_usage_is_exit_code_2(commands: Commands) -> None:
    result = commands.run("horovodrun", "-np", "2", "--cycle-time-ms", "abc", "true")
    assert result.returncode == 2
    assert "--cycle-time-ms" in result.stderr


@pytest.mark.parametrize(
    ("words", "ignored"),
    [
        (["--gloo", "--gloo-timeout-seconds", "240", "-H", "localhost:2,"], []),
        (
            ["-p", "12350", "-H", "localhost:2", "--mpi-args=-v --display-map"],
            ["--gloo-timeout-seconds"],
        ),
    ],
)
def test_words_of_job_scripts_start_and_cost_a_warning_each(
    commands: Commands, words: list[str], ignored: list[str]
) -> None:
    """Site guides' and Determined's lines; libraries read the place without an init."""
    show = "import os; print(sorted(k + '=' + v for k, v in os.environ.items() if 'CROSS' in k))"
    words = [*words, "--gloo-timeout-seconds", "120", "--start-timeout=99", "--"]
    result = commands.run(
        *("horovodrun", *words, sys.executable, "-c", show),
        HOROVOD_LOG_LEVEL="WARN",
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("HOROVOD_CROSS_RANK=0', 'HOROVOD_CROSS_SIZE=1") == 2
    found = [line for line in result.stderr.splitlines() if " is ignored" in line]
    assert [line.split(" is ignored")[0] for line in found] == [f"horovodrun: {f}" for f in ignored]


def test_settings_that_cannot_be_met_are_one_warning_and_the_job_trains(commands: Commands) -> None:
    wishes = {
        "HOROVOD_LOG_LEVEL": "loud",
        "HOROVOD_CPU_OPERATIONS": "CCL",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_THREAD_AFFINITY": "0",
    }
    unmet = (
        "HOROVOD_LOG_LEVEL=loud",
        "HOROVOD_CPU_OPERATIONS=CCL",
        "HOROVOD_THREAD_AFFINITY=0 has",
    )
    result = commands.run("horovodrun", "-np", "2", *commands.arrays_job(2), **wishes)
    assert result.returncode == 0, result.stderr
    for name in unmet:
        assert result.stderr.count(name) == 1, result.stderr
    assert "HOROVOD_CONTROLLER" not in result.stderr  # it is met: horovodrun starts without MPI
    words = ["mpirun", "-np", "2", *commands.settings_job()]
    result = commands.run(*words, HOROVOD_CONTROLLER="gloo")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("HOROVOD_CONTROLLER=gloo is not met: the job uses MPI") == 1
