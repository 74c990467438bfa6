"""Which hosts there are: a command of the user's says so, every second."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping

INTERVAL_SECONDS = 1.0
LIMIT_SECONDS = 10.0
"""A command that takes longer is ended."""
MOST_BYTES = 1 << 20
_LINE = re.compile(r"((?:[\w.\-]+@)?(?:[\w.\-]+|\[[0-9A-Fa-f:]+\]))(?::(\d{1,6}))?", re.ASCII)
_SHOWN = 60
_CHECK_SECONDS = 0.1


def parse(text: str, slots: int) -> dict[str, int]:
    """Return {host: slots} of lines ``HOST`` or ``HOST:SLOTS``, in order. Pure.

    Args:
        text: What the command has printed; empty lines count for nothing.
        slots: Of a host that names none.

    Raises:
        ValueError: A line is something else.
    """
    hosts: dict[str, int] = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        match = _LINE.fullmatch(line)
        if not match:
            raise ValueError(f"expected lines HOST or HOST:SLOTS, got {line[:_SHOWN]!r}")
        hosts[match[1]] = int(match[2]) if match[2] else slots
    return hosts


def ask(command: str, limit_s: float = LIMIT_SECONDS) -> str:
    """Return what ``command`` prints.

    Args:
        command: For the shell.
        limit_s: Longest time that it may take, in seconds.

    Raises:
        ValueError: It fails, takes too long, or prints what is no text.
    """
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(1, signal.SIGKILL, 0, 0, 0)  # it ends with us
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if os.getppid() != parent:
            os._exit(1)

    try:
        child = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            preexec_fn=prepare,
        )
    except OSError as error:
        raise ValueError(f"cannot be started: {error}") from None
    with child:
        try:
            out, err = _outputs(child, time.monotonic() + limit_s)
        except (TimeoutError, OverflowError) as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            late = isinstance(error, TimeoutError)
            why = f"takes longer than {limit_s:g} s" if late else "prints more than 1 MiB"
            raise ValueError(why) from None
    if child.returncode:
        last = err.decode("ascii", "backslashreplace").strip().splitlines()[-1:]
        words = f": {last[0][:_SHOWN]}" if last else ""
        raise ValueError(f"fails with exit code {child.returncode}{words}")
    try:
        return out.decode()
    except UnicodeDecodeError:
        raise ValueError("prints what is no text") from None


def _outputs(child: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """Return both outputs when the command and whoever else writes them has ended."""
    read: dict[int, bytearray] = {}
    with selectors.DefaultSelector() as selector:
        for pipe in (child.stdout, child.stderr):
            assert pipe is not None
            read[pipe.fileno()] = bytearray()
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            if time.monotonic() > deadline:
                raise TimeoutError
            for key, _ in selector.select(_CHECK_SECONDS):
                data = os.read(key.fd, 1 << 16)
                read[key.fd] += data
                if not data:
                    selector.unregister(key.fileobj)
                if len(read[key.fd]) > MOST_BYTES:
                    raise OverflowError
    while child.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(_CHECK_SECONDS / 10)
    out, err = read.values()
    return bytes(out), bytes(err)


class Discovery:
    """Asks the command again and again, in a thread of its own.

    Args:
        command: For the shell.
        slots: Of a host that names none.
        found: Gets {host: slots} whenever it has changed.
        say: Gets a sentence when something is wrong, or right again.
    """

    def __init__(
        self,
        command: str,
        slots: int,
        found: Callable[[Mapping[str, int]], object],
        say: Callable[[str], object],
    ) -> None:
        self._command, self._slots = command, slots
        self._found, self._say = found, say
        self._last: dict[str, int] = {}
        self._trouble = ""

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="host discovery", daemon=True).start()

    def look(self) -> None:
        """Ask once."""
        try:
            hosts = parse(ask(self._command), self._slots)
            if not hosts and self._last:
                raise ValueError("finds no host")
        except ValueError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                keeps = "the job keeps the hosts it has" if self._last else "it is asked again"
                self._say(f"--host-discovery-script {self._command}: {error}; {keeps}")
            return
        if self._trouble:
            self._trouble = ""
            self._say(f"--host-discovery-script {self._command}: works again")
        if hosts != self._last or list(hosts) != list(self._last):
            self._last = hosts
            self._found(hosts)

    def _run(self) -> None:
        while True:
            self.look()
            time.sleep(INTERVAL_SECONDS)
