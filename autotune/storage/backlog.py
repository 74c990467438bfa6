"""A log that cannot be written for a while: what it lacks is kept and follows, in order.

A full disk has room again later, a lock is released, a server comes back. Until then nothing is
lost and nobody waits: every new entry is another attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from autotune.errors import LogError, RefusedEntryError


class Backlog:
    """The way into one log; it says once that the log fails, and once that it works again.

    Attributes:
        missing: Entries that are not in the log.
    """

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        """Lead to the log at ``path``; ``say`` receives sentences for people."""
        self._path, self._say = path, say
        self._entries: deque[Callable[[], None]] = deque()
        self._trouble = ""

    @property
    def missing(self) -> int:
        """Number of entries that are not in the log."""
        return len(self._entries)

    def write(self, entry: Callable[[], None]) -> None:
        """Write what is missing, then ``entry``; where that fails, it is tried again next time.

        Args:
            entry: Writes something; changes nothing where it fails.

        Raises:
            RefusedEntryError: An entry contradicts the log; it is dropped.
        """
        self._entries.append(entry)
        self._flush()

    def close(self) -> None:
        """Write what is missing, for the last time."""
        missing = self.missing
        if not missing:
            return
        self._flush()
        if self._trouble:
            entries = "entry is" if self.missing == 1 else "entries are"
            self._say(f"{self._path} is incomplete: {self.missing} {entries} missing")

    def _flush(self) -> None:
        refused: RefusedEntryError | None = None
        while self._entries:
            try:
                self._entries[0]()
            except RefusedEntryError as error:
                refused = refused or error
            except Exception as error:  # a full disk, a removed folder: never the end of the job
                self._failed(error)
                break
            self._entries.popleft()
        else:
            self._worked()
        if refused is not None:
            raise refused

    def _failed(self, error: Exception) -> None:
        if not self._trouble:
            self._trouble = str(error) if isinstance(error, LogError) else f"{self._path}: {error}"
            self._say(f"{self._trouble}; tuning goes on, and what is missing follows when it can")

    def _worked(self) -> None:
        if self._trouble:
            self._trouble = ""
            self._say(f"{self._path} can be written again: nothing is missing")
