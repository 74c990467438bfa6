"""What is running: the processes that a job started, the rows that its log holds, free ports."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
from pathlib import Path


def whole_rows(log: Path) -> list[str]:
    """Return the complete trial rows of a CSV log."""
    if not log.exists():
        return []
    return [line for line in log.read_text().split("\n")[:-1] if line and line[0].isdigit()]


def alive(pid: int) -> bool:
    """Return whether the process runs, and does not only wait for its parent to hear of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Return ``pid`` and every process below it, also those in sessions of their own."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def kill_all(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to everything that ``pid`` started, as a queue does to a job's processes."""
    for each in descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)


def free_port() -> int:
    """Return a port such that the next one is free, too; Linux gives away those from 32,768 on."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), _bound(port), _bound(port + 1):
            return port


def _bound(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))
