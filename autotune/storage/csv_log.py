"""The CSV that people read: one row per finished trial, and at the end the best one again.

::

    hierarchical_allreduce,hierarchical_allgather,cache_capacity,cycle_time_ms, ... ,score
    0,0,1024,1,16,812.5          booleans 0/1, cycle in ms, threshold in MiB, score in bytes/us
    0,0,1024,2.5,4,1290.25
    0,0,1024,2.5,4,1287.5        repeats an earlier setting: tuning is finished, this is the best

A configuration has one trial row at most, so no other mark of the end is needed. The last row's
score is what the pairs of the certificate say of its setting, so it differs from the earlier one,
by which the setting was chosen. A row that stands is changed only if its results turn out to be
wrong: then its score is 0, and it is no last line. A row is one ``write`` of a whole line; a reader
ignores a last line without a newline, and a resuming writer cuts it off.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from autotune.errors import LogError, RefusedEntryError
from autotune.exact import exact, exact_shown
from autotune.space import HOROVOD, Table
from autotune.storage.contract import RunInfo
from autotune.trial import Certificate, RunState, Sample, Setting, Standing, Trial

NEW = ".autotune-new"
"""Suffix of a file that is about to replace another."""


def params_text(params: Setting) -> str:
    """Return the row's cells of a setting; equal settings give equal text."""
    rows, values = params.table.parameters, params.as_dict()
    return ",".join(exact_shown(row, values[row.name]) for row in rows)


def row_text(trial: Trial) -> str:
    """Return the row of a trial, without newline."""
    cells = params_text(trial.params).split(",")
    cells.insert(_place_of_score(trial), exact(trial.score))
    return ",".join(cells)


def is_row_of(line: str, trial: Trial) -> bool:
    """Return whether a row is about the setting of a trial, whatever its score."""
    cells = line.split(",")
    del cells[_place_of_score(trial) : _place_of_score(trial) + 1]
    return ",".join(cells) == params_text(trial.params)


def _place_of_score(trial: Trial) -> int:
    return trial.params.table.columns.index("score")


class CsvLog:
    """Writer of one CSV (a ``TrialStore``); the caller holds the log's lock.

    Args:
        path: The file; its folder exists.
        table: The parameters of its trials.
    """

    def __init__(self, path: str, table: Table = HOROVOD) -> None:
        self.path = path
        self._table = table
        self._fd = -1
        self._settings: set[str] = set()

    def begin_run(self, run: RunInfo) -> None:
        """Begin an empty log.

        Raises:
            LogError: The file holds something already.
        """
        content = _read(self.path)
        if content and content != self._text_of([]):
            raise LogError(f"{self.path}: holds another run: expected no file or an empty one")
        self.restore([])

    def restore(self, trials: Iterable[Trial], best: Trial | None = None) -> None:
        """Make the file hold exactly these trials (and the best line), then append to it.

        What is there and right is kept; an unfinished last line is cut off; rows that are missing
        are appended; anything else is replaced atomically.

        Raises:
            LogError: The file cannot be written.
        """
        trials = list(trials)
        self._settings = {params_text(trial.params) for trial in trials}
        wanted = self._text_of([*trials, best] if best else trials)
        try:
            self._restore(wanted)
        except OSError as error:
            raise LogError(f"{self.path}: cannot be written ({error.strerror})") from None

    def add_sample(self, sample: Sample) -> None:
        """Samples are in SQLite only."""

    def set_best(self, standing: Standing) -> None:
        """What an unfinished run holds for the best is in SQLite only."""

    def add_certificate(self, certificate: Certificate) -> None:
        """The certificate is in SQLite only."""

    def add_trial(self, trial: Trial) -> None:
        """Append the trial's row.

        Raises:
            RefusedEntryError: The setting has a row already.
            LogError: The row cannot be written; the file is as it was.
        """
        key = params_text(trial.params)
        if key in self._settings:
            raise RefusedEntryError(
                f"{self.path}: trial {trial.trial_id} repeats the setting {key}"
            )
        self._append(row_text(trial))
        self._settings.add(key)

    def reject_trial(self, trial: Trial) -> None:
        """Give the trial's row the score 0, and take it away as the last line.

        Raises:
            RefusedEntryError: The setting has no row.
            LogError: The file cannot be written; it is as it was.
        """
        lines = _read(self.path).decode().splitlines()
        rows = [k for k, line in enumerate(lines) if is_row_of(line, trial)]
        if not rows:
            raise RefusedEntryError(f"{self.path}: trial {trial.trial_id} was not added")
        lines[rows[0]] = row_text(trial.rejected)
        for k in reversed(rows[1:]):
            del lines[k]
        is_open = self._fd >= 0
        try:
            replace_file(self.path, "".join(f"{line}\n" for line in lines).encode())
            self.close()
            if is_open:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise LogError(f"{self.path}: cannot be written ({error.strerror})") from None

    def finish_run(self, state: RunState, best: Trial | None) -> None:
        """Append the best line if the run is done: its setting once more, with its last score."""
        if state is not RunState.DONE or best is None:
            return
        if params_text(best.params) not in self._settings:
            self.add_trial(best)
        self._append(row_text(best))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _restore(self, wanted: bytes) -> None:
        self.close()
        content = _read(self.path)
        whole = content[: content.rfind(b"\n") + 1]
        if not content or not wanted.startswith(whole):
            replace_file(self.path, wanted)
            whole = content = wanted
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if whole != content:
            os.ftruncate(self._fd, len(whole))
        _write(self._fd, wanted[len(whole) :])

    def _text_of(self, trials: Iterable[Trial]) -> bytes:
        header = ",".join(self._table.columns)
        return "".join(f"{line}\n" for line in [header, *map(row_text, trials)]).encode()

    def _append(self, line: str) -> None:
        if self._fd < 0:
            raise RefusedEntryError(f"{self.path}: not open: begin_run comes first")
        try:
            _write(self._fd, f"{line}\n".encode())
        except OSError as error:
            raise LogError(f"{self.path}: cannot be written ({error.strerror})") from None


def replace_file(path: str, content: bytes) -> None:
    """Put ``content`` at ``path`` atomically: readers see the old file or the new one, whole.

    Raises:
        OSError: The folder cannot be written; the old file is as it was.
    """
    new = path + NEW
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        if os.path.exists(path):
            os.fchmod(fd, os.stat(path).st_mode & 0o777)
        _write(fd, content)
    finally:
        os.close(fd)
    os.replace(new, path)
    _sync_folder(path)


def set_aside(path: str) -> str:
    """Give the file at ``path`` a second name ``path.1``, ``path.2`` ... and return it.

    The first name stays until ``replace_file`` takes it, so a crash in between loses nothing and
    the second attempt finds the name that the first one gave.
    """
    number = 1
    while os.path.lexists(name := f"{path}.{number}"):
        if os.path.exists(name) and os.path.samefile(name, path):
            return name
        number += 1
    try:
        os.link(path, name)
    except OSError:  # a file system without hard links
        replace_file(name, _read(path))
    return name


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _write(fd: int, content: bytes) -> None:
    """Write all of ``content`` or nothing, and make it durable."""
    if not content:
        return
    size = os.fstat(fd).st_size
    try:
        if os.write(fd, content) != len(content):
            raise OSError(28, "No space left on device")
        os.fsync(fd)
    except OSError:
        os.ftruncate(fd, size)
        raise


def _sync_folder(path: str) -> None:
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError:
        pass  # some network file systems cannot; the rename itself is atomic
    finally:
        os.close(fd)
