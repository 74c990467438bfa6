"""How jobs end: first failing rank shown, signals passed on once, exit codes faithful."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from e2e.commands import WITH_TESTS, Commands, wait_until
from e2e.processes import alive
from horovod.runner.rank_process import encode_record

ONE_FAILS = """
import os, sys, time
print("line of rank", os.environ["HOROVOD_RANK"], flush=True)
if os.environ["HOROVOD_RANK"] == "1":
    raise ValueError("this is why")
time.sleep(60)
"""
SLEEPERS = """
import os, pathlib, signal, time
def stop(number, frame):
    raise SystemExit(3)
signal.signal(signal.SIGTERM, stop)
path = pathlib.Path("pid-" + os.environ["HOROVOD_RANK"])
path.with_suffix(".part").write_text(str(os.getpid()))
path.with_suffix(".part").rename(path)
time.sleep(60)
"""

CAUGHT = """
import signal, sys, time, numpy
from e2e import on_arrays as hvd
from horovod.common import mpi
hvd.init()
mpi.CAUGHT_PATIENCE_SECONDS = float(sys.argv[2])
if hvd.rank() == 1 and "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    if hvd.rank() == 0:
        hvd.allreduce_(numpy.ones(3), "skipped")
    time.sleep(float(sys.argv[1]))
except hvd.HorovodInternalError:
    print("caught", flush=True)
"""
UNEVEN = """
import numpy
from e2e import on_arrays as hvd
hvd.init()
for step in range(10 + 3 * hvd.rank()):
    hvd.allreduce_(numpy.ones(3), "x")
"""
STALLS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}


@pytest.fixture(params=["--mpi", "--gloo"])
def launcher(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The words before the options, for both ways of starting ranks."""
    return ("horovodrun", request.param)


def sleeping_pids(folder: Path) -> list[int]:
    files = [folder / "pid-0", folder / "pid-1"]
    wait_until(lambda: all(file.exists() for file in files), 20)
    return [int(file.read_text()) for file in files]


def test_the_first_failing_ranks_last_lines_are_shown(
    commands: Commands, launcher: tuple[str, ...]
) -> None:
    begun = time.monotonic()
    result = commands.run(*launcher, "-np", "2", sys.executable, "-c", ONE_FAILS)
    assert result.returncode == 1
    assert time.monotonic() - begun < 20
    shown = result.stderr.split("horovodrun: rank 1 on ")[1]
    assert "was the first to fail: exit code 1; its last lines:" in shown
    assert "    | line of rank 1" in shown
    assert "    | ValueError: this is why" in shown
    assert "\x1e" not in result.stderr


def test_a_rank_that_is_killed_is_named_with_its_signal(
    commands: Commands, launcher: tuple[str, ...]
) -> None:
    process = commands.start(*launcher, "-np", "2", sys.executable, "-c", SLEEPERS)
    pids = sleeping_pids(commands.folder)
    os.kill(pids[1], signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGKILL
    assert re.search(r"rank 1 on \S+ was the first to fail: ended by signal 9 \(SIGKILL\)", err)
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)


@pytest.mark.parametrize("other", ["", "deaf"])
def test_a_rank_that_leaves_after_a_caught_error_is_the_one_that_is_named(
    other: str, commands: Commands
) -> None:
    words = ["horovodrun", "-np", "2", sys.executable, "-c", CAUGHT]
    result = commands.run(*words, "50", "1", other, **STALLS, **WITH_TESTS)
    assert result.returncode != 0 and "caught" in result.stdout
    assert re.search(r"rank 0 on \S+ was the first to fail: exit code 0, but", result.stderr)


def test_ranks_that_have_caught_an_error_and_end_together_end_mpi_too(
    commands: Commands,
) -> None:
    words = ["horovodrun", "-np", "2", sys.executable, "-c", CAUGHT]
    result = commands.run(*words, "8", "50", **STALLS, **WITH_TESTS)
    assert result.returncode == 0 and "caught" in result.stdout
    assert "first to fail" not in result.stderr and "finalize" not in result.stderr


def test_ranks_with_more_steps_than_others_hear_who_has_ended_and_of_join(
    commands: Commands, launcher: tuple[str, ...]
) -> None:
    result = commands.run(*launcher, "-np", "2", sys.executable, "-c", UNEVEN, **WITH_TESTS)
    assert result.returncode == 1
    failed = r"allreduce 'allreduce\.x' failed: .*rank 0 shut down after 10 operations"
    last = [line for line in result.stderr.splitlines() if re.search(failed, line)]
    assert last and all("hvd.join()" in line for line in last)


def test_a_terminated_launcher_ends_all_ranks(
    commands: Commands, launcher: tuple[str, ...]
) -> None:
    process = commands.start(*launcher, "-np", "2", sys.executable, "-c", SLEEPERS)
    pids = sleeping_pids(commands.folder)
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "first to fail" not in err
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)


def test_ranks_do_not_survive_a_launcher_that_is_killed(
    commands: Commands, launcher: tuple[str, ...]
) -> None:
    process = commands.start(*launcher, "-np", "2", sys.executable, "-c", SLEEPERS)
    pids = sleeping_pids(commands.folder)
    process.kill()
    wait_until(lambda: not any(alive(pid) for pid in pids), 20)


