"""A point where processes of a job connect and prove that they belong to it.

``meeting`` lets the ranks of a world exchange values at one, the launcher of an elastic job talks
to its workers at another. Standard library only: launchers import it.

*Handshake*, as the engine's: the point sends a random challenge; the guest answers with its own
challenge, its number, a second number that the two agree about (the job's size) and an HMAC over
all of that by the key; the point proves itself by an HMAC of its own. The key never travels, and
who proves nothing is sent nothing that was made with it.

*Frame*: 4 bytes of length, then JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import queue
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CHALLENGE_BYTES = 32
PROOF_BYTES = 32
HELLO = struct.Struct(f">{CHALLENGE_BYTES}sII{PROOF_BYTES}s")
"""What a guest answers: its challenge, number, size, proof."""
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


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the other host of a connection may be silent, in seconds.

    Attributes:
        idle_s: Without a word, until it is asked for a sign of life.
        interval_s: Between the questions.
        questions: That many without an answer end the connection.
    """

    idle_s: int = 30
    interval_s: int = 10
    questions: int = 3


MINUTE = Patience()
SHORT = Patience(idle_s=3, interval_s=1, questions=4)
"""A host that is gone is noticed within 7 s; its process may be stopped for as long as it likes."""


def keep_alive(connection: socket.socket, patience: Patience = MINUTE) -> None:
    """Let a connection whose other host has gone end in time, and send frames at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": patience.idle_s,
        "TCP_KEEPINTVL": patience.interval_s,
        "TCP_KEEPCNT": patience.questions,
    }
    if patience != MINUTE:  # what was said and is not acknowledged must not take longer either
        whole_s = patience.idle_s + patience.interval_s * patience.questions
        options["TCP_USER_TIMEOUT"] = 1000 * whole_s
    for option, number in options.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), number)


@dataclass(eq=False)
class Guest:
    """One connection; ``rank``, its number, is -1 until it has proven itself."""

    connection: socket.socket
    challenge: bytes = field(default_factory=lambda: os.urandom(CHALLENGE_BYTES))
    came_at: float = field(default_factory=time.monotonic)
    rank: int = -1
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    is_leaving: bool = False
    """Close it when all is sent."""
    why: str = ""
    """The error that has ended it; "" where the other end has closed it."""


class Point:
    """Listens, in a thread of its own, until it is closed or the process ends.

    A subclass says who may come in, and what happens then; that thread calls it.

    Args:
        key: What guests prove to know.
        host: Address to listen at; "" for all of this host.
        port: TCP port; 0 for one that the system chooses.
        name: Of the thread.

    Attributes:
        port: Where it listens.

    Raises:
        OSError: It cannot listen there.
    """

    patience = MINUTE

    def __init__(self, key: str, host: str, port: int, name: str) -> None:
        self._key = proving_key(key)
        self._guests: dict[int, Guest] = {}
        self._strangers: set[Guest] = set()
        self._process = os.getpid()
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._listener = _listen(host, port)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    # ---- what a subclass fills in ----------------------------------------------------------------

    def _refuse(self, number: int, size: int) -> str:
        """Return why the guest that has proven this may not come in, "" where it may."""
        raise NotImplementedError

    def _entered(self, guest: Guest) -> None:
        """Take note that ``guest`` has come in."""
        raise NotImplementedError

    def _take(self, guest: Guest, content: Any) -> None:
        """Take a frame; ValueError, KeyError or TypeError where it makes no sense."""
        raise NotImplementedError

    def _left(self, number: int, why: str) -> None:
        """Take note that guest ``number`` has left; ``why`` as of ``Guest``."""
        raise NotImplementedError

    # ---- for all threads -------------------------------------------------------------------------

    def call(self, act: Callable[[], object]) -> None:
        """Have the point's thread call ``act``; never waits."""
        self._calls.put(act)
        self._nudge()

    def close(self) -> None:
        """End: all connections are closed; in a forked child, only the child's."""
        if os.getpid() != self._process:
            self._let_go()
            return
        self._calls.put(None)
        self._nudge()
        self._thread.join()

    def _nudge(self) -> None:
        with contextlib.suppress(OSError):  # it is full of earlier ones, or closed
            self._wake.send(b"x")

    # ---- the point's thread ----------------------------------------------------------------------

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
                    if not self._make_calls():
                        self._let_go()
                        return
                    continue
                if key.fileobj is self._listener:
                    self._admit()
                    continue
                guest: Guest = key.data
                if events & selectors.EVENT_READ and guest.connection.fileno() >= 0:
                    self._read(guest)
                if events & selectors.EVENT_WRITE and guest.connection.fileno() >= 0:
                    self._flush(guest)
            late = time.monotonic() - HANDSHAKE_SECONDS
            for stranger in [each for each in self._strangers if each.came_at < late]:
                self._drop(stranger)

    def _make_calls(self) -> bool:
        """Do what other threads want; False: end."""
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(1 << 12)
        with contextlib.suppress(queue.Empty):
            while True:
                act = self._calls.get_nowait()
                if act is None:
                    return False
                act()
        return True

    def _admit(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._strangers) >= MOST_STRANGERS:
            connection.close()
            return
        connection.setblocking(False)
        keep_alive(connection, self.patience)
        guest = Guest(connection)
        self._strangers.add(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)
        self._send(guest, guest.challenge)

    def _read(self, guest: Guest) -> None:
        most = 1 << 16 if guest.rank >= 0 else HELLO.size - len(guest.received)
        try:
            data = guest.connection.recv(most)
        except BlockingIOError:
            return
        except OSError as error:
            data, guest.why = b"", error.strerror or str(error)
        if not data:
            self._drop(guest)
            return
        guest.received += data
        if guest.is_leaving:
            guest.received.clear()
        elif guest.rank < 0:
            self._check(guest)
        else:
            self._take_frames(guest)

    def _check(self, guest: Guest) -> None:
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
        if wrong := self._refuse(rank, size):
            guest.is_leaving = True
            self._send(guest, frame({"error": wrong}))
            return
        self._strangers.discard(guest)
        guest.rank = rank
        self._guests[rank] = guest
        self._entered(guest)

    def _take_frames(self, guest: Guest) -> None:
        try:
            while (content := take_frame(guest.received)) is not None:
                self._take(guest, content)
        except (ValueError, KeyError, TypeError):
            guest.why = "it says what makes no sense"
            self._drop(guest)

    def _drop(self, guest: Guest) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(guest.connection)
        guest.connection.close()
        self._strangers.discard(guest)
        if guest.rank >= 0:
            number, guest.rank = guest.rank, -1
            del self._guests[number]
            self._left(number, guest.why)

    def _send(self, guest: Guest, data: bytes) -> None:
        guest.unsent += data
        self._flush(guest)

    def _flush(self, guest: Guest) -> None:
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
