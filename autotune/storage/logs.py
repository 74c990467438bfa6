"""The logs of one job: SQLite, then the CSV, behind the ``TrialStore`` contract.

Order and crashes. Every event is written to SQLite first, then to the CSV, so whatever the CSV
shows is in SQLite, and a job that was killed between the two is repaired at the next start from
SQLite. A file that is to be replaced keeps its name until the new one takes it, so at no moment is
there less than before. A CSV that a user has removed (or emptied) is an order to start over.
"""

from __future__ import annotations

import contextlib
import os

from autotune.errors import LogError
from autotune.storage.contract import Fresh, Replay, Resume, RunInfo, Start
from autotune.storage.csv_log import NEW, CsvLog, row_text, set_aside
from autotune.storage.database import Database
from autotune.storage.foreign import CsvContent, parse_csv
from autotune.storage.locking import FileLock
from autotune.storage.paths import default_db_path, resolve, resolve_folder
from autotune.storage.sqlite_reader import RunContent
from autotune.trial import Certificate, RunState, Sample, Trial

LOG = "HOROVOD_AUTOTUNE_LOG"
DB = "HOROVOD_AUTOTUNE_DB"
_RETUNE = ".autotune-retune"


def open_logs(csv_path: str | None, db_path: str | None, *, host: str, pid: int) -> Logs:
    """Check and lock the logs of a job, before it starts.

    Args:
        csv_path: ``HOROVOD_AUTOTUNE_LOG``, or None.
        db_path: ``HOROVOD_AUTOTUNE_DB``: a file, an existing folder, or None (beside the CSV).
        host: Host name of the job, for messages.
        pid: Process of the job, for messages.

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
    return Logs(csv, database, host=host, pid=pid)


class Logs:
    """A ``TrialStore`` over SQLite and CSV; see ``open_logs``.

    Attributes:
        csv_path, db_path: The files (``db_path`` may be a folder), or None.
        notes: Sentences for people about what ``start`` did with the files.
    """

    def __init__(self, csv_path: str | None, db_path: str | None, *, host: str, pid: int) -> None:
        self.csv_path = csv_path
        self.db_path = db_path
        self.notes: list[str] = []
        self._csv: CsvLog | None = None
        self._retune = False
        self._running = False
        self._lock = FileLock(csv_path, host=host, pid=pid) if csv_path else None
        self._database: Database | None = None
        try:
            self._read_csv()
            self._remove_leftovers()
            if db_path is not None:
                self._database = Database(db_path, csv_path=csv_path, host=host, pid=pid)
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

        Raises:
            LogError: A file cannot be read or written.
        """
        if self._database is None:
            return Fresh()
        sqlite, found = self._database.open_for(run)
        content = self._read_csv()
        self._retune = retune and content is not None
        if retune or (self.csv_path is not None and content is None):
            found = None
        moved_to = None if self._retune else self._set_aside_other(content, found)
        if found is None:
            key = self._database.csv_key
            sqlite.begin_run(run, csv_path=self.csv_path, csv_key=key, retune=retune)
        elif found.best is None:
            sqlite.resume_run(found.run.run_id, run)
        self._restore_csv(found)
        self._running = found is None or found.best is None
        return self._announce(found, moved_to)

    def begin_run(self, run: RunInfo) -> None:
        """Do as ``start`` does, for callers that need not know how the run begins."""
        self.start(run)

    def add_sample(self, sample: Sample) -> None:
        """Record a reading; it survives ``kill -9`` when this returns."""
        if self._database is not None and self._database.log is not None:
            self._database.log.add_sample(sample)

    def add_trial(self, trial: Trial) -> None:
        """Record a finished trial; it survives ``kill -9`` when this returns."""
        if self._database is not None and self._database.log is not None:
            self._database.log.add_trial(trial)
        if self._csv is not None:
            self._csv.add_trial(trial)

    def add_certificate(self, certificate: Certificate) -> None:
        """Record the comparison of default and incumbent."""
        if self._database is not None and self._database.log is not None:
            self._database.log.add_certificate(certificate)

    def finish_run(self, state: RunState, best: Trial | None) -> None:
        """End the run; if it is done, the CSV's last line is ``best`` from now on.

        Without a run (before ``start``, after ``Replay``) there is nothing to end.
        """
        if not self._running:
            return
        self._running = False
        if self._database is not None and self._database.log is not None:
            self._database.log.finish_run(state, best)
        if self._csv is None:
            return
        self._csv.finish_run(state, best)
        if self._retune:
            self._end_retune(done=state is RunState.DONE and best is not None)

    def close(self) -> None:
        """Close the files and release the locks; a second call does nothing."""
        if self._csv is not None:
            self._csv.close()
            if self._retune:
                self._end_retune(done=False)
        if self._database is not None:
            self._database.close()
        if self._lock is not None:
            self._lock.close()

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

    def _set_aside_other(self, content: CsvContent | None, found: RunContent | None) -> str | None:
        """Move the CSV aside unless it is the one of ``found``, or holds no row."""
        if self.csv_path is None or content is None or (content.own and not content.lines):
            return None
        known = {row_text(trial) for trial in found.trials} if found else set()
        if content.own and known.issuperset(content.lines):
            return None
        moved_to = set_aside(self.csv_path)
        if self._database is not None and self._database.log is not None:
            self._database.log.moved_csv(self.csv_path, moved_to)
        self.notes.append(f"{self.csv_path}: the log of another job, moved to {moved_to}")
        return moved_to

    def _restore_csv(self, found: RunContent | None) -> None:
        if self.csv_path is None:
            return
        if self._csv is not None:
            self._csv.close()
        self._csv = CsvLog(self.csv_path + _RETUNE if self._retune else self.csv_path)
        self._csv.restore(found.trials if found else (), found.best if found else None)

    def _announce(self, found: RunContent | None, moved_to: str | None) -> Start:
        path = self.csv_path or self.db_path
        if found is None:
            return Fresh(moved_to=moved_to)
        if found.best is not None:
            self.notes.append(
                f"{path}: finished run of this job, replayed (remove it to tune again)"
            )
            return Replay(best=found.best, certificate=found.certificate)
        self.notes.append(
            f"{path}: unfinished run of this job, resumed at trial {len(found.trials)}"
        )
        return Resume(trials=found.trials, samples=found.samples, seed=found.run.seed)

    def _end_retune(self, *, done: bool) -> None:
        assert self._csv is not None and self.csv_path is not None
        self._csv.close()
        self._retune = False
        if done:
            os.replace(self._csv.path, self.csv_path)
        else:
            os.unlink(self._csv.path)


def _resolve_database(csv: str | None, db_path: str | None) -> str | None:
    if db_path and (os.path.isdir(os.path.expanduser(db_path)) or db_path.endswith("/")):
        return resolve_folder(db_path, DB)
    if db_path:
        return resolve(db_path, DB)
    return resolve(default_db_path(csv), DB) if csv else None
