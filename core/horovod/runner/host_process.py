"""Runs the ranks of one host: ``python -I -S host_process.py``.

``starter`` starts it, on other hosts by ssh, and talks to it through its standard input, a JSON
object a line: first what to run, then signals for the ranks and input for rank 0. When that stream
ends, the launcher is gone and the ranks end, too. The driver of an elastic job, whose ranks come
and go, also says when to start one. What the ranks write goes straight to our own
output; with them go *records* (see ``rank_process``), among them how much of the input has arrived.
Standard library only; it is run by its path, without arguments: others could read those.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

END_SECONDS = 5.0
"""Between SIGTERM and the end by force, where a rank has failed or the launcher is gone."""
KILL_SECONDS = 2.0
"""After the order to end by force, until the process that has not obeyed is killed itself."""
KILL_COMMAND = signal.SIGRTMIN
"""Makes ``rank_process`` kill its command and whatever that has started."""
CHECK_SECONDS = 1.0


@dataclass
class Running:
    """A rank that runs.

    Attributes:
        options: Of its ``rank_process``.
        child: That process.
        kill_at: When it is ended by force (time.monotonic); None: it was not told to end.
    """

    options: dict[str, Any]
    child: subprocess.Popen[bytes]
    kill_at: float | None = None


class HostProcess:
    """The ranks of this host.

    Args:
        start: What to run: "command", "environ" (added to our own), "folder" (to work in, where it
            exists), "ranks" (the options of each ``rank_process``), "input" (whether the first
            of them reads the launcher's), and "stays": the end of a rank is nothing to the others,
            and that of all not the end.
        rank_process: Path of that program.
        send: Writes a record to the launcher.
    """

    def __init__(self, start: dict[str, Any], rank_process: Path, send: Any) -> None:
        self._send = send
        self._input = bytearray()
        self._input_ends = False
        self._stays = bool(start.get("stays"))
        self.first_code = 0
        with contextlib.suppress(OSError):
            os.chdir(start["folder"])
        self._program = [sys.executable, "-I", "-S", str(rank_process)]
        self._command = start["command"]
        self._environ = {**os.environ, **start["environ"]}
        self._running: dict[int, Running] = {}
        self._pipe: int | None = None
        for number, options in enumerate(start["ranks"]):
            self.start(options, reads=number == 0 and start["input"])

    def start(self, options: dict[str, Any], *, reads: bool = False) -> None:
        """Start a rank; ``reads``: from the launcher's input."""
        child = subprocess.Popen(
            [*self._program, json.dumps(options), *self._command],
            env=self._environ,
            stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
            bufsize=0,
        )
        if child.stdin is not None:
            self._pipe = os.dup(child.stdin.fileno())
            child.stdin.close()
            os.set_blocking(self._pipe, False)
        self._running[child.pid] = Running(options, child)

    def obey(self, order: dict[str, Any]) -> None:
        """Do what a line of the launcher says; {"signal": n, "seconds": s}: SIGKILL follows.

        A "worker" in it is the only one that is meant.
        """
        if "input" in order:
            self._input += base64.b64decode(order["input"])
            self._input_ends = self._input_ends or not order["input"]
        if "start" in order:
            self.start(order["start"])
        if "signal" in order:
            worker = order.get("worker")
            self.signal(order["signal"], worker)
            if order.get("seconds") is not None:
                self.end_within(order["seconds"], worker)

    def signal(self, number: int, worker: int | None = None) -> None:
        """Send a signal to every rank, or to that of one worker."""
        for each in self._meant(worker):
            each.child.send_signal(number)

    def end_within(self, seconds: float, worker: int | None = None) -> None:
        """Kill what runs after ``seconds``, or earlier where that was said before."""
        moment = time.monotonic() + seconds
        for each in self._meant(worker):
            each.kill_at = moment if each.kill_at is None else min(each.kill_at, moment)

    def _meant(self, worker: int | None) -> list[Running]:
        running = self._running.values()
        return [each for each in running if worker in (None, each.options.get("worker"))]

    def end(self) -> None:
        """End all ranks, soon by force."""
        self._stays = False
        self.signal(signal.SIGTERM)
        self.end_within(END_SECONDS)

    def kill_the_late(self) -> None:
        """End by force what had to end before."""
        for each in self._running.values():
            late = -1.0 if each.kill_at is None else time.monotonic() - each.kill_at
            if late >= 0:
                each.child.send_signal(signal.SIGKILL if late > KILL_SECONDS else KILL_COMMAND)

    def reap(self) -> bool:
        """Note who has ended, end the others when one has failed; True while any runs or may."""
        for pid, each in list(self._running.items()):
            code = each.child.poll()
            if code is None:
                continue
            del self._running[pid]
            if not code or self.first_code:
                continue
            if not self._stays:
                self.first_code = code if code > 0 else 128 - code
                if each.kill_at is None:
                    self.end()
            if code < 0 or self._stays:  # it may have been killed itself, and have said nothing
                self._send(self._record(each, code))
        return self._stays or bool(self._running)

    def _record(self, ended: Running, code: int) -> dict[str, Any]:
        """Return what ``rank_process`` would have said."""
        worker = {"worker": ended.options["worker"]} if "worker" in ended.options else {}
        return {
            "rank": ended.options["place"]["RANK"],
            "host": socket.gethostname(),
            "code": code,
            "told": ended.kill_at is not None,
            "tail": [],
            **worker,
        }

    @property
    def wants_to_write(self) -> int | None:
        """The pipe to rank 0, while there is something to write to it."""
        return self._pipe if self._input or self._input_ends else None

    def write(self) -> None:
        """Pass on input as far as rank 0 takes it, and tell the launcher how far that was."""
        if self._pipe is None:
            return
        try:
            taken = os.write(self._pipe, self._input) if self._input else 0
        except BlockingIOError:
            return
        except OSError:  # rank 0 reads no more
            taken, self._input_ends = len(self._input), True
        del self._input[:taken]
        if taken:
            self._send({"taken": taken})
        if self._input_ends and not self._input:
            os.close(self._pipe)
            self._pipe = None


class Lines:
    """The JSON lines of a file descriptor that is read bit by bit."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._begun = b""

    def read(self) -> list[dict[str, Any]] | None:
        """Return the lines that one read completes; None at the end."""
        data = os.read(self.descriptor, 1 << 16)
        if not data:
            return None
        *lines, self._begun = (self._begun + data).split(b"\n")
        return [json.loads(line) for line in lines]


def serve(host: HostProcess, lines: Lines, wake: int, told: list[int]) -> None:
    """Obey the launcher until no rank runs; ``told`` are signals that came to this process."""
    with selectors.DefaultSelector() as selector:
        selector.register(lines.descriptor, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        writing: int | None = None
        while host.reap():
            if told:
                told.clear()
                host.end()
            host.kill_the_late()
            if writing is None and (writing := host.wants_to_write) is not None:
                selector.register(writing, selectors.EVENT_WRITE)
            for key, _ in selector.select(CHECK_SECONDS):
                if key.fd == wake:
                    os.read(wake, 1 << 12)
                elif key.fd == lines.descriptor:
                    if not _obey(host, lines.read()):
                        selector.unregister(lines.descriptor)
                else:
                    selector.unregister(key.fd)
                    writing = None
                    host.write()


def _obey(host: HostProcess, orders: list[dict[str, Any]] | None) -> bool:
    """Do what the launcher says; False when it is gone."""
    if orders is None:
        host.end()
        return False
    for order in orders:
        host.obey(order)
    return True


def send_record(content: dict[str, Any]) -> None:
    """Write a record in one piece, as ``rank_process`` does."""
    text = base64.b64encode(json.dumps(content).encode())
    with contextlib.suppress(OSError):
        os.write(2, b"\x1ehorovodrun:" + text + b"\x1e\n")


def main() -> None:
    """Read what to run, run it, and end as the first rank that failed."""
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: told.append(number))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    lines = Lines(0)
    orders: list[dict[str, Any]] | None = []
    while not orders:
        orders = lines.read()
        if orders is None and not told:
            why = (
                f"horovodrun: {socket.gethostname()}: the launcher has gone, or ssh has no input\n"
            )
            os.write(2, why.encode())
        if orders is None or told:
            os._exit(1)
    host = HostProcess(orders[0], Path(__file__).with_name("rank_process.py"), send_record)
    _obey(host, orders[1:])
    serve(host, lines, wake, told)
    os._exit(host.first_code)


if __name__ == "__main__":
    main()
