"""Lists of hosts: ``-H a:2,b:2`` and host files with lines ``HOST slots=N``."""

from __future__ import annotations

import re
from pathlib import Path

Hosts = list[tuple[str, int | None]]
"""(host or user@host, slots or None)."""

_HOST = re.compile(r"((?:[A-Za-z0-9_.\-]+@)?(?:[A-Za-z0-9_.\-]+|\[[0-9A-Fa-f:]+\]))(?::(\d+))?")
_LINE = re.compile(r"(\S+?)(?::(\d+))?(?:\s+slots\s*=\s*(\d+))?")


def parse_hosts(text: str) -> Hosts:
    """Return (name, slots or None) of ``text``, in order; a comma may end it.

    Raises:
        ValueError: Not a list of HOST or HOST:SLOTS.
    """
    hosts: Hosts = []
    for entry in text.strip().removesuffix(",").split(","):
        match = _HOST.fullmatch(entry.strip())
        if not match:
            raise ValueError(f"-H {text}: expected HOST:SLOTS,HOST:SLOTS,..., got {entry!r}")
        hosts.append((match[1], int(match[2]) if match[2] else None))
    return hosts


def parse_hostfile(path: Path) -> Hosts:
    """Return (name, slots or None) of the lines of ``path``; ``#`` begins a comment.

    Raises:
        ValueError: The file cannot be read, has no hosts, or a line is not ``HOST slots=N``.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--hostfile {path}: cannot be read: {error}") from error
    hosts: Hosts = []
    for number, line in enumerate(lines, start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = _LINE.fullmatch(content)
        if not match:
            raise ValueError(f"--hostfile {path}:{number}: expected 'HOST slots=N', got {line!r}")
        slots = match[3] or match[2]
        hosts.append((match[1], int(slots) if slots else None))
    if not hosts:
        raise ValueError(f"--hostfile {path}: names no host")
    return hosts
