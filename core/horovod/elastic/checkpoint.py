"""The file in which a job that has to end leaves its last commit, for the job that goes on.

*Format*: a line that says what it is, a line of JSON (``Head``), the state as a pickle, and at the
end its length, its CRC-32 and a last word. So a file of somebody else's and one of which a part is
missing are known before anything of them is taken for a state.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

ENV = "HOROVOD_ELASTIC_CHECKPOINT"
FIRST_LINE = b"hvd-autotune elastic state 1\n"
_FIRST_WORDS = FIRST_LINE.rpartition(b" ")[0]
_LAST_WORD = b"end\n"
_TAIL = struct.Struct(f">QI{len(_LAST_WORD)}s")
"""Length of the pickle in bytes, its CRC-32, the last word."""
_MOST_LINE = 1 << 16
_PIECE = 1 << 24


class CheckpointError(ValueError):
    """The file cannot be used; one sentence says why, and that nothing of it was changed."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a file says of itself.

    Attributes:
        job: Which job has written it, a random text.
        commit: Number of the commit.
        function: Name of the elastic function.
        ranks: Number of ranks.
        written: When, for people.
    """

    job: str
    commit: int
    function: str
    ranks: int
    written: str


class Checkpoint:
    """A file that is there as a whole or not at all.

    Args:
        path: Of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    def expect_place(self) -> None:
        """**Local.** Raise a CheckpointError where the file could not be written."""
        folder = self.path.parent
        if not folder.is_dir():
            raise CheckpointError(f"{ENV}: {self.path}: there is no folder {folder}; make it")
        if self.path.is_dir() or not os.access(folder, os.W_OK):
            what = "is a folder" if self.path.is_dir() else "cannot be written"
            raise CheckpointError(f"{ENV}: {self.path} {what}; name another file")

    def read(self, function: str) -> tuple[Head, Any] | None:
        """**Local.** Return the head and the content; None: there is no file.

        Args:
            function: Name of the function that wants to go on.

        Raises:
            CheckpointError: It is no such file, not a whole one, or another function's.
        """
        try:
            with self.path.open("rb") as file:
                head = self._head(file)
                if head.function != function:
                    raise self._useless(f"is of the function {head.function}, not {function}")
                self._expect_whole(file)
                return head, self._unpickled(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._useless(f"cannot be read: {error.strerror}") from None

    def write(self, head: Head, content: Mapping[str, Any]) -> bool:
        """**Local.** Replace the file; False: a commit of this job that is as new is there.

        Raises:
            OSError: It cannot be written; what was there is still there.
        """
        if self.has(head.job, head.commit):
            return False
        part = self.path.with_name(f"{self.path.name}.part-{os.getpid()}")
        try:
            with part.open("wb") as file:
                file.write(FIRST_LINE + json.dumps(asdict(head)).encode() + b"\n")
                checked = _Checked(file)
                pickle.dump(content, checked, protocol=5)
                file.write(_TAIL.pack(checked.length, checked.crc, _LAST_WORD))
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            _sync_folder(self.path.parent)
        return True

    def has(self, job: str, commit: int) -> bool:
        """**Local.** Return whether the file holds that commit of ``job``, or a later one."""
        try:
            with self.path.open("rb") as file:
                there = self._head(file)
        except (OSError, CheckpointError):
            return False
        return there.job == job and there.commit >= commit

    def put_away(self) -> Path | None:
        """**Local.** The function has come to its end: rename the file, so that no job goes on.

        Returns:
            Its new name; None: there was no file, or it has to stay.
        """
        done = self.path.with_name(self.path.name + ".done")
        try:
            with self.path.open("rb") as file:
                self._head(file)
            self.path.replace(done)
        except (OSError, CheckpointError):
            return None
        return done

    def _head(self, file: IO[bytes]) -> Head:
        first = file.readline(len(FIRST_LINE))
        if first != FIRST_LINE:
            if not first:
                raise self._useless("is empty")
            if first.startswith(_FIRST_WORDS):
                raise self._useless("was written by another version")
            raise self._useless("is no state of an elastic job")
        try:
            return Head(**json.loads(file.readline(_MOST_LINE)))
        except (ValueError, TypeError):
            raise self._useless("is damaged in its second line") from None

    def _expect_whole(self, file: IO[bytes]) -> None:
        """Compare the rest of the file with what its end says; stay where we are."""
        start = file.tell()
        size = os.fstat(file.fileno()).st_size - start - _TAIL.size
        crc, left = 0, max(size, 0)
        while left and (data := file.read(min(left, _PIECE))):
            crc, left = zlib.crc32(data, crc), left - len(data)
        tail = file.read(_TAIL.size)
        if size < 0 or len(tail) < _TAIL.size or not tail.endswith(_LAST_WORD):
            raise self._useless("is not whole: its end is missing")
        if _TAIL.unpack(tail) != (size, crc, _LAST_WORD):
            raise self._useless("is damaged: its content is not what its end says")
        file.seek(start)

    def _unpickled(self, file: IO[bytes]) -> Any:
        try:
            return pickle.load(file)
        except Exception as error:  # whatever a class of the script raises
            raise self._useless(f"holds objects that this script does not know: {error}") from None

    def _useless(self, why: str) -> CheckpointError:
        return CheckpointError(
            f"{ENV}: {self.path} {why}; it is left as it is: move it away to begin anew, or name "
            "another file"
        )


class _Checked:
    """Writes to ``file`` and counts."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.length = self.crc = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self.length += len(view)
        self.crc = zlib.crc32(view, self.crc)
        return len(view)


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
