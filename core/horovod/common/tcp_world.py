"""All ranks of a job without MPI, as one of them sees them: small values, by a meeting point."""

from __future__ import annotations

import base64
import contextlib
import hmac
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.meeting import MeetingPoint
from horovod.common.point import (
    CHALLENGE_BYTES,
    HELLO,
    MINUTE,
    PROOF_BYTES,
    Patience,
    frame,
    keep_alive,
    proof_of_point,
    proof_of_rank,
    proving_key,
    take_frame,
)

RETRY_SECONDS = 0.1
CONNECT_SECONDS = 10.0
SAY_SECONDS = 30.0
"""How often a rank that waits for others says for which."""


class MeetingError(RuntimeError):
    """Ranks do not come together, or one has left; the message names them."""


class Line:
    """A connection to a point; one thread at a time reads, and one sends.

    Args:
        connection: Connected.
        rank, size: The numbers by which this process proves itself there.
        place: Where that is, for people.
    """

    def __init__(self, connection: socket.socket, rank: int, size: int, place: str) -> None:
        self.rank, self.size, self.place = rank, size, place
        self.missing: list[int] | None = None
        self.lock = threading.RLock()
        self._connection = connection
        self._received = bytearray()
        self._numbers: dict[tuple[int, ...], itertools.count[int]] = {}

    def close(self) -> None:
        """Leave; also in a forked child."""
        self._connection.close()

    def exchange(
        self, group: tuple[int, ...], value: Any, seconds: float | None
    ) -> list[Any] | None:
        """Return every rank's value, by its place in ``group``; None after ``seconds``."""
        with self.lock:
            number = next(self._numbers.setdefault(group, itertools.count()))
            self._send(frame({"group": group, "number": number, "value": encode(value)}))
            deadline = None if seconds is None else time.monotonic() + seconds
            while True:
                answer = self.next_frame(deadline)
                if answer is None:
                    return None
                if (answer.get("group"), answer.get("number")) != (list(group), number):
                    continue  # one that was not waited for
                if "error" in answer:
                    raise MeetingError(str(answer["error"]))
                return [decode(each) for each in answer["values"]]

    def next_frame(self, deadline: float | None) -> dict[str, Any] | None:
        """Return the next frame, None after ``deadline``.

        Raises:
            MeetingError: The point has gone, or refuses this rank.
        """
        while (content := take_frame(self._received)) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._read(left)
        if "missing" in content:
            self.missing = content["missing"]
        if "group" not in content and "error" in content:
            raise MeetingError(f"{content['error']} (at {self.place})")
        return dict(content)

    def receive(self, number: int, seconds: float) -> bytes:
        """Return ``number`` bytes that are no frame.

        Raises:
            MeetingError: They do not come.
        """
        deadline = time.monotonic() + seconds
        while len(self._received) < number:
            if (left := deadline - time.monotonic()) <= 0:
                raise MeetingError(f"{self.place} does not answer")
            self._read(left)
        data = bytes(self._received[:number])
        del self._received[:number]
        return data

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._send(data)

    def _read(self, seconds: float | None) -> None:
        waiting = select.poll()  # unlike select() for any number of open files
        try:
            waiting.register(self._connection, select.POLLIN)
            if not waiting.poll(None if seconds is None else 1000 * seconds):
                return
            data = self._connection.recv(1 << 16)
        except (OSError, ValueError):  # ended, or closed by another thread of ours
            data = b""
        if not data:
            raise MeetingError(f"the connection to the ranks' meeting point {self.place} has ended")
        self._received += data

    def _send(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise MeetingError(f"the ranks' meeting point {self.place}: {error}") from None


class TcpWorld:
    """Ranks that exchange values.

    Args:
        line: The connection of this process.
        members: Their numbers at the meeting point, in the order of their ranks here.
        point: Where they meet, if this process runs it.

    Attributes:
        rank: Of this process, 0 <= rank < size.
        size: Number of ranks.
    """

    def __init__(
        self, line: Line, members: Sequence[int], point: MeetingPoint | None = None
    ) -> None:
        self._line, self._members, self._point = line, tuple(members), point
        self.rank = self._members.index(line.rank)
        self.size = len(self._members)

    def allgather(self, value: Any) -> list[Any]:
        """**Collective.** Return every rank's ``value`` (see ``encode``), by rank.

        Raises:
            MeetingError: A rank has left.
        """
        values = self._line.exchange(self._members, value, None)
        assert values is not None
        return values

    def bcast(self, value: Any, root: int) -> Any:
        """**Collective.** Return the ``value`` of rank ``root``."""
        return self.allgather(value if self.rank == root else None)[root]

    def wait(self, seconds: float | None) -> bool:
        """**Collective.** Return True when all ranks are here, False after ``seconds``.

        A rank that has left is waited for by nobody: False.
        """
        try:
            return self._line.exchange(self._members, None, seconds) is not None
        except MeetingError:
            return False

    def subset(self, ranks: Sequence[int]) -> TcpWorld:
        """**Local.** Return the world of ``ranks`` of this one, renumbered in their order.

        Raises:
            ValueError: This rank is not one of them.
        """
        return TcpWorld(self._line, [self._members[rank] for rank in ranks])

    def close(self) -> None:
        """**Local.** Leave, in the name of all worlds of this process; also in a forked child."""
        self._line.close()
        if self._point is not None:
            self._point.close()


def meet(
    rank: int,
    size: int,
    host: str,
    port: int,
    key: str,
    timeout_s: float | None,
    say: Callable[[str], object] = lambda text: None,
    point: MeetingPoint | None = None,
) -> TcpWorld:
    """Return the world of ``size`` ranks when all have come. **Collective.**

    Args:
        rank: Of this process.
        size: Number of ranks.
        host: Name or address of the meeting point; several by commas are tried in turn.
        port: Its port.
        key: What ranks and point prove to know.
        timeout_s: Longest wait for the others, in seconds; None: no limit.
        say: Gets a line now and then, while others are waited for.
        point: The meeting point, if this process runs it; it is closed with the world.

    Raises:
        MeetingError: Not all have come in time, this rank is refused, or the keys differ.
    """
    began = time.monotonic()
    deadline = None if timeout_s is None else began + timeout_s
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    line = Line(connect(host, port, place, deadline, timeout_s, say), rank, size, place)
    try:
        prove(line, proving_key(key))
        next_word = time.monotonic() + SAY_SECONDS
        while line.missing != []:
            line.next_frame(min(next_word, deadline or next_word))
            if line.missing and deadline is not None and time.monotonic() > deadline:
                raise MeetingError(f"after {_seconds(timeout_s)} {_absent(line)}")
            if line.missing and time.monotonic() > next_word:
                next_word += SAY_SECONDS
                say(f"rank {rank} waits at {place}: {_absent(line)}")
    except BaseException:
        line.close()
        raise
    return TcpWorld(line, range(size), point)


def _absent(line: Line) -> str:
    missing = line.missing or []
    shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return f"{len(missing)} of {line.size} ranks have not come (rank {shown})"


def _seconds(waited_s: float | None) -> str:
    return f"{round(waited_s or 0.0, 1):g} s"


def connect(
    host: str,
    port: int,
    place: str,
    deadline: float | None,
    timeout_s: float | None,
    say: Callable[[str], object],
    patience: Patience = MINUTE,
) -> socket.socket:
    """Return a connection, trying again while nobody listens: rank 0 may come much later.

    Args:
        host: As of ``meet``.
        port: As of ``meet``.
        place: What messages call them.
        deadline: Not beyond that (time.monotonic); None: no limit.
        timeout_s: The same in seconds from the start, for messages.
        say: Gets a line now and then.
        patience: With a host that says nothing any more.

    Raises:
        MeetingError: Nobody listens there until then.
    """
    next_word = time.monotonic() + SAY_SECONDS
    while True:
        left = CONNECT_SECONDS if deadline is None else deadline - time.monotonic()
        for name in host.split(","):
            try:
                seconds = max(RETRY_SECONDS, min(CONNECT_SECONDS, left))
                connection = socket.create_connection((name, port), seconds)
            except OSError as error:
                why = error
                continue
            connection.settimeout(None)
            keep_alive(connection, patience)
            return connection
        if left <= 0:
            raise MeetingError(
                f"after {_seconds(timeout_s)} the ranks' meeting point {place} cannot be "
                f"reached: {why}; is rank 0 there, and is that port open between the hosts?"
            )
        if time.monotonic() > next_word:
            next_word += SAY_SECONDS
            say(f"the ranks' meeting point {place} cannot be reached yet: {why}")
        time.sleep(RETRY_SECONDS)


def prove(line: Line, key: bytes) -> None:
    """Prove to the point that this process has the key, and be proven the same.

    Raises:
        MeetingError: What listens there does not have it, or does not answer.
    """
    own = os.urandom(CHALLENGE_BYTES)
    challenge = line.receive(CHALLENGE_BYTES, CONNECT_SECONDS)
    proof = proof_of_rank(key, challenge, own, line.rank, line.size)
    line.send(HELLO.pack(own, line.rank, line.size, proof))
    answer = b""
    with contextlib.suppress(MeetingError):
        answer = line.receive(PROOF_BYTES, CONNECT_SECONDS)
    if not hmac.compare_digest(answer, proof_of_point(key, own, challenge)):
        raise MeetingError(
            f"what listens at {line.place} does not have this job's key: HOROVOD_SECRET_KEY must "
            "be the same on all ranks, and no other job may meet there "
            "(HOROVOD_GLOO_RENDEZVOUS_PORT names another port)"
        )


def encode(value: Any) -> Any:
    """Return ``value`` as JSON has it.

    Raises:
        TypeError: It is none of None, bool, int, float, str, bytes, tuple, list, dict, frozenset.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    for kind in (tuple, list, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(each) for each in value]}
    raise TypeError(f"ranks exchange plain values: got {type(value).__name__}")


def decode(value: Any) -> Any:
    """Return what ``encode`` was given.

    Raises:
        ValueError: Nothing that it returns.
    """
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "dict":
        return {decode(k): decode(v) for k, v in content}
    kinds: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "list": list, "frozenset": frozenset}
    return kinds[kind](decode(each) for each in content)
