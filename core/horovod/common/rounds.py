"""A worker's end of an elastic job: it asks the launcher for one round after the other.

The life of an elastic job is a sequence of *rounds*. In each, some workers (processes that the
launcher has started) are the ranks of a world; when one dies or others come, the rest meet anew,
under new ranks and in the same processes. The launcher decides who is in a round (its *driver*,
``horovod.runner.elastic``); a worker has one connection to it, its *line*, as long as it lives:

* to the driver: ``{"ask": n, "why": text}`` for a round, having been in round n (0: in none) and
  left it because of that; ``{"runs": n}`` the engine of round n is there; ``{"has": n}`` this
  worker has the state of its ranks; ``{"commit": n}`` they have committed one in it, once a round;
  ``{"left": n}`` the script has shut the runtime down;
* from the driver: ``{"round": n, "place": {...}, "port": p, "fresh": bool}`` the answer,
  ``{"out": why}`` another answer: the job goes on without this worker; ``{"hosts": kind, "time":
  t}`` hosts were added or removed; ``{"lost": n, "why": text}`` a worker of round n is gone.

The line is proven as a meeting point's is, by the key of the job, and so is the meeting of each
round, by a key that both ends make of it: no key travels.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from horovod.common import launched, secret, tcp_world
from horovod.common.point import SHORT, frame, proving_key
from horovod.common.tcp_world import Line, MeetingError, TcpWorld

ELASTIC = "HOROVOD_ELASTIC"
WORKER = "HOROVOD_ELASTIC_WORKER"
"""The number of a worker, different for all that a job has ever started."""
SLOT = "HOROVOD_ELASTIC_SLOT"
"""Its place on its host, from 0: nobody else has it while it lives, whatever its local ranks."""

NO_UPDATE, REMOVED, ADDED = 0, 1, 2
"""Kinds of host updates; REMOVED | ADDED: both."""

LINE_SECONDS = 60.0
"""How long the launcher is looked for."""
CONNECT_SECONDS = 10.0
"""How long the ranks of a round look for each other: they have just met, and may die meanwhile."""
OWN_SENSES_SECONDS = 1.0
"""So long the engine may find out by itself that a rank has gone: it can say more about it."""
_WAIT_SECONDS = 0.5

Listener = Callable[[float, int], None]
"""Gets the time of a host update (seconds since 1970, as the launcher saw it) and its kind."""


class OutOfJob(SystemExit):
    """The job goes on without this process, which ends well."""

    def __init__(self, why: str) -> None:
        super().__init__(0)
        self.why = why


class Abortable(Protocol):
    """What an engine can do when a rank of its is gone."""

    def abort(self, reason: str) -> None:
        """End it and what is in flight, from any thread; nothing happens where it has ended."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What the driver has decided for this worker.

    Attributes:
        number: From 1.
        place: By the names of Horovod's variables without their prefix: "RANK", "SIZE", ...
        port: Where its ranks meet, at the address of the line.
        is_fresh: Some of its ranks were not in the round before, or may have another state: all
            have to take over rank 0's.
    """

    number: int
    place: Mapping[str, int]
    port: int
    is_fresh: bool

    @property
    def rank(self) -> int:
        """Of this worker."""
        return self.place["RANK"]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.place["SIZE"]


def round_key(key: str, number: int) -> str:
    """Return what the ranks of a round prove to know."""
    return f"{key}/round {number}"


def is_elastic(environ: Mapping[str, str] = os.environ) -> bool:
    """**Local.** Return whether this process is a worker of an elastic job."""
    return environ.get(ELASTIC, "").strip() == "1" and bool(environ.get(WORKER, "").strip())


class Rounds:
    """The line of this process, and what came over it.

    Attributes:
        current: The round that this worker is in, or was in last.
    """

    def __init__(self) -> None:
        self.current: Round | None = None
        self._line: Line | None = None
        self._sending = threading.Lock()
        self._news = threading.Condition()
        self._answer: dict[str, Any] | None = None
        self._broken = ""
        self._lost: dict[int, str] = {}
        self._engine: Abortable | None = None
        self._listeners: list[Listener] = []
        self._updates: list[tuple[float, int]] = []  # since the last answer
        self._committed = 0

    # ---- for the script's thread -----------------------------------------------------------------

    def listen(self, callback: Listener) -> None:
        """Have ``callback`` called, in another thread, whenever hosts were added or removed.

        What has come since the last round began is told at once, in this thread: a script needs
        some time from ``hvd.init()`` until somebody listens, and nothing is told twice.
        """
        with self._news:
            self._listeners.append(callback)
            updates = list(self._updates)
        for timestamp, kind in updates:
            callback(timestamp, kind)

    def ignore(self, callback: Listener) -> None:
        """Call it no more."""
        with self._news:
            self._listeners = [each for each in self._listeners if each != callback]

    def ask(self, why: str, environ: Mapping[str, str] = os.environ) -> Round:
        """Return the next round of this worker; waits for it.

        Args:
            why: What is known of the reason, for the launcher's user; "" where nothing failed.
            environ: Of this process.

        Raises:
            MeetingError: The launcher is gone, or cannot be reached.
            OutOfJob: The job goes on without this worker.
        """
        line = self._open(environ)
        number = self.current.number if self.current else 0
        with self._news:
            self._answer = None
        self._send(line, {"ask": number, "why": why})
        with self._news:
            while self._answer is None:
                if self._broken:
                    raise MeetingError(self._broken)
                self._news.wait(_WAIT_SECONDS)
            answer = self._answer
        if "out" in answer:
            raise OutOfJob(str(answer["out"]))
        self.current = Round(
            number=int(answer["round"]),
            place={str(name): int(each) for name, each in answer["place"].items()},
            port=int(answer["port"]),
            is_fresh=bool(answer["fresh"]),
        )
        return self.current

    def meet(
        self, found: Round, say: Callable[[str], object], environ: Mapping[str, str] = os.environ
    ) -> TcpWorld:
        """Return the world of ``found``. **Collective:** all its ranks.

        Raises:
            MeetingError: One of them is gone.
        """
        key = round_key(environ.get(secret.ENV, "").strip(), found.number)
        host = environ[launched.MEETING_HOST]
        return tcp_world.meet(found.rank, found.size, host, found.port, key, None, say)

    def runs(self, engine: Abortable) -> None:
        """Tell that the engine of the current round runs, and let it be ended with a lost rank."""
        number = self.current.number if self.current else 0
        with self._news:
            self._engine = engine
            lost = self._lost.get(number)
        self._tell({"runs": number})
        if lost:
            engine.abort(lost)

    def left(self) -> None:
        """Tell that the runtime was shut down."""
        with self._news:
            self._engine = None
        if self.current is not None:
            self._tell({"left": self.current.number})

    def has_state(self) -> None:
        """Tell that this worker has the state of the current round's ranks."""
        if self.current is not None:
            self._tell({"has": self.current.number})

    def committed(self) -> None:
        """Tell, once a round, that a state was committed: the job has got on."""
        number = self.current.number if self.current else 0
        if number > self._committed:
            self._committed = number
            self._tell({"commit": number})

    def forget(self) -> None:
        """Let go of the line in a forked child."""
        line, self._line = self._line, None
        self._news, self._sending = threading.Condition(), threading.Lock()
        self._engine, self._broken = None, "this is a forked child"
        if line is not None:
            line.close()

    # ---- below -----------------------------------------------------------------------------------

    def _open(self, environ: Mapping[str, str]) -> Line:
        """Return the line; connect it on first use."""
        if self._line is None and not self._broken:
            host, port = environ[launched.MEETING_HOST], int(environ[launched.MEETING_PORT])
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            deadline = time.monotonic() + LINE_SECONDS
            connection = tcp_world.connect(
                host, port, place, deadline, LINE_SECONDS, lambda text: None, SHORT
            )
            line = Line(connection, int(environ[WORKER]), 0, place)
            try:
                tcp_world.prove(line, proving_key(environ.get(secret.ENV, "").strip()))
            except BaseException:
                line.close()
                raise
            self._line = line
            threading.Thread(
                target=self._read, args=(line,), name="horovod rounds", daemon=True
            ).start()
        if self._line is None:
            raise MeetingError(self._broken)
        return self._line

    def _tell(self, content: Mapping[str, Any]) -> None:
        """Send what nobody answers, if there is a line."""
        if self._line is not None:
            self._send(self._line, content)

    def _send(self, line: Line, content: Mapping[str, Any]) -> None:
        """Send ``content``; who reads from the line notes that it has ended, and why."""
        with self._sending, contextlib.suppress(MeetingError):
            line.send(frame(dict(content)))

    def _read(self, line: Line) -> None:
        """Take what comes over the line until it ends: a thread of its own."""
        try:
            while True:
                content = line.next_frame(None)
                if content is not None:
                    self._take(content)
        except (MeetingError, ValueError, KeyError, TypeError) as error:
            line.close()
            with self._news:
                self._broken = f"the line to the launcher has ended: {error}"
                engine = self._engine
                self._news.notify_all()
            if engine is not None:
                engine.abort(self._broken)

    def _take(self, content: Mapping[str, Any]) -> None:
        if "hosts" in content:
            update = float(content["time"]), int(content["hosts"])
            with self._news:
                self._updates.append(update)
                listeners = list(self._listeners)
            for callback in listeners:
                callback(*update)
        elif "lost" in content:
            self._lose(int(content["lost"]), str(content["why"]))
        else:
            with self._news:
                self._answer = dict(content)
                self._updates.clear()
                self._news.notify_all()

    def _lose(self, number: int, why: str) -> None:
        """End the engine of round ``number``, unless it ends by itself soon."""
        with self._news:
            self._lost = {number: why}
            engine = self._engine
        if engine is None or self.current is None or self.current.number != number:
            return
        timer = threading.Timer(OWN_SENSES_SECONDS, engine.abort, (why,))
        timer.daemon = True
        timer.start()


rounds = Rounds()
"""Those of this process."""


def listen(callback: Listener) -> None:
    """**Local.** Have ``callback(timestamp, kind)`` called whenever the job's hosts change.

    It is called in a thread of its own, with the time in seconds since 1970 and REMOVED, ADDED or
    both; also while this process waits in ``hvd.init()``.
    """
    rounds.listen(callback)


def ignore(callback: Listener) -> None:
    """**Local.** Call ``callback`` no more."""
    rounds.ignore(callback)


def has_state() -> None:
    """**Local.** Say that this process has the state of its ranks: the job can go on with it."""
    rounds.has_state()


def committed() -> None:
    """**Local.** Say that a state was committed; costs nothing after the first time in a round.

    A host whose workers fail again and again is left out, unless the job gets on in between.
    """
    rounds.committed()


def has_been_reset() -> bool:
    """**Local.** Return whether this is not the first round of an elastic job."""
    return rounds.current is not None and rounds.current.number > 1


def must_sync() -> bool:
    """**Local.** Return whether the ranks of this round may differ in their state.

    Equal on all of them. False only where workers have left on demand and nobody came or died.
    """
    return rounds.current is None or rounds.current.is_fresh
