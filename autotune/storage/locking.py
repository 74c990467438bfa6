"""One live writer per log: an ``flock`` on a side file that says who holds it.

The lock is the kernel's, so it ends with the process however that ends; the content of the side
file is only for the message. A side file that nobody has locked (left by ``kill -9``) means
nothing.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from dataclasses import dataclass

from autotune.errors import LogBusyError, LogError

SUFFIX = ".lock"
PATIENCE_S = 0.3
"""How long a log that is in use is waited for: its job may just be ending."""
_NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a log: host name, process and start time (ISO 8601, UTC)."""

    host: str
    pid: int
    started_at: str

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host} (since {self.started_at})"


class FileLock:
    """The lock of one log, held from construction to ``close``.

    The descriptor is close-on-exec: a lock that children inherited would outlive this process.

    Args:
        path: The log that is locked; the lock is ``path`` + ``.lock`` beside it.
        host, pid: Who asks.
        patience_s: How long the lock is waited for, in seconds.

    Raises:
        LogBusyError: A live process holds the log, for longer.
        LogError: The lock file cannot be made, because the folder cannot be written.
    """

    def __init__(self, path: str, *, host: str, pid: int, patience_s: float = PATIENCE_S) -> None:
        self.path = path + SUFFIX
        self._patience_s = patience_s
        self.supported = True
        """False where the file system has no locks: two writers are not noticed there."""
        self._fd = self._acquire(path)
        started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        os.ftruncate(self._fd, 0)
        os.write(
            self._fd, json.dumps({"host": host, "pid": pid, "started_at": started_at}).encode()
        )

    def close(self) -> None:
        """Release the lock and remove its file; a second call does nothing."""
        if self._fd < 0:
            return
        if _is_at(self._fd, self.path):
            os.unlink(self.path)
        os.close(self._fd)
        self._fd = -1

    def _acquire(self, path: str) -> int:
        deadline = time.monotonic() + self._patience_s
        while True:
            fd = self._try()
            if fd is not None:
                return fd
            if time.monotonic() > deadline:
                raise LogBusyError(
                    f"{path}: in use by {_read(self.path) or 'another live process'}: expected one "
                    "job per log; end that job, or give this one another path"
                )
            time.sleep(0.02)

    def _try(self) -> int | None:
        """Return the locked descriptor of the file that is at ``path`` now, or None."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise LogError(
                f"{self.path}: cannot be made beside the log ({error.strerror}): choose a folder "
                "that this job may write"
            ) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                self.supported = False
                return fd
            os.close(fd)
            return None
        if _is_at(fd, self.path):
            return fd
        os.close(fd)  # its last holder removed it in between
        return None


def holder(path: str) -> Holder | None:
    """Return who holds the log at ``path`` now, or None. Never blocks, never creates a file."""
    try:
        fd = os.open(path + SUFFIX, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read(path + SUFFIX)
    finally:
        os.close(fd)
    return None


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def _read(path: str) -> Holder | None:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        started_at = str(content["started_at"])
        return Holder(host=str(content["host"]), pid=int(content["pid"]), started_at=started_at)
    except (OSError, ValueError, KeyError, TypeError):
        return None
