"""Where the ranks of a job without MPI meet: a point that passes on what each says to all.

The launcher runs it, or rank 0. Every rank keeps one connection to it (``tcp_world``) for the small
things that ranks agree on before and between the engine's lives; data never comes here. Standard
library only: launchers import it.

*Handshake*, as the engine's: the point sends a random challenge; the rank answers with its own
challenge, its number, the job's size and an HMAC over all of that by the key; the point proves
itself by an HMAC of its own. The key never travels, and who proves nothing is sent nothing that was
made with it.

*Frame*: 4 bytes of length, then JSON. From a rank: ``{"group": [ranks], "number": n, "value": v}``,
its part of the n-th exchange of that group. To a rank: ``{"missing": [ranks]}`` while ranks have
not come yet, then ``{"group", "number", "values": [...]}`` by position in the group, or ``"error"``
instead of the values where a rank of the group has left.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Any

CHALLENGE_BYTES = 32
PROOF_BYTES = 32
HELLO = struct.Struct(f">{CHALLENGE_BYTES}sII{PROOF_BYTES}s")
"""What a rank answers: its challenge, rank, size, proof."""
LENGTH = struct.Struct(">I")
MOST_BYTES = 1 << 26
"""The longest frame that is read."""
HANDSHAKE_SECONDS = 10.0
MOST_STRANGERS = 256
"""Connections without a proof, beyond which new ones are closed at once."""


def proving_key(key: str) -> bytes:
    """Return the key by which both ends of a connection prove themselves."""
    return hashlib.sha256(b"meeting:" + key.encode()).digest()


def proof_of_rank(key: bytes, challenge: bytes, own: bytes, rank: int, size: int) -> bytes:
    """Return what proves to the point that sent ``challenge`` that this rank has the key."""
    return hmac.digest(key, b"rank" + challenge + own + struct.pack(">II", rank, size), "sha256")


def proof_of_point(key: bytes, challenge: bytes, own: bytes) -> bytes:
    """Return what proves to the rank that sent ``challenge`` that this point has the key."""
    return hmac.digest(key, b"point" + challenge + own, "sha256")


def frame(content: Any) -> bytes:
    """Return ``content`` as a frame."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return LENGTH.pack(len(text)) + text


def take_frame(received: bytearray) -> Any:
    """Remove the first whole frame from ``received`` and return its content; None: none yet.

    Raises:
        ValueError: It is no frame.
    """
    if len(received) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack_from(received)
    if length > MOST_BYTES:
        raise ValueError(f"a frame of {length} bytes: expected at most {MOST_BYTES}")
    if len(received) < LENGTH.size + length:
        return None
    text = bytes(received[LENGTH.size : LENGTH.size + length])
    del received[: LENGTH.size + length]
    return json.loads(text)


