"""Lines between rank 0 and each other rank, on which a few whole numbers travel at a time.

To look whether something has arrived is one system call and no thread, where a collective of a few
bytes in a group of gloo takes the training thread some hundred microseconds on every rank.

Rank 0 listens at all addresses of its host, and an ``Invitation`` tells the others through the
job's store where that is. The key in it keeps strangers out who find the port; who can read the
store can read the key, too.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ACCEPT_S = 20.0
"""How long rank 0 waits for all others."""
CONNECT_S = 3.0
"""How long an address is tried."""
GREETING_S = 2.0
"""How long somebody who has connected may take to say who it is."""
MOST_ADDRESSES = 6
MOST_NUMBERS = 64

_COUNT = struct.Struct("<q")
_KEY_BYTES = 32
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """Where rank 0 listens, and how it and the others know each other.

    Attributes:
        host: Rank 0's machine, as ranks of the same one call it.
        addresses: Of that machine, the likeliest first.
        port: The same for all of them.
        key: What a rank says first.
        answer: What rank 0 says then.
    """

    host: str
    addresses: Sequence[str]
    port: int
    key: str
    answer: str


class Line:
    """One end of a line; nothing here waits unless it is told to."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._arrived = b""
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, numbers: Sequence[int]) -> None:
        """Send whole numbers of 64 bits.

        Raises:
            OSError: The other end is gone, or has not read for very long.
        """
        self._connection.sendall(struct.pack(f"<{1 + len(numbers)}q", len(numbers), *numbers))

    def receive(self, seconds: float = 0.0) -> tuple[int, ...] | None:
        """Return what was sent at a time, or None: nothing has come within ``seconds``.

        Raises:
            OSError: The other end is gone.
        """
        if not seconds and not self._arrived and not self._poll.poll(0):
            return None
        deadline = time.monotonic() + seconds
        while (message := self._complete()) is None:
            if not self._poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                return None
            data = self._connection.recv(65536)
            if not data:
                raise ConnectionError("the other end has closed the line")
            self._arrived += data
        return message

    def close(self) -> None:
        """End the line, whoever else holds it. Idempotent."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it had ended
        self._connection.close()

    def forget(self) -> None:
        """In a forked child: let go of it, and leave it to the parent."""
        self._connection.close()

    def _complete(self) -> tuple[int, ...] | None:
        if len(self._arrived) < _COUNT.size:
            return None
        (count,) = _COUNT.unpack_from(self._arrived)
        if not 0 <= count <= MOST_NUMBERS:
            raise ConnectionError(f"expected at most {MOST_NUMBERS} numbers, got {count}")
        end = _COUNT.size * (1 + count)
        if len(self._arrived) < end:
            return None
        numbers = struct.unpack_from(f"<{count}q", self._arrived, _COUNT.size)
        self._arrived = self._arrived[end:]
        return numbers


class Listener:
    """**Rank 0 only.** Waits for the others.

    Args:
        host: What ranks of this machine call it.
    """

    def __init__(self, host: str) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._socket = socket.create_server(
            ("", 0), family=family, backlog=512, dualstack_ipv6=both
        )
        self.invitation = Invitation(
            host=host,
            addresses=own_addresses(os.environ)[:MOST_ADDRESSES],
            port=self._socket.getsockname()[1],
            key=secrets.token_hex(_KEY_BYTES // 2),
            answer=secrets.token_hex(_KEY_BYTES // 2),
        )

    def accept(self, size: int, seconds: float = ACCEPT_S) -> dict[int, Line]:
        """Return {rank: its line} of all others of ``size`` ranks, and listen no more.

        Raises:
            TimeoutError: Some have not come within ``seconds``.
        """
        deadline = time.monotonic() + seconds
        found: dict[int, Line] = {}
        try:
            while len(found) < size - 1:
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = ", ".join(str(k) for k in range(1, size) if k not in found)
                    raise TimeoutError(f"no line from ranks {missing} within {seconds:g} s")
                self._socket.settimeout(left)
                try:
                    connection, _ = self._socket.accept()
                except TimeoutError:
                    continue
                rank = self._greeted(connection, min(left, GREETING_S))
                if 0 < rank < size:
                    found[rank] = Line(connection)
                else:
                    connection.close()
        except BaseException:
            for line in found.values():
                line.close()
            raise
        finally:
            self.close()
        return found

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    def _greeted(self, connection: socket.socket, seconds: float) -> int:
        """Return the rank at the other end, -1 if it is none."""
        try:
            connection.settimeout(seconds)
            said = _exactly(connection, _KEY_BYTES + _COUNT.size)
            if not hmac.compare_digest(said[:_KEY_BYTES], self.invitation.key.encode()):
                return -1
            connection.sendall(self.invitation.answer.encode())
        except OSError:
            return -1
        return int(_COUNT.unpack(said[_KEY_BYTES:])[0])


def connect(invitation: Invitation, rank: int, host: str) -> Line:
    """Return this rank's line to rank 0.

    Args:
        invitation: Rank 0's.
        rank: This one.
        host: What ranks of this machine call it.

    Raises:
        ConnectionError: None of rank 0's addresses leads to it.
    """
    near = ["127.0.0.1"] if host == invitation.host else []
    troubles = []
    for address in dict.fromkeys([*near, *invitation.addresses]):
        try:
            connection = socket.create_connection((address, invitation.port), CONNECT_S)
            try:
                connection.sendall(invitation.key.encode() + _COUNT.pack(rank))
                if _exactly(connection, _KEY_BYTES) == invitation.answer.encode():
                    return Line(connection)
                raise ConnectionError("somebody else is there")
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            troubles.append(f"{address}: {error}")
    raise ConnectionError(
        f"rank {rank} cannot reach rank 0 at port {invitation.port} ({'; '.join(troubles)})"
    )


def own_addresses(environ: Mapping[str, str]) -> list[str]:
    """Return the addresses of this machine, those first by which the job's ranks know it.

    Args:
        environ: MASTER_ADDR is rank 0's host in most jobs; GLOO_SOCKET_IFNAME and
            NCCL_SOCKET_IFNAME say which network is meant, where there are several.
    """
    wanted = environ.get("GLOO_SOCKET_IFNAME", "") + "," + environ.get("NCCL_SOCKET_IFNAME", "")
    names = [name for _, name in socket.if_nameindex()]
    names.sort(key=lambda name: (name == "lo", name not in wanted.split(",")))
    own = [address for name in names if (address := _address_of(name))]
    likely = [environ.get("MASTER_ADDR", ""), *own, socket.gethostname()]
    return [one for one in dict.fromkeys(likely) if one]


def _address_of(interface: str) -> str:
    """Return the IPv4 address of a network interface, '' if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24])
        except OSError:
            return ""


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Return so many bytes; raises OSError where they do not come."""
    found = b""
    while len(found) < count:
        data = connection.recv(count - len(found))
        if not data:
            raise ConnectionError("the other end has closed the line")
        found += data
    return found
