"""A child process that is talked to in lines and never waited for.

Knows nothing of tuning: it starts a command, sends lines to its standard input and takes complete
lines from its standard output, both without blocking. What the child does not read is buffered up
to a bound; beyond it, droppable lines are dropped and counted.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO

MAX_BUFFERED_BYTES = 1 << 20

_LAUNCHER_PREFIXES = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "PMI2_", "SLURM_STEP", "MPIR_CVAR_")
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")

_unreaped: list[int] = []
"""Children that had not ended when we stopped waiting for them."""


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` without the MPI job's variables, with one BLAS thread."""
    kept = {name: text for name, text in environ.items() if not name.startswith(_LAUNCHER_PREFIXES)}
    return kept | dict.fromkeys(_ONE_THREAD, "1") | {"PYTHONUNBUFFERED": "1"}


def reap_previous(seconds: float = 5.0) -> None:
    """Wait for children that were still ending, at most ``seconds``; then kill them."""
    deadline = time.monotonic() + seconds
    while _unreaped:
        pid = _unreaped[-1]
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if _has_ended(pid):
            _unreaped.pop()
        else:
            time.sleep(0.01)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


class ServiceProcess:
    """One running child.

    Args:
        command: Absolute path of the program, then its arguments.
        environ: The environment of the child.

    Attributes:
        broken: The child closed its end, or ended.
        dropped: Lines that were dropped because the child did not read.

    Raises:
        OSError: The child cannot be started.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.broken = False
        self.dropped = 0
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        try:
            self._pid, self._stdin, self._stdout = _spawn(command, environ, self._errors.fileno())
        except OSError:
            self._errors.close()
            raise
        self._arrivals = select.poll()
        self._arrivals.register(self._stdout, select.POLLIN)

    def send(self, line: bytes, *, droppable: bool = False) -> None:
        """Send ``line`` (newline included), now or later; never blocks, never raises."""
        if self.broken:
            return
        if droppable and len(self._outgoing) + len(line) > MAX_BUFFERED_BYTES:
            self.dropped += 1
            return
        self._outgoing += line
        self.flush()

    def flush(self) -> None:
        """Write as much of the buffer as the pipe takes."""
        while self._outgoing and not self.broken:
            try:
                written = os.write(self._stdin, self._outgoing[:65536])
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                return
            del self._outgoing[:written]

    @property
    def has_word(self) -> bool:
        """Whether something has arrived, or the child has ended: some microseconds."""
        return not self.broken and bool(self._arrivals.poll(0))

    def receive(self) -> list[bytes]:
        """Return the complete lines that have arrived; never blocks."""
        while self.has_word:
            try:
                data = os.read(self._stdout, 65536)
            except OSError:
                data = b""
            self.broken = not data
            self._incoming += data
        if b"\n" not in self._incoming:
            return []
        *lines, rest = bytes(self._incoming).split(b"\n")
        self._incoming = bytearray(rest)
        return lines

    def wait(self, seconds: float) -> None:
        """Return when something arrived or the child ended, at the latest after ``seconds``."""
        if not self.broken:
            waiting = select.poll()  # unlike select() for any number of open files
            waiting.register(self._stdout, select.POLLIN)
            if self._outgoing:
                waiting.register(self._stdin, select.POLLOUT)
            waiting.poll(1000 * max(0.0, seconds))
            self.flush()

    def last_words(self) -> str:
        """Return the last line that the child wrote to its standard error, '' if none."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close_input(self) -> None:
        """Tell the child that nothing more will come."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        self._outgoing.clear()

    def close(self) -> None:
        """Let go of the child; it may still be ending. Idempotent."""
        self.broken = True
        self.close_input()
        if self._stdout >= 0:
            os.close(self._stdout)
            self._stdout = -1
            self._errors.close()
            if not _has_ended(self._pid):
                _unreaped.append(self._pid)

    def forget(self) -> None:
        """In a forked child of ours: close our copies, leave the service to the parent."""
        _unreaped.clear()
        self.broken = True
        for descriptor in (self._stdin, self._stdout):
            if descriptor >= 0:
                os.close(descriptor)
        self._stdin = self._stdout = -1


def _spawn(command: Sequence[str], environ: Mapping[str, str], stderr: int) -> tuple[int, int, int]:
    """Return (process id, our end of its standard input, our end of its standard output).

    The child has a process group of its own, so that Ctrl-C does not reach it, but no session of
    its own: the kernel schedules by session, and there its low priority would count for nothing.
    """
    to_read, ours_out = os.pipe()
    ours_in, to_write = os.pipe()
    actions: list[tuple[int, ...]] = [
        (os.POSIX_SPAWN_DUP2, to_read, 0),
        (os.POSIX_SPAWN_DUP2, to_write, 1),
        (os.POSIX_SPAWN_DUP2, stderr, 2),
        *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable_descriptors()),
    ]
    try:
        pid = os.posix_spawn(command[0], list(command), environ, file_actions=actions, setpgroup=0)
    except OSError:
        os.close(ours_out)
        os.close(ours_in)
        raise
    finally:
        os.close(to_read)
        os.close(to_write)
    os.set_blocking(ours_out, False)
    os.set_blocking(ours_in, False)
    return pid, ours_out, ours_in


def _inheritable_descriptors() -> list[int]:
    """Return what C libraries opened without close-on-exec: MPI's sockets must not outlive us."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
    return found
