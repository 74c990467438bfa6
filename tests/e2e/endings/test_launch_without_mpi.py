"""``horovodrun --gloo``: ranks on this host and, over ssh, on others; how they start and end.

There is no other host here: a program called ssh runs the command on this one, with a clean
environment, in another folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.commands import Commands, wait_until
from e2e.endings.test_launch_failure import SLEEPERS
from e2e.processes import alive, descendants

# Rank 1 fails when rank 0 runs.
FAILING = """
while os.environ["HOROVOD_RANK"] == "1":
    1 / (not pathlib.Path("pid-0").exists())
"""

SSH = """#!/bin/sh
printf '%s\\n' "$*" >> "$SSH_LOG"
while [ "${1#-}" != "$1" ]; do
  case "$1" in -o|-p|-i) shift 2 ;; -G) echo "hostname localhost"; exit ;; *) shift ;; esac
done
host="$1"; shift
[ "$host" = down ] && { echo "ssh: connect to host down port 22: No route to host" >&2; exit 255; }
cd / && exec env -i PATH=/usr/bin:/bin HOME="$HOME" SSH_CONNECTION=x sh -c "$*"
"""
SHOW = """
import json, os, sys
names = ("HOROVOD_SECRET_KEY", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "TORCH_SOME_VALUE", "SECRET_TOKEN")
shown = {name: os.environ.get(name) for name in names}
places = [where + what for where in ("", "LOCAL_", "CROSS_") for what in ("RANK", "SIZE")]
shown["place"] = [int(os.environ["HOROVOD_" + place]) for place in places]
shown["over_ssh"] = "SSH_CONNECTION" in os.environ
print(json.dumps({**shown, "folder": os.getcwd()}))
"""
VALUE = "a 'b' \"c\" $HOME;\n-x d.e"


@pytest.fixture
def far(commands: Commands) -> dict[str, str]:
    """The environment in which ``ssh`` reaches every host but "down"."""
    folder = commands.folder / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "SSH_LOG": str(commands.folder / "ssh.log")}


def test_ranks_on_other_hosts_start_over_ssh(commands: Commands, far: dict[str, str]) -> None:
    words = ["-np", "3", "-H", "localhost:1,me@far:2", "-p", "22", sys.executable, "-c", SHOW]
    result = commands.run(
        *("horovodrun", "--gloo", *words), **far, TORCH_SOME_VALUE=VALUE, SECRET_TOKEN="hidden"
    )
    assert (result.returncode, result.stderr) == (0, "")
    ranks = sorted(map(json.loads, result.stdout.splitlines()), key=lambda rank: rank["place"])
    assert [rank["place"] for rank in ranks] == [
        [0, 3, 0, 1, 0, 2],
        [1, 3, 0, 2, 1, 2],
        [2, 3, 1, 2, 0, 1],
    ]
    assert [rank["over_ssh"] for rank in ranks] == [False, True, True]
    assert [rank["TORCH_SOME_VALUE"] for rank in ranks] == [VALUE] * 3
    assert [rank["SECRET_TOKEN"] for rank in ranks] == ["hidden", None, None]
    assert {rank["folder"] for rank in ranks} == {str(commands.folder)}
    (key,) = {rank["HOROVOD_SECRET_KEY"] for rank in ranks}
    assert len(key) >= 32
    log = (commands.folder / "ssh.log").read_text()
    assert "-p 22 me@far" in log and "BatchMode=yes" in log
    assert key not in log


def test_the_key_of_a_job_is_on_no_command_line(commands: Commands, far: dict[str, str]) -> None:
    key = "0123456789abcdef" * 2
    process = commands.start(
        *("horovodrun", "--gloo", "-np", "2", "-H", "localhost:1,far:1"),
        *(sys.executable, "-c", SLEEPERS),
        **far,
        HOROVOD_SECRET_KEY=key,
    )
    wait_until(lambda: all((commands.folder / f"pid-{rank}").exists() for rank in (0, 1)), 20)
    words = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(process.pid)]
    assert len(words) >= 7
    assert [line for line in words if key.encode() in line] == []
    process.terminate()
    process.communicate(timeout=30)


def test_a_host_that_cannot_be_reached_ends_the_job(
    commands: Commands, far: dict[str, str]
) -> None:
    words = ["-np", "2", "-H", "localhost:1,down:1", sys.executable, "-c", SLEEPERS]
    result = commands.run("horovodrun", "--gloo", *words, **far)
    assert result.returncode == 255
    assert "No route to host" in result.stderr
    assert "horovodrun: rank 1 on down was the first to fail: exit code 255" in result.stderr
    assert "the connection to down failed" in result.stderr


def test_a_rank_that_fails_on_another_host_ends_all_and_is_named(
    commands: Commands, far: dict[str, str]
) -> None:
    code = SLEEPERS.replace("time.sleep", FAILING + "time.sleep")
    begun = time.monotonic()
    words = ["-np", "2", "-H", "localhost:1,far:1", sys.executable, "-c", code]
    result = commands.run("horovodrun", "--gloo", *words, **far)
    assert result.returncode == 1
    assert "was the first to fail: exit code 1; its last lines:" in result.stderr
    assert "rank 1 on" in result.stderr and "ZeroDivisionError" in result.stderr
    assert "\x1e" not in result.stderr
    assert time.monotonic() - begun < 30
    assert not alive(int((commands.folder / "pid-0").read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_launcher_is_the_end_of_ranks_on_all_hosts(
    commands: Commands, far: dict[str, str], number: signal.Signals
) -> None:
    words = ["-np", "2", "-H", "localhost:1,far:1", sys.executable, "-c", SLEEPERS]
    process = commands.start("horovodrun", "--gloo", *words, **far)
    files = [commands.folder / f"pid-{rank}" for rank in (0, 1)]
    wait_until(lambda: all(file.exists() for file in files), 20)
    pids = [int(file.read_text()) for file in files]
    process.send_signal(number)
    assert process.wait(30) != 0
    wait_until(lambda: not any(alive(pid) for pid in pids), 20)


def test_ranks_that_do_not_obey_are_killed_with_what_they_started(commands: Commands) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    grandchild = f"import os; open('pid', 'w').write(str(os.getpid())); {stubborn} time.sleep(60)"
    code = (
        f"{stubborn}import os, subprocess, sys\n"
        "if os.environ['HOROVOD_RANK'] == '0':\n"
        f"    subprocess.run([sys.executable, '-c', {grandchild!r}])\n"
        "while not os.path.exists('pid') or not open('pid').read(): time.sleep(0.02)\n"
        "sys.exit(3)"
    )
    result = commands.run("horovodrun", "--gloo", "-np", "2", sys.executable, "-c", code)
    assert result.returncode == 3
    assert "rank 1 on" in result.stderr
    assert not alive(int((commands.folder / "pid").read_text()))


def test_user_signals_reach_every_rank_once(commands: Commands) -> None:
    code = (
        "import os, pathlib, signal, sys, time; got = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: got.append(1))\n"
        "pathlib.Path('ready-' + os.environ['HOROVOD_RANK']).touch()\n"
        "while not got: time.sleep(0.02)\n"
        "time.sleep(0.5); print(len(got))"
    )
    process = commands.start("horovodrun", "--gloo", "-np", "2", sys.executable, "-c", code)
    wait_until(lambda: len(list(commands.folder.glob("ready-*"))) == 2, 20)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out.split()) == (0, ["1", "1"])


def test_lines_that_ranks_write_in_pieces_do_not_mix(commands: Commands) -> None:
    code = (
        "import os, sys, time; rank = os.environ['HOROVOD_RANK']\n"
        "for _ in range(200):\n"
        "    for piece in (f'[rank {rank}', ' says', ']\\n'):\n"
        "        os.write(1, piece.encode()); time.sleep(0.002)"
    )
    words = ["horovodrun", "--gloo", "-np", "2", sys.executable, "-c", code]
    lines = commands.run(*words).stdout.splitlines()
    assert sorted(lines) == ["[rank 0 says]"] * 200 + ["[rank 1 says]"] * 200


def test_what_has_begun_without_an_end_is_shown_soon(commands: Commands) -> None:
    code = "import os, time; os.write(1, b'Name? '); time.sleep(60)"
    process = commands.start("horovodrun", "--gloo", "-np", "1", sys.executable, "-c", code)
    assert process.stdout is not None
    assert process.stdout.read(6) == "Name? "
    process.terminate()
    process.wait(30)


@pytest.mark.parametrize("place", ["localhost:1,far:1", "far:1,localhost:1"])
def test_rank_0_reads_the_launchers_input_and_the_others_none(
    commands: Commands, far: dict[str, str], place: str
) -> None:
    code = "import os, sys; print(os.environ['HOROVOD_RANK'], len(sys.stdin.buffer.read()))"
    data = os.urandom(5 << 20)
    words = [Path(sys.executable).with_name("horovodrun"), "--gloo", "-np", "2", "-H", place]
    result = subprocess.run(
        [*words, sys.executable, "-c", code],
        input=data,
        capture_output=True,
        timeout=60,
        cwd=commands.folder,
        env=commands.environment(far),
    )
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split(b"\n"))[1:] == [b"0 %d" % len(data), b"1 0"]


def test_input_that_nobody_reads_does_not_hold_up_the_job(commands: Commands) -> None:
    words = [Path(sys.executable).with_name("horovodrun"), "--gloo", "-np", "2", "true"]
    with Path("/dev/zero").open("rb") as endless:
        done = subprocess.run(
            words, stdin=endless, timeout=30, cwd=commands.folder, env=commands.environment({})
        )
    assert done.returncode == 0


def test_lines_of_ranks_appear_as_they_are_written(commands: Commands) -> None:
    """A program that writes into a pipe keeps its lines until it has many of them."""
    code = "import time; print('line', end='\\n'); time.sleep(30)"
    process = commands.start("horovodrun", "--gloo", "-np", "1", sys.executable, "-c", code)
    assert process.stdout is not None
    begun = time.monotonic()
    assert process.stdout.readline() == "line\n"
    assert time.monotonic() - begun < 20