def keep_alive(connection: socket.socket) -> None:
    """Let a connection whose other host has gone end within a minute, and send frames at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)


@dataclass(eq=False)
class _Guest:
    """One connection; ``rank`` is -1 until it has proven itself."""

    connection: socket.socket
    challenge: bytes = field(default_factory=lambda: os.urandom(CHALLENGE_BYTES))
    came_at: float = field(default_factory=time.monotonic)
    rank: int = -1
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    is_leaving: bool = False
    """Close it when all is sent."""


class MeetingPoint:
    """Listens, in a thread of its own, until it is closed or the process ends.

    Args:
        size: Number of ranks.
        key: What ranks prove to know.
        host: Address to listen at; "" for all of this host.
        port: TCP port; 0 for one that the system chooses.

    Attributes:
        port: Where it listens.

    Raises:
        OSError: It cannot listen there.
    """

    def __init__(self, size: int, key: str, host: str = "", port: int = 0) -> None:
        self.size = size
        self._key = proving_key(key)
        self._guests: dict[int, _Guest] = {}
        self._strangers: set[_Guest] = set()
        self._left: set[int] = set()
        self._process = os.getpid()
        self._parts: dict[tuple[tuple[int, ...], int], dict[int, Any]] = {}
        self._listener = _listen(host, port)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="meeting point", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End: all connections are closed; in a forked child, only the child's."""
        if os.getpid() != self._process:
            self._let_go()
            return
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._thread.join()

    def _let_go(self) -> None:
        guests = [*self._guests.values(), *self._strangers]
        self._selector.close()
        for each in (self._listener, self._wake, self._woken, *(g.connection for g in guests)):
            each.close()

    def _serve(self) -> None:
        while True:
            timeout = HANDSHAKE_SECONDS / 4 if self._strangers else None
            for key, events in self._selector.select(timeout):
                if key.fileobj is self._woken:
                    self._let_go()
                    return
                if key.fileobj is self._listener:
                    self._admit()
                    continue
                guest: _Guest = key.data
                if events & selectors.EVENT_READ:
                    self._read(guest)
                if events & selectors.EVENT_WRITE and guest.connection.fileno() >= 0:
                    self._flush(guest)
            late = time.monotonic() - HANDSHAKE_SECONDS
            for stranger in [each for each in self._strangers if each.came_at < late]:
                self._drop(stranger)

    def _admit(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._strangers) >= MOST_STRANGERS:
            connection.close()
            return
        connection.setblocking(False)
        keep_alive(connection)
        guest = _Guest(connection)
        self._strangers.add(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)
        self._send(guest, guest.challenge)

    def _read(self, guest: _Guest) -> None:
        most = 1 << 16 if guest.rank >= 0 else HELLO.size - len(guest.received)
        try:
            data = guest.connection.recv(most)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(guest)
            return
        guest.received += data
        if guest.is_leaving:
            guest.received.clear()
        elif guest.rank < 0:
            self._check(guest)
        else:
            self._take_parts(guest)

    def _check(self, guest: _Guest) -> None:
        """Let a guest in that has proven itself, or say why it may not come in."""
        if len(guest.received) < HELLO.size:
            return
        challenge, rank, size, proof = HELLO.unpack(guest.received)
        expected = proof_of_rank(self._key, guest.challenge, challenge, rank, size)
        if not hmac.compare_digest(proof, expected):
            self._drop(guest)
            return
        guest.received.clear()
        self._send(guest, proof_of_point(self._key, challenge, guest.challenge))
        wrong = ""
        if size != self.size:
            wrong = f"rank {rank} says that the job has {size} ranks, expected {self.size}"
        elif rank >= self.size:
            wrong = f"rank {rank}: expected one from 0 to {self.size - 1}"
        elif rank in self._guests:
            wrong = f"two processes say that they are rank {rank} of {self.size}"
        elif rank in self._left:
            wrong = f"rank {rank} of {self.size} has left this job before, and cannot come back"
        if wrong:
            guest.is_leaving = True
            self._send(guest, frame({"error": wrong}))
            return
        self._strangers.discard(guest)
        guest.rank = rank
        self._guests[rank] = guest
        missing = [each for each in range(self.size) if each not in self._guests]
        for each in list(self._guests.values()):
            self._send(each, frame({"missing": missing}))

    def _take_parts(self, guest: _Guest) -> None:
        try:
            while (content := take_frame(guest.received)) is not None:
                group = tuple(map(int, content["group"]))
                if guest.rank not in group or not set(group) <= set(range(self.size)):
                    raise ValueError(f"rank {guest.rank} is none of the group {group}")
                name = (group, int(content["number"]))
                self._parts.setdefault(name, {})[guest.rank] = content["value"]
                self._finish(name)
        except (ValueError, KeyError, TypeError):
            self._drop(guest)

    def _finish(self, name: tuple[tuple[int, ...], int]) -> None:
        """Answer an exchange that is complete, or that never will be."""
        group, number = name
        parts = self._parts[name]
        answer = {"group": group, "number": number}
        gone = [rank for rank in group if rank in self._left and rank not in parts]
        if gone:
            text = f"rank {', '.join(map(str, gone))} has left the job"
            content: dict[str, Any] = {**answer, "error": text}
            receivers = list(parts)
            parts.clear()
        elif len(parts) == len(group):
            content = {**answer, "values": [parts[rank] for rank in group]}
            receivers = list(group)
            del self._parts[name]
        else:
            return
        for rank in receivers:
            if rank in self._guests:
                self._send(self._guests[rank], frame(content))

    def _drop(self, guest: _Guest) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(guest.connection)
        guest.connection.close()
        self._strangers.discard(guest)
        if guest.rank >= 0:
            del self._guests[guest.rank]
            self._left.add(guest.rank)
            guest.rank = -1
            for name in list(self._parts):
                self._finish(name)

    def _send(self, guest: _Guest, data: bytes) -> None:
        guest.unsent += data
        self._flush(guest)

    def _flush(self, guest: _Guest) -> None:
        try:
            while guest.unsent:
                del guest.unsent[: guest.connection.send(guest.unsent)]
        except BlockingIOError:
            pass
        except OSError:  # its end is read next
            guest.unsent.clear()
        if guest.is_leaving and not guest.unsent:
            self._drop(guest)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if guest.unsent else 0)
        self._selector.modify(guest.connection, wanted, guest)


def _listen(host: str, port: int) -> socket.socket:
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
        )
    return socket.create_server(("", port), backlog=1024)