def test_control_c_in_a_terminal_ends_all_ranks(
    commands: Commands, launcher: tuple[str, ...]
) -> None:
    command = [str(Path(sys.executable).with_name(launcher[0])), *launcher[1:], "-np", "2"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(commands.folder)
        os.execvpe(command[0], [*command, sys.executable, "-c", SLEEPERS], commands.environment({}))
    try:
        pids = sleeping_pids(commands.folder)
        os.write(terminal, b"\x03")
        status = wait_until(lambda: drained(terminal, pid), 30)
        assert os.waitstatus_to_exitcode(status) != 0
        wait_until(lambda: not any(alive(pid) for pid in pids), 10)
    finally:
        os.close(terminal)


def drained(terminal: int, pid: int) -> int | None:
    """Read what the terminal shows; the status of process ``pid`` once it has ended."""
    if select.select([terminal], [], [], 0)[0]:
        try:
            os.read(terminal, 1 << 16)
        except OSError:
            pass
    ended, status = os.waitpid(pid, os.WNOHANG)
    return status if ended else None


def test_every_rank_has_its_files_in_horovods_layout(
    commands: Commands, launcher: tuple[str, ...]
) -> None:
    code = "import os, sys; r = os.environ['HOROVOD_RANK']; print(r); sys.exit('e' + r)"
    words = [*launcher, "-np", "2", "--output-filename", "out", sys.executable, "-c", code]
    result = commands.run(*words)
    assert result.returncode == 1
    files = {
        str(path.relative_to(commands.folder)): path.read_text()
        for path in (commands.folder / "out").rglob("std*")
    }
    first = result.stderr.split("horovodrun: rank ")[1][0]
    assert files[f"out/rank.{first}/stdout"] == f"{first}\n"
    assert files[f"out/rank.{first}/stderr"] == f"e{first}\n"


def test_long_output_without_newlines_is_unchanged(
    commands: Commands, launcher: tuple[str, ...]
) -> None:
    code = "import sys; sys.stdout.write('a\\tb' * 20000)"
    result = commands.run(*launcher, "-np", "1", sys.executable, "-c", code)
    assert (result.returncode, result.stdout) == (0, "a\tb" * 20000)


def test_values_with_quotes_dots_and_newlines_arrive_intact(
    commands: Commands, launcher: tuple[str, ...]
) -> None:
    value = "a.b 'c' \"d\" $(e) `f`\n-x G=h;\\n\u00e4"
    code = "import os, sys; sys.stdout.write(repr(os.environ['HOROVOD_HOSTNAME']) + '\\n')"
    command = [*launcher, "-np", "2", sys.executable, "-c", code]
    result = commands.run(*command, HOROVOD_HOSTNAME=value)
    assert result.stdout.splitlines() == [repr(value)] * 2


def test_a_failing_rank_ends_the_job_even_where_mpirun_waits(commands: Commands) -> None:
    """MPICH's mpirun waits for ranks that never called MPI_Init."""
    record = encode_record({"rank": 1, "host": "h", "code": 7, "told": False, "tail": ["why"]})
    patient = commands.folder / "patient.py"
    patient.write_text(f"import os, time\nos.write(2, {record!r})\ntime.sleep(60)\n")
    code = (
        "import os, sys; from horovod.runner.supervise import supervise\n"
        f"sys.exit(supervise([sys.executable, {str(patient)!r}], os.environ, size=2))"
    )
    begun = time.monotonic()
    result = commands.run(sys.executable, "-c", code)
    assert result.returncode == 7
    assert result.stderr.endswith("exit code 7; its last lines:\n    | why\n")
    assert time.monotonic() - begun < 30


def start_without_ranks(commands: Commands, seconds: float, *options: str):
    """Run ``horovodrun -np 3`` with an mpirun that starts nothing for ``seconds``."""
    slow = commands.folder / "mpirun"
    version = "[ $1 = --version ] && echo 'mpirun (Open MPI) 5.0.1' && exit"
    slow.write_text(f"#!/bin/sh\n{version}\nexec sleep {seconds}\n")
    slow.chmod(0o755)
    code = (
        "import sys, pathlib; from horovod.runner import launch, probe, supervise\n"
        f"probe.find_mpirun = lambda *_: pathlib.Path({str(slow)!r})\n"
        "supervise.START_WARNING_SECONDS = 0.5\n"
        "sys.exit(launch.main(sys.argv[1:]))"
    )
    return commands.run(sys.executable, "-c", code, "-np", "3", *options, "true")


def test_ranks_that_do_not_start_in_time_are_named(commands: Commands) -> None:
    begun = time.monotonic()
    result = start_without_ranks(commands, 30, "--start-timeout", "0.5")
    assert result.returncode != 0
    assert "after 0.5 s 3 of 3 ranks have not started (rank 0, 1, 2)" in result.stderr
    assert time.monotonic() - begun < 20


def test_without_a_limit_ranks_that_have_not_started_are_named_and_waited_for(
    commands: Commands,
) -> None:
    result = start_without_ranks(commands, 3)
    assert result.returncode == 0
    assert "3 of 3 ranks have not started (rank 0, 1, 2)" in result.stderr
    assert "The job goes on waiting" in result.stderr
