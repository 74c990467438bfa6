"""The real ``horovodrun -H A,B -p PORT -i KEY``: ranks on the other host start over ssh."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.hosts import BIN, DEVICE, Host, TwoHosts

PORT = 2222
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
VALUE = "a 'b' \"c\" $HOME;\n-x d.e"
RANK = """
import json, os, socket, torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.full((1000,), 1.0 + hvd.rank()), op=hvd.Sum)
answer = {"rank": hvd.rank(), "host": socket.gethostname(), "sum": total.unique().tolist()}
answer |= {"cross_size": hvd.cross_size(), "over_ssh": "SSH_CONNECTION" in os.environ}
answer |= {"value": os.environ.get("TORCH_SOME_VALUE")}
os.write(1, (json.dumps(answer) + "\\n").encode())
"""
CONFIGURATION = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""
START = 'mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec "$0" -D -e -f "$1"'


@dataclass(frozen=True, kw_only=True)
class Door:
    """An sshd on host b: what a client on host a needs for it."""

    key: Path
    wrong_key: Path
    log: Path


@pytest.fixture
def door(hosts: TwoHosts, tmp_path: Path) -> Iterator[Door]:
    """Run an sshd with keys of its own on host b; host a knows its host key, and nobody else."""
    if SSHD is None:
        pytest.skip("no sshd: apt-get install openssh-server")
    for name in ("host_key", "user_key", "wrong_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(words, check=True, timeout=20)
    configuration, log = tmp_path / "sshd_config", tmp_path / "sshd.log"
    configuration.write_text(
        CONFIGURATION.format(port=PORT, address=hosts.b.address, folder=tmp_path)
    )
    server = [SSHD, str(configuration)]
    with known_host(hosts, tmp_path / "host_key.pub"), log.open("w") as file:
        daemon = subprocess.Popen(
            hosts.b.inside(["sh", "-c", START, *server]),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        try:
            wait_until_it_listens(hosts.a, hosts.b.address, daemon, log)
            yield Door(key=tmp_path / "user_key", wrong_key=tmp_path / "wrong_key", log=log)
        finally:
            daemon.kill()
            daemon.wait(10)


@contextlib.contextmanager
def known_host(hosts: TwoHosts, key: Path) -> Iterator[None]:
    """Make the files of host a's /etc/ssh: the key of host b, and no other."""
    folder = hosts.a.etc / "ssh"
    folder.mkdir()
    try:
        (folder / "ssh_known_hosts").write_text(f"[{hosts.b.name}]:{PORT} {key.read_text()}")
        (folder / "ssh_config").write_text("BatchMode yes\nStrictHostKeyChecking yes\n")
        yield
    finally:
        shutil.rmtree(folder)


def wait_until_it_listens(
    client: Host, address: str, daemon: subprocess.Popen[bytes], log: Path
) -> None:
    """Wait for the first words of the server, asked from ``client``."""
    code = f"import socket; print(socket.create_connection(({address!r}, {PORT}), 2).recv(8))"
    deadline = time.monotonic() + 20
    while True:
        words = ["ip", "netns", "exec", client.namespace, sys.executable, "-S", "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, timeout=10)
        if "SSH-2.0" in done.stdout:
            return
        assert daemon.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def start(hosts: TwoHosts, key: Path) -> tuple[int, str, str]:
    """Run the job; return its exit code and what it printed."""
    places = ",".join(f"{host.name}:1" for host in hosts.hosts)
    words = [BIN / "horovodrun", "-np", "2", "-H", places, "-p", str(PORT), "-i", key]
    words += ["--network-interfaces", DEVICE, sys.executable, "-c", RANK]
    process = hosts.start_on_a(words, TORCH_SOME_VALUE=VALUE, OMP_NUM_THREADS="1")
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_ranks_of_both_hosts_start_over_ssh(hosts: TwoHosts, door: Door) -> None:
    code, out, err = start(hosts, door.key)
    assert code == 0, f"{err}\n{door.log.read_text()}"
    found = [json.loads(line) for line in re.findall(r"^\{.*\}$", out, re.MULTILINE)]
    ranks = sorted(found, key=lambda answer: answer["rank"])
    assert [rank["host"] for rank in ranks] == [hosts.a.name, hosts.b.name]
    assert [rank["over_ssh"] for rank in ranks] == [False, True]
    assert [rank["cross_size"] for rank in ranks] == [2, 2]
    assert [rank["sum"] for rank in ranks] == [[3.0]] * 2
    assert [rank["value"] for rank in ranks] == [VALUE] * 2


def test_with_a_key_that_the_other_host_refuses_no_rank_starts(hosts: TwoHosts, door: Door) -> None:
    code, out, err = start(hosts, door.wrong_key)
    assert code != 0
    assert "Permission denied" in err
    assert '"rank"' not in out
