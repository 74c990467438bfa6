"""Reads SQLite logs with the standard library alone, also while a job writes to them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import quote

from autotune.errors import LogError
from autotune.storage.sqlite_schema import (
    APPLICATION_ID,
    MAGIC,
    SCHEMA_VERSION,
    StoredRun,
    certificate_from_row,
    run_from_row,
    sample_from_row,
    trial_from_row,
)
from autotune.trial import Certificate, RunState, Sample, Standing, Trial

_BUSY_TIMEOUT_S = 2.0
_BRIEFLY_S = 0.1


@dataclass(frozen=True, kw_only=True)
class RunContent:
    """All that one run holds; ``certificate`` is the latest.

    ``samples`` may be left out where the run says itself what it holds for the best.
    """

    run: StoredRun
    trials: tuple[Trial, ...]
    samples: tuple[Sample, ...]
    certificate: Certificate | None

    @property
    def best(self) -> Trial | None:
        """The trial that the run ended with, if it is done."""
        return self._best if self.run.state is RunState.DONE else None

    @property
    def standing(self) -> Standing | None:
        """What the job itself held for the best, if it is not done and came to say so."""
        if self.run.state is RunState.DONE or self._best is None:
            return None
        return Standing(best=self._best, gain=self.run.best_gain, proven=self.run.best_proven)

    @property
    def _best(self) -> Trial | None:
        """The trial that the run calls its best, with what it knew of it at last."""
        for trial in self.trials:
            if trial.trial_id == self.run.best_trial_id:
                score, gain = self.run.best_score, self.run.best_gain
                score = trial.score if score is None else score
                return replace(trial, score=score, gain=gain or trial.gain)
        return None


def is_sqlite(path: str) -> bool:
    """Return whether the file begins as SQLite files do.

    Raises:
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def check_ours(connection: sqlite3.Connection, path: str) -> int | None:
    """Return the version of our tables in the database; None: it is empty.

    Raises:
        LogError: Another application's database, or a later version of ours.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application == APPLICATION_ID:
        if version > SCHEMA_VERSION:
            raise LogError(
                f"{path}: written by a later version (tables {version}): update this one"
            )
        return int(version)
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise LogError(f"{path}: not an autotune database: it holds tables of another application")
    return None


def find_runs(
    connection: sqlite3.Connection, *, csv_key: str | None, fingerprint_hash: str
) -> list[StoredRun]:
    """Return the runs of one job on one CSV (None: without a CSV), the latest first."""
    where = "csv_key IS ? AND fingerprint_hash = ?"
    query = f"SELECT * FROM runs WHERE {where} ORDER BY run_id DESC"
    return [run_from_row(row) for row in connection.execute(query, (csv_key, fingerprint_hash))]


def read_run(
    connection: sqlite3.Connection, run: StoredRun, *, all_samples: bool = True
) -> RunContent:
    """Return all that ``run`` holds.

    Args:
        connection: To its database.
        run: The run.
        all_samples: Whether to read samples that nothing follows from: of a run that says itself
            what it holds for the best. There may be a hundred thousand of them.
    """

    def rows(table: str) -> list[sqlite3.Row]:
        query = f"SELECT * FROM {table} WHERE run_id = ? ORDER BY id"
        return connection.execute(query, (run.run_id,)).fetchall()

    certificates = [certificate_from_row(row) for row in rows("certificates")]
    samples = rows("samples") if all_samples or run.best_trial_id is None else []
    return RunContent(
        run=run,
        trials=tuple(trial_from_row(row, run.parameter_table) for row in rows("trials")),
        samples=tuple(sample_from_row(row) for row in samples),
        certificate=certificates[-1] if certificates else None,
    )


def list_runs(connection: sqlite3.Connection, *, most: int = -1) -> list[StoredRun]:
    """Return the runs, the latest first; at most ``most``, if that is not negative."""
    rows = connection.execute("SELECT * FROM runs ORDER BY run_id DESC LIMIT ?", (most,))
    return [run_from_row(row) for row in rows]


@contextlib.contextmanager
def open_read_only(path: str) -> Iterator[sqlite3.Connection]:
    """Open a database without changing it; whatever is wrong with its content is a ``LogError``."""
    with _errors(path):
        if not is_sqlite(path):
            if os.path.getsize(path):
                raise LogError(f"{path}: not a SQLite database")
        with contextlib.closing(_connect(path)) as connection:
            connection.row_factory = sqlite3.Row
            yield connection


@contextlib.contextmanager
def open_beside_writer(path: str) -> Iterator[sqlite3.Connection]:
    """Open a database that a job, even this one, may be writing; errors as ``open_read_only``.

    Only SQLite opens the file: closing it in any other way would drop the locks of a connection
    that this process has. Nothing is repaired, and a lock is hardly waited for.
    """
    with (
        _errors(path),
        contextlib.closing(_connect_by(path, "mode=ro", patience_s=_BRIEFLY_S)) as connection,
    ):
        connection.row_factory = sqlite3.Row
        yield connection


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise LogError(f"{path}: cannot be read ({error})") from None
    except (
        ArithmeticError,
        RecursionError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
    ) as error:
        raise LogError(f"{path}: holds a value that is not ours ({error})") from None


def _connect(path: str) -> sqlite3.Connection:
    """Connect in the mildest way that works.

    A journal that a killed writer left needs writing once; a file in WAL mode in a folder that
    cannot be written can only be read as unchanging.
    """
    for mode in ("mode=ro", "mode=rw"):
        with contextlib.suppress(sqlite3.OperationalError):
            return _connect_by(path, mode)
    return _connect_by(path, "mode=ro&immutable=1")


def _connect_by(path: str, mode: str, *, patience_s: float = _BUSY_TIMEOUT_S) -> sqlite3.Connection:
    connection = sqlite3.connect(_uri(path, mode), uri=True, timeout=patience_s)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _uri(path: str, options: str) -> str:
    return f"file:{quote(os.path.abspath(path))}?{options}"
