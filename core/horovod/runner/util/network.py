"""Which addresses are of this host."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from horovod.common import interfaces

Server = TypeVar("Server")


def get_local_host_addresses() -> set[str]:
    """**Local.** Return the IPv4 addresses of this host."""
    names = [name for _, name in socket.if_nameindex()]
    found = {address for name in names for address in interfaces.addresses(name)}
    return {address for address in found if ":" not in address}


def get_local_intfs(nic: str | None = None) -> set[str]:
    """**Local.** Return the interfaces that lead to this host alone; of ``nic`` only, if given."""
    names = [name for _, name in socket.if_nameindex() if nic in (None, name)]
    return {name for name in names if "127.0.0.1" in interfaces.addresses(name)}


def resolve_host_address(host_name: str) -> str | None:
    """**Local.** Return an IPv4 address of ``host_name``, None where nothing knows it."""
    try:
        return socket.gethostbyname(host_name)
    except OSError:
        return None


def filter_local_addresses(all_host_names: Sequence[str]) -> list[str]:
    """**Local.** Return those of ``all_host_names`` that are not this host."""
    local = get_local_host_addresses()
    return [name for name in all_host_names if resolve_host_address(name) not in local]


def find_port(server_factory: Callable[[tuple[str, int]], Server]) -> tuple[Server, int]:
    """**Local.** Return (a server, its port) at a free port of this host.

    Args:
        server_factory: Makes a server out of (address, port), and raises where it cannot.

    Raises:
        OSError: No port suits it.
    """
    error: Exception | None = None
    for _ in range(100):
        with contextlib.closing(socket.create_server(("", 0))) as asking:
            port: int = asking.getsockname()[1]
        try:
            return server_factory(("", port)), port
        except Exception as wrong:
            error = wrong
    raise OSError(f"no port suits the server: {error}") from error


def get_driver_ip(nics: Iterable[str]) -> str:
    """**Local.** Return the IPv4 address of the first of ``nics``.

    Raises:
        RuntimeError: It has none.
    """
    name: Any = next(iter(nics), None)
    found = [each for each in interfaces.addresses(name) if ":" not in each] if name else []
    if not found:
        raise RuntimeError(f"the interface {name} has no IPv4 address")
    return found[0]
