"""Elastic jobs on two hosts, as tests/e2e/elastic runs them on one."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cluster.hosts import BIN, PATH, Host, TwoHosts

SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do case "$1" in -o|-p|-i) shift 2 ;; *) shift ;; esac; done
exec AGENT "$@"
"""


@dataclass
class OnHosts:
    """Where ``horovodrun`` runs on host a, and reaches b by a program called ssh."""

    hosts: TwoHosts
    folder: Path

    def start(
        self, *words: str | Path, stderr: IO[str] | None = None, **environ: str
    ) -> subprocess.Popen[str]:
        """Start a command on host a; its output goes to pipes."""
        assert stderr is None
        ssh = self.folder / "bin/ssh"
        ssh.parent.mkdir(exist_ok=True)
        ssh.write_text(SSH.replace("AGENT", str(self.hosts.agent)))
        ssh.chmod(0o755)
        environ = {"OMP_NUM_THREADS": "1", **environ, "PATH": f"{ssh.parent}:{PATH}"}
        return self.hosts.start_on_a([BIN / words[0], *words[1:]], **environ)

    def pid_of(self, line: Mapping[str, Any]) -> int:
        """Return the process of a worker, which knows another number of its own; 0: it has ended.

        Args:
            line: What it has said in the job's log.
        """
        variable = f"\0HOROVOD_ELASTIC_WORKER={line['worker']}\0".encode()
        for pid in (pid for host in self.hosts.hosts for pid in self.hosts.processes(host)):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                is_job = len(words) > 1 and words[1].endswith(b"elastic/job.py")
                if is_job and variable in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                    return pid
        return 0


def sockets(host: Host) -> list[str]:
    """Return the TCP sockets of a host that a process has: they listen, or are connected."""
    words = ["ip", "netns", "exec", host.namespace, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
    text = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout
    rows = [line.split() for line in text.splitlines() if ":" in line.split()[0]]
    return [" ".join(row[1:4]) for row in rows if row[3] in ("01", "08", "0A")]
