"""Which of this host's addresses another host reaches it by."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

_SIOCGIFADDR = 0x8915
"""Asks for the IPv4 address of an interface (netdevice(7))."""


def addresses(name: str) -> list[str]:
    """Return the addresses of the interface ``name``, IPv4 first; none where it has none."""
    found: list[str] = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("256s", name.encode()[:15])
        answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
        found.append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, _, _, scope, _, interface = line.split()
            if interface == name and scope == "00":
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def all_addresses() -> list[str]:
    """Return the addresses of this host by which others may reach it. **Local.**"""
    names = [name for _, name in socket.if_nameindex()]
    return [address for name in names for address in addresses(name) if not is_loopback(address)]


def is_loopback(address: str) -> bool:
    """Return whether ``address`` means the host itself, on each host."""
    return address == "::1" or address.startswith("127.") or address == "localhost"


def address_towards(host: str, interfaces: Sequence[str] = ()) -> str:
    """Return the address by which ``host`` reaches this one. **Local.**

    Args:
        host: As ssh knows it, with or without its user.
        interfaces: Those that may be used, the first one of this host is; empty: the one that the
            way to ``host`` begins with.
    """
    for name in interfaces:
        if own := addresses(name):
            return own[0]
    name = host.rpartition("@")[2].strip("[]")
    for known in (name, _name_of_ssh(name)):
        with contextlib.suppress(OSError):
            for family, kind, _, _, address in socket.getaddrinfo(known, 9, type=socket.SOCK_DGRAM):
                with contextlib.suppress(OSError), socket.socket(family, kind) as way:
                    way.connect(address)  # sends nothing
                    return str(way.getsockname()[0])
    return socket.gethostname()


def _name_of_ssh(host: str) -> str:
    """Return the name that ssh's configuration has for ``host``."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["ssh", "-G", host]
        answer = subprocess.run(
            words, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
        )
        for line in answer.stdout.splitlines():
            key, _, value = line.partition(" ")
            if key == "hostname":
                return value
    return host
