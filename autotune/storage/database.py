"""Where a run's SQLite file is: one file for all runs, or a folder with one file per run."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time

from autotune.errors import LogBusyError, LogError
from autotune.storage.contract import RunInfo
from autotune.storage.locking import PATIENCE_S, FileLock
from autotune.storage.sqlite_log import SqliteLog
from autotune.storage.sqlite_reader import find_runs, open_read_only
from autotune.storage.sqlite_schema import fingerprint_hash


class Database:
    """The database of one job: opened and locked at once if a file, at ``open_for`` if a folder.

    Args:
        path: File or folder, checked by ``paths``.
        csv_path: The job's CSV, or None.
        host, pid: The job.
        patience_s: How long a file that is in use is waited for, in seconds.

    Raises:
        LogBusyError: Another live job writes to the file.
        LogError: The file is not an autotune database or cannot be written.
    """

    def __init__(
        self,
        path: str,
        *,
        csv_path: str | None,
        host: str,
        pid: int,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.path = path
        self._patience_s = patience_s
        self.log: SqliteLog | None = None
        self._csv_path = csv_path
        self._host, self._pid = host, pid
        self._lock: FileLock | None = None
        self._new_path: str | None = None
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        self.csv_key = os.path.relpath(csv_path, folder) if csv_path else None
        """The CSV's name in the database: relative, so both can move together."""
        if not os.path.isdir(path):
            self._open(path)

    def open_for(self, run: RunInfo) -> SqliteLog:
        """Return the open log."""
        if self.log is None:
            self._open_in_folder(run)
        assert self.log is not None
        return self.log

    def close(self) -> None:
        """Close the file and release its lock; a second call does nothing."""
        if self.log is not None:
            self.log.close()
            self.log = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _open(self, path: str) -> None:
        self._lock = FileLock(path, host=self._host, pid=self._pid, patience_s=self._patience_s)
        try:
            self.log = SqliteLog(path)
        except BaseException:
            self._lock.close()
            raise

    def _open_in_folder(self, run: RunInfo) -> None:
        """Open the newest file with this job, unless another live job has it, or a new file."""
        for path in self._files_of(run):
            with contextlib.suppress(LogBusyError):
                return self._open(path)
        self._new_path = self._new_path or self._free_path()
        return self._open(self._new_path)

    def _free_path(self) -> str:
        stem = os.path.splitext(os.path.basename(self._csv_path or "run"))[0]
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = re.sub(r"[^\w.-]", "_", f"{stem}-{stamp}-{self._host}-{self._pid}")
        number = 1
        while os.path.exists(path := os.path.join(self.path, f"{name}-{number}.db")):
            number += 1
        return path

    def _files_of(self, run: RunInfo) -> list[str]:
        hash_ = fingerprint_hash(run.fingerprint)
        found = []
        for path in glob.glob(os.path.join(glob.escape(self.path), "*.db")):
            with contextlib.suppress(LogError), open_read_only(path) as connection:
                if find_runs(connection, csv_key=self.csv_key, fingerprint_hash=hash_):
                    found.append(path)
        return sorted(found, key=os.path.getmtime, reverse=True)
