"""The logs of one job: SQLite, then the CSV, behind the ``TrialStore`` contract.

Order and crashes. Every event is written to SQLite first, then to the CSV, so whatever the CSV
shows is in SQLite, and a job that was killed between the two is repaired at the next start from
SQLite. A file that is to be replaced keeps its name until the new one takes it, so at no moment is
there less than before. A CSV that a user has removed (or emptied) is an order to start over.

Each file fails for itself, and what it lacks follows when it can be written again (``Backlog``): no
call raises because of a full disk.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Callable
from typing import Any

from autotune.errors import LogError, RefusedEntryError
from autotune.space import HOROVOD, Table
from autotune.storage.backlog import Backlog
from autotune.storage.contract import (
    Fresh,
    Remembered,
    Replay,
    Resume,
    RunInfo,
    Start,
    TrialStore,
)
from autotune.storage.csv_log import NEW, CsvLog, is_row_of, row_text, set_aside
from autotune.storage.database import Database
from autotune.storage.foreign import CsvContent, parse_csv
from autotune.storage.locking import PATIENCE_S, FileLock
from autotune.storage.memory import find_similar
from autotune.storage.paths import default_db_path, resolve, resolve_folder
from autotune.storage.sqlite_log import SqliteLog
from autotune.storage.sqlite_reader import RunContent
from autotune.storage.standing import standing_of
from autotune.trial import Certificate, RunState, Sample, Standing, Trial, TrialState

LOG = "HOROVOD_AUTOTUNE_LOG"
DB = "HOROVOD_AUTOTUNE_DB"
_RETUNE = ".autotune-retune"


class _State(enum.Enum):
    """What becomes of entries, and what is left to do when the logs are closed."""

    CLOSED = "no run is open: none was begun, it has ended, or a result is replayed"
    TUNING = "a run is open"
    RETUNING = "a run is open whose result is to replace an earlier one"
    GOES_ON = "the run has ended unfinished, and the same job goes on with it"

    @property
    def is_open(self) -> bool:
        return self in (_State.TUNING, _State.RETUNING)


def open_logs(
    csv_path: str | None,
    db_path: str | None,
    *,
    host: str,
    pid: int,
    table: Table = HOROVOD,
    patience_s: float = PATIENCE_S,
) -> Logs:
    """Check and lock the logs of a job, before it starts.

    Args:
        csv_path: ``HOROVOD_AUTOTUNE_LOG``, or None.
        db_path: ``HOROVOD_AUTOTUNE_DB``: a file, an existing folder, or None (beside the CSV).
        host: Host name of the job, for messages.
        pid: Process of the job, for messages.
        table: What is tuned.
        patience_s: How long one that is in use is waited for, in seconds.

    Returns:
        Logs, to be closed. With neither path they do nothing.

    Raises:
        LogBusyError: Another live job writes to one of them.
        LogError: A path cannot be used: the message names it and says what to do.
    """
    csv = resolve(csv_path, LOG) if csv_path else None
    database = _resolve_database(csv, db_path)
    if csv is not None and csv == database:
        raise LogError(f"{LOG} and {DB} both name {csv}: expected two files; change one of them")
    return Logs(csv, database, host=host, pid=pid, table=table, patience_s=patience_s)


class Logs:
    """A ``TrialStore`` over SQLite and CSV; see ``open_logs``.

    Attributes:
        csv_path, db_path: The files (``db_path`` may be a folder), or None.
        has_result: The CSV held a finished run, of whatever job, when it was opened.
        notes: Sentences for people about what became of the files.
        troubles: Sentences for people about files that fail, or work again.
    """

    def __init__(
        self,
        csv_path: str | None,
        db_path: str | None,
        *,
        host: str,
        pid: int,
        table: Table = HOROVOD,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.csv_path = csv_path
        self._table = table
        self.db_path = db_path
        self.notes: list[str] = []
        self.troubles: list[str] = []
        self._to_csv = Backlog(csv_path or "", self.troubles.append)
        self._to_database = Backlog(db_path or "", self.troubles.append)
        self._csv: CsvLog | None = None
        self._state = _State.CLOSED
        who: dict[str, Any] = {"host": host, "pid": pid, "patience_s": patience_s}
        self._lock = FileLock(csv_path, **who) if csv_path else None
        self._database: Database | None = None
        try:
            content = self._read_csv()
            self.has_result = content is not None and content.best is not None
            self._remove_leftovers()
            if db_path is not None:
                self._database = Database(db_path, csv_path=csv_path, **who)
        except BaseException:
            self.close()
            raise
        if self._lock is not None and not self._lock.supported:
            self.notes.append(f"{csv_path}: no file locks here; give each job its own log")

    def start(self, run: RunInfo, *, retune: bool = False) -> Start:
        """Begin, resume or replay, by the job's fingerprint.

        Args:
            run: The job.
            retune: Tune again although there is a result. The CSV with that result stays in place
                until the new one is final.

        Returns:
            ``Replay``: a finished run of this job; no run is open, and nothing more can be added.
            ``Resume``: an unfinished run of this job goes on. ``Fresh``: a new run.
        """
        if self._database is None:
            return Fresh()
        is_gone = self._csv_is_gone()
        found = None if retune or is_gone else self._find(run)
        if found is not None and found.best is not None:
            self._state = _State.CLOSED
        else:
            self._state = _State.RETUNING if retune else _State.TUNING
        moved_to = self._begin_csv(run, found, is_beside=retune and not is_gone)
        self._to_database.write(lambda: self._begin_in_database(run, found, retune=retune))
        if found is None:
            return Fresh(moved_to=moved_to, memory=() if retune else self._remember(run))
        return self._announce(found)

    def begin_run(self, run: RunInfo) -> None:
        """Do as ``start`` does, for callers that need not know how the run begins."""
        self.start(run)

    def add_sample(self, sample: Sample) -> None:
        """Record a reading; it survives ``kill -9`` when this returns, unless the disk is full."""
        self._record(lambda store: store.add_sample(sample))

    def add_trial(self, trial: Trial) -> None:
        """Record a trial; it survives ``kill -9`` when this returns, unless the disk is full."""
        self._record(lambda store: store.add_trial(trial))

    def reject_trial(self, trial: Trial) -> None:
        """Record that the results under a trial's setting are wrong, also after the run's end."""
        self._record(lambda store: store.reject_trial(trial))

    def set_best(self, standing: Standing) -> None:
        """Record what the run holds for the best, as long as it is open."""
        if self._state.is_open:
            self._record(lambda store: store.set_best(standing))

    def add_certificate(self, certificate: Certificate) -> None:
        """Record the comparison of default and incumbent."""
        self._record(lambda store: store.add_certificate(certificate))

    def finish_run(self, state: RunState, best: Trial | None) -> None:
        """End the run; if it is done, the CSV's last line is ``best`` from now on.

        Without a run (before ``start``, after ``Replay``) there is nothing to end.
        """
        if not self._state.is_open:
            return
        goes_on = self._state is _State.TUNING and state is RunState.UNFINISHED
        self._state = _State.GOES_ON if goes_on and best is not None else _State.CLOSED
        self._record(lambda store: store.finish_run(state, best))
        done = state is RunState.DONE and best is not None
        if (csv := self._csv_beside()) is not None:
            self._to_csv.write(lambda: self._end_retune(csv, done=done))

    def close(self) -> None:
        """Close the files and release the locks; a second call does nothing."""
        with contextlib.ExitStack() as stack:
            if self._lock is not None:
                stack.callback(self._lock.close)
            if self._database is not None:
                stack.callback(self._database.close)
            if self._csv is not None:
                stack.callback(self._close_csv, self._csv)
            self._to_database.close()
            self._to_csv.close()
            self._say_what_follows()

    def _remove_leftovers(self) -> None:
        """Remove what a killed job had not finished writing beside the CSV."""
        for suffix in (_RETUNE, NEW, _RETUNE + NEW) if self.csv_path else ():
            with contextlib.suppress(OSError):
                os.unlink(f"{self.csv_path}{suffix}")

    def _read_csv(self) -> CsvContent | None:
        """Return what is at the CSV's path; None: no file, or an empty one."""
        if self.csv_path is None:
            return None
        try:
            with open(self.csv_path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LogError(f"{LOG}={self.csv_path}: cannot be read ({error.strerror})") from None
        if not content.strip():
            return None
        try:
            return parse_csv(content, f"{LOG}={self.csv_path}")
        except LogError as error:
            raise LogError(f"{error}; it is not overwritten: change {LOG}") from None

    def _csv_is_gone(self) -> bool:
        """Return whether there is to be a CSV and none, or an empty one, is there."""
        with contextlib.suppress(LogError):  # unreadable is not gone
            return self.csv_path is not None and self._read_csv() is None
        return False

    def _find(self, run: RunInfo) -> RunContent | None:
        """Return the earlier run of the same job on the same CSV, if any."""
        assert self._database is not None
        try:
            return self._database.open_for(run).find(run.fingerprint, self._database.csv_key)
        except LogError as error:
            self.troubles.append(f"{error}; a new run begins")
            return None

    def _begin_in_database(self, run: RunInfo, found: RunContent | None, *, retune: bool) -> None:
        assert self._database is not None
        sqlite = self._database.open_for(run)
        if found is None:
            key = self._database.csv_key
            sqlite.begin_run(run, csv_path=self.csv_path, csv_key=key, retune=retune)
        elif found.best is None:
            sqlite.resume_run(found.run.run_id, run)
        else:
            sqlite.replay_run(found.run.run_id)

    def _begin_csv(self, run: RunInfo, found: RunContent | None, *, is_beside: bool) -> str | None:
        """Make the CSV hold what was found; return where that of another run went, if any.

        Args:
            run: The job.
            found: The run to go on with or to replay, or None.
            is_beside: The CSV with a result stays until the new one takes its place.
        """
        if self.csv_path is None:
            return None
        before, moved_to = self._csv, []
        path = self.csv_path + _RETUNE if is_beside else self.csv_path
        self._csv = csv = CsvLog(path, self._table)

        def begin() -> None:
            if before is not None:
                before.close()
            if not is_beside:
                moved_to.append(self._set_aside_other(run, found))
            csv.restore(found.trials if found else (), found.best if found else None)

        self._to_csv.write(begin)
        return moved_to[0] if moved_to else None

    def _set_aside_other(self, run: RunInfo, found: RunContent | None) -> str | None:
        """Move the CSV aside unless it is the one of ``found``, or holds no row."""
        content = self._read_csv()
        if self.csv_path is None or content is None or (content.own and not content.lines):
            return None
        known = {row_text(trial) for trial in found.trials} if found else set()
        lines = content.lines if content.best is None else content.lines[:-1]
        if found is not None:  # the job was killed before the CSV knew that they are wrong
            wrong = [trial for trial in found.trials if trial.state is TrialState.REJECTED]
            lines = tuple(x for x in lines if not any(is_row_of(x, one) for one in wrong))
        if content.own and known.issuperset(lines):
            return None
        try:
            old, new = self.csv_path, set_aside(self.csv_path)
        except OSError as error:
            raise LogError(f"{self.csv_path}: cannot be moved aside ({error.strerror})") from None
        database = self._database
        assert database is not None
        self._to_database.write(lambda: database.open_for(run).moved_csv(old, new))
        is_longer = content.own and not known.isdisjoint(lines)
        what = "holds trials that its database lacks" if is_longer else "the log of another job"
        self.notes.append(f"{old}: {what}, moved to {new}")
        return new

    def _record(self, entry: Callable[[TrialStore], None]) -> None:
        """Write an entry to both files."""
        if self._database is None:
            return
        refused: list[RefusedEntryError] = []
        ways: list[tuple[Backlog, Callable[[], None]]] = [
            (self._to_database, lambda: entry(self._sqlite()))
        ]
        if (csv := self._csv) is not None:
            ways.append((self._to_csv, lambda: entry(csv)))
        for backlog, write in ways:
            try:
                backlog.write(write)
            except RefusedEntryError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def _sqlite(self) -> SqliteLog:
        if self._database is None or self._database.log is None:
            raise RefusedEntryError(f"{self.db_path}: no run is open: begin_run comes first")
        return self._database.log

    def _remember(self, run: RunInfo) -> tuple[Remembered, ...]:
        """Return what similar jobs learned whose databases are beside the logs."""
        database = self._database
        assert database is not None and self.db_path is not None
        folder = os.path.dirname(self.csv_path or self.db_path)
        own = (database.log.path, database.csv_key) if database.log is not None else None
        return tuple(find_similar(run, (self.db_path, folder), own=own, say=self.notes.append))

    def _announce(self, found: RunContent) -> Start:
        path = self.csv_path or self.db_path
        if found.best is not None:
            self.notes.append(
                f"{path}: finished run of this job, replayed (remove it to tune again)"
            )
            return Replay(best=found.best, certificate=found.certificate)
        self.notes.append(
            f"{path}: unfinished run of this job, resumed at trial {len(found.trials)}"
        )
        return Resume(
            trials=found.trials,
            samples=found.samples,
            seed=found.run.seed,
            standing=standing_of(found),
        )

    def _say_what_follows(self) -> None:
        """Say that the run can go on, if it can: a retune that was cut off begins anew."""
        if self._state is not _State.GOES_ON:
            return
        self._state = _State.CLOSED
        if not (self._to_csv.missing or self._to_database.missing):
            name, path = (LOG, self.csv_path) if self.csv_path else (DB, self.db_path)
            self.notes.append(f"the same job with the same {name} goes on from here ({path})")

    def _close_csv(self, csv: CsvLog) -> None:
        csv.close()
        if self._state is _State.RETUNING and self._csv_beside() is not None:
            self._end_retune(csv, done=False)
        self._state = _State.CLOSED

    def _csv_beside(self) -> CsvLog | None:
        """Return the CSV of a retune that is to take the place of the one with a result."""
        return None if self._csv is None or self._csv.path == self.csv_path else self._csv

    def _end_retune(self, csv: CsvLog, *, done: bool) -> None:
        csv.close()
        if done:
            assert self.csv_path is not None
            os.replace(csv.path, self.csv_path)
            csv.path = self.csv_path
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(csv.path)


def _resolve_database(csv: str | None, db_path: str | None) -> str | None:
    if db_path and (os.path.isdir(os.path.expanduser(db_path)) or db_path.endswith("/")):
        return resolve_folder(db_path, DB)
    if db_path:
        return resolve(db_path, DB)
    return resolve(default_db_path(csv), DB) if csv else None
