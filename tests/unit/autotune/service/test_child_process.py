"""The child is never waited for: full pipes, silence, garbage and death cost nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.service import child_process
from autotune.service.child_process import ServiceProcess, child_environment, reap_previous

ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line.upper())
    sys.stdout.flush()
"""


def start(code: str) -> ServiceProcess:
    return ServiceProcess((sys.executable, "-c", code), child_environment(os.environ))


def collect(service: ServiceProcess, count: int) -> list[bytes]:
    lines: list[bytes] = []
    deadline = time.monotonic() + 10
    while len(lines) < count and not service.broken and time.monotonic() < deadline:
        service.wait(1)
        lines += service.receive()
    return lines


def test_lines_go_both_ways() -> None:
    service = start(ECHO)
    service.send(b"one\n")
    service.send(b"two\n")
    assert collect(service, 2) == [b"ONE", b"TWO"]
    service.close()


def test_a_child_that_does_not_read_never_blocks_and_loses_only_droppable_lines() -> None:
    service = start("import time; time.sleep(60)")
    line = b"x" * 9999 + b"\n"
    begin = time.monotonic()
    for _ in range(200):
        service.send(line, droppable=True)
    assert time.monotonic() - begin < 2
    assert service.dropped > 0
    kept = service.dropped
    service.send(b"important\n")
    assert service.dropped == kept
    os.kill(service._pid, 9)
    service.close()
    reap_previous()


def test_the_end_of_the_child_is_seen_and_its_last_words_are_kept() -> None:
    service = start("raise RuntimeError('out of luck')")
    assert collect(service, 1) == []
    assert service.broken
    assert service.last_words() == "RuntimeError: out of luck"
    service.send(b"hello?\n")
    service.close()
    service.close()


def test_a_child_that_lingers_is_reaped_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "_unreaped", [])
    service = start("import time; time.sleep(60)")
    service.close()
    assert child_process._unreaped == [service._pid]
    begin = time.monotonic()
    reap_previous(0.1)
    assert time.monotonic() - begin < 5
    assert child_process._unreaped == []


def test_the_child_inherits_nothing() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    code = f"""
import os
try:
    os.fstat({writer})
    print("open", flush=True)
except OSError:
    print("closed", flush=True)
input()
"""
    service = start(code)
    assert collect(service, 1) == [b"closed"]
    service.close()
    os.close(reader)
    os.close(writer)


def test_the_child_shares_the_scheduling_group_of_its_parent_but_not_its_process_group() -> None:
    """Its nice value counts against the threads of its own session only."""
    service = start("input()")
    assert os.getsid(service._pid) == os.getsid(0)
    assert os.getpgid(service._pid) == service._pid != os.getpgid(0)
    group = Path("/proc/self/autogroup")
    if group.exists():
        name = group.read_text().split()[0]
        assert Path(f"/proc/{service._pid}/autogroup").read_text().split()[0] == name
    service.close()
    reap_previous()


PARENT = f"""
import os, signal, sys, time
from autotune.service.child_process import ServiceProcess, child_environment

def interrupted(signum, frame):
    service.send(b"still there\\n")
    service.wait(10)
    os.write(1, f"{{service.receive()}}\\n".encode())  # print may be under way

signal.signal(signal.SIGINT, interrupted)
service = ServiceProcess((sys.executable, "-c", {ECHO!r}), child_environment(os.environ))
service.send(b"ready\\n")
service.wait(10)
print(service.receive(), flush=True)
while True:
    time.sleep(1)
"""


def test_ctrl_c_ends_the_parent_only() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "[b'READY']\n"
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.readline() == "[b'STILL THERE']\n"
        parent.kill()


def test_the_tuner_ends_when_its_parent_is_killed() -> None:
    code = """
import os, sys, time
from autotune.service.child_process import ServiceProcess, child_environment
command = (sys.executable, "-P", "-m", "autotune.service")
service = ServiceProcess(command, child_environment(os.environ))
print(service._pid, flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        service = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while is_alive(service) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(service)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_child_is_no_part_of_the_mpi_job() -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "PRTE_X": "1", "HOME": "/h"}
    child = child_environment(environ)
    assert set(environ) & set(child) == {"HOME"}
    assert child["OPENBLAS_NUM_THREADS"] == child["OMP_NUM_THREADS"] == "1"


def test_a_program_that_does_not_exist_is_an_os_error() -> None:
    with pytest.raises(OSError, match="No such file"):
        ServiceProcess(("/no/such/program",), {})
