"""The SQLite log: everything that a run found, written by one process, readable meanwhile.

Every call is one transaction that is committed, and synced, before it returns. The journal is a WAL
on local file systems and a rollback journal on others; a closed file is always a single plain file.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from autotune.errors import LogError, RefusedEntryError
from autotune.space import HOROVOD
from autotune.storage import sqlite_schema as schema
from autotune.storage.contract import RunInfo
from autotune.storage.paths import is_local
from autotune.storage.sqlite_reader import RunContent, check_ours, find_runs, is_sqlite, read_run
from autotune.storage.sqlite_views import create_views
from autotune.tables import every_parameter
from autotune.trial import Certificate, Fingerprint, RunState, Sample, Setting, Standing, Trial

_BUSY_TIMEOUT_S = 2.0
"""Longest wait for another process's lock; the entry is tried again later."""
_SYNCHRONOUS = "FULL"


class SqliteLog:
    """Writer of one database (a ``TrialStore``), for one thread at a time.

    The caller holds the file's lock.

    Args:
        path: The file; its folder exists.

    Raises:
        LogError: Not an autotune database, or it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        from sqlite_utils import Database

        self.path = path
        self._run_id: int | None = None
        self._latest_run_id: int | None = None
        with self._errors():
            if os.path.exists(path) and os.path.getsize(path) and not is_sqlite(path):
                raise LogError(f"{path}: not a SQLite database, so it is not overwritten")
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False
            )
        self._connection.row_factory = sqlite3.Row
        self._db = Database(self._connection, execute_plugins=False)
        try:
            with self._errors():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def find(self, fingerprint: Fingerprint, csv_key: str | None) -> RunContent | None:
        """Return the run that a job with this fingerprint goes on with or replays, if any.

        That is the latest one which is done or has found something; a retune that was cut off is
        none, because what it was to replace is still in force.
        """
        hash_ = schema.fingerprint_hash(fingerprint)
        with self._errors():
            for run in find_runs(self._connection, csv_key=csv_key, fingerprint_hash=hash_):
                content = read_run(self._connection, run)
                done = run.state is RunState.DONE
                if (done and content.best) or (
                    not run.retune and (content.trials or content.samples)
                ):
                    return content
        return None

    def begin_run(
        self,
        run: RunInfo,
        *,
        csv_path: str | None = None,
        csv_key: str | None = None,
        retune: bool = False,
    ) -> None:
        """Begin a run; earlier ones that no process finished are marked as unfinished."""
        fingerprint = run.fingerprint
        row = {
            "state": str(RunState.RUNNING),
            "started_at": _now(),
            "host": run.host,
            "pid": run.pid,
            "size": fingerprint.size,
            "local_size": fingerprint.local_size,
            "cross_size": fingerprint.cross_size,
            "versions": json.dumps(dict(sorted(fingerprint.versions.items()))),
            "fingerprint": schema.fingerprint_json(fingerprint),
            "fingerprint_hash": schema.fingerprint_hash(fingerprint),
            "seed": str(run.seed),
            "settings": json.dumps(dict(run.settings)),
            "csv_path": csv_path,
            "csv_key": csv_key,
            "retune": int(retune),
            "parameter_table": fingerprint.table,
        }
        with self._errors(), self._db.atomic():
            self._mark_dead_runs()
            self._run_id = self._latest_run_id = self._db.table("runs").insert(row).last_pk

    def resume_run(self, run_id: int, run: RunInfo) -> None:
        """Go on with a run that another process began."""
        changes = {"state": str(RunState.RUNNING), "host": run.host, "pid": run.pid}
        with self._errors(), self._db.atomic():
            self._mark_dead_runs()
            self._db.table("runs").update(run_id, changes)
        self._run_id = self._latest_run_id = run_id

    def replay_run(self, run_id: int) -> None:
        """Take a run that is done for the latest one: its result is in force."""
        self._latest_run_id = run_id

    def moved_csv(self, old: str, new: str) -> None:
        """Note that the CSV of earlier runs has been moved aside."""
        with self._errors(), self._db.atomic():
            self._update("csv_path = ? AND run_id IS NOT ?", (old, self._run_id), csv_path=new)

    def add_sample(self, sample: Sample) -> None:
        """Record a reading."""
        self._insert("samples", schema.sample_to_row(sample))

    def add_trial(self, trial: Trial) -> None:
        """Record a finished trial.

        Raises:
            RefusedEntryError: The run has a trial of this number or setting.
        """
        self._insert("trials", schema.trial_to_row(trial))

    def reject_trial(self, trial: Trial) -> None:
        """Record that the results under a trial's setting are wrong, in all runs of this job.

        Raises:
            RefusedEntryError: There is no run, or no trial with this setting in the latest one.
        """
        latest = self._latest_run_id
        if latest is None or self._row_of(latest, trial.params) is None:
            raise RefusedEntryError(f"{self.path}: trial {trial.trial_id} was not added")
        query = (
            "SELECT runs.run_id, runs.state FROM runs JOIN runs AS own ON own.run_id = ?"
            " AND runs.fingerprint_hash = own.fingerprint_hash AND runs.csv_key IS own.csv_key"
        )
        with self._errors(), self._db.atomic():
            for run_id, state in list(self._connection.execute(query, (latest,))):
                self._reject_in(run_id, trial.params, is_done=state == RunState.DONE)

    def _reject_in(self, run_id: int, params: Setting, *, is_done: bool) -> None:
        row = self._row_of(run_id, params)
        if row is None:
            return
        changes = schema.trial_to_row(self._trial(row).rejected)
        self._db.table("trials").update(row["id"], changes)
        if is_done and self._best_trial_id(run_id) == row["trial_id"]:
            self._withdraw_result(run_id)

    def _withdraw_result(self, run_id: int) -> None:
        """Make a run that was done unfinished, with the default as the best so far.

        A retune has replaced the result before it, so it is none that was cut off.
        """
        default = next(one for one in self._trials(run_id) if one.trial_id == 0)
        changes = {"state": str(RunState.UNFINISHED), "finished_at": None, "best_trial_id": 0}
        changes["retune"] = 0
        changes |= schema.best_to_row(default, None, proven=False)
        self._db.table("runs").update(run_id, changes)
        self._db.table("certificates").delete_where("run_id = ?", [run_id])

    def set_best(self, standing: Standing) -> None:
        """Record what the run holds for the best."""
        best = standing.best
        row = schema.best_to_row(best, standing.gain, proven=standing.proven)
        with self._errors(), self._db.atomic():
            self._db.table("runs").update(self._running(), {"best_trial_id": best.trial_id, **row})

    def add_certificate(self, certificate: Certificate) -> None:
        """Record the comparison of default and incumbent."""
        self._insert("certificates", schema.certificate_to_row(certificate))

    def finish_run(self, state: RunState, best: Trial | None) -> None:
        """Record the end of the run, and its best trial.

        Of a run that is not done, what ``set_best`` said of this trial stays.
        """
        run_id = self._running()
        changes: dict[str, Any] = {"state": str(state), "finished_at": _now()}
        with self._errors(), self._db.atomic():
            if best is not None:
                number = self._recorded(run_id, best)
                if state is RunState.DONE or number != self._best_trial_id(run_id):
                    changes |= schema.best_to_row(best, best.gain, proven=False)
                changes["best_trial_id"] = number
            elif state is RunState.DONE:
                changes["best_trial_id"] = None
            self._db.table("runs").update(run_id, changes)
        self._run_id = None

    def close(self) -> None:
        """Close the file as a single plain file; a second call does nothing."""
        with contextlib.suppress(sqlite3.Error):  # a reader keeps the WAL; the next close ends it
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def _running(self) -> int:
        if self._run_id is None:
            raise RefusedEntryError(f"{self.path}: no run is open: begin_run comes first")
        return self._run_id

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        row = {"run_id": self._running(), **row, "finished_at": _now()}
        with self._errors():
            self._db.table(table).insert(row)

    def _recorded(self, run_id: int, best: Trial) -> int:
        """Return the number of the trial with the setting of ``best``, recorded if need be."""
        trials = self._trials(run_id)
        for trial in trials:
            if trial.params == best.params:
                return trial.trial_id
        row = schema.trial_to_row(best)
        if any(trial.trial_id == best.trial_id for trial in trials):
            row["trial_id"] = 1 + max(trial.trial_id for trial in trials)
        self._db.table("trials").insert({"run_id": run_id, **row, "finished_at": _now()})
        return int(row["trial_id"])

    def _trials(self, run_id: int) -> list[Trial]:
        return [self._trial(row) for row in self._trial_rows(run_id)]

    def _trial(self, row: dict[str, Any]) -> Trial:
        table = self._db.table("runs").get(row["run_id"])["parameter_table"]
        return schema.trial_from_row(row, table or HOROVOD.name)

    def _trial_rows(self, run_id: int) -> list[dict[str, Any]]:
        return list(self._db.table("trials").rows_where("run_id = ?", (run_id,)))

    def _row_of(self, run_id: int, params: Setting) -> dict[str, Any] | None:
        """Return the row of the trial with this setting, if there is one."""
        rows = self._trial_rows(run_id)
        return next((row for row in rows if self._trial(row).params == params), None)

    def _best_trial_id(self, run_id: int) -> int | None:
        number = self._db.table("runs").get(run_id)["best_trial_id"]
        return None if number is None else int(number)

    def _mark_dead_runs(self) -> None:
        """The lock is ours, so what says it is running was killed."""
        self._update("state = ?", (str(RunState.RUNNING),), state=str(RunState.UNFINISHED))

    def _update(self, where: str, values: tuple[object, ...], **changes: object) -> None:
        """Change the runs that ``where`` holds for, in the caller's transaction."""
        runs = self._db.table("runs")
        for run_id in [row["run_id"] for row in runs.rows_where(where, values, select="run_id")]:
            runs.update(run_id, changes)

    def _prepare(self) -> None:
        version = check_ours(self._connection, self.path)
        mode = "WAL" if is_local(os.path.dirname(os.path.abspath(self.path))) else "DELETE"
        self._connection.execute(f"PRAGMA journal_mode = {mode}")
        self._connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS}")
        self._connection.execute("PRAGMA foreign_keys = ON")
        if version == schema.SCHEMA_VERSION:
            return
        with self._db.atomic():
            if version is None:
                _create_tables(self._db)
                self._connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            else:
                _add_columns(self._db, since=version)
            self._connection.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
            create_views(self._db)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise RefusedEntryError(
                f"{self.path}: the run has this entry already ({error})"
            ) from None
        except (sqlite3.Error, OSError) as error:
            raise LogError(f"{self.path}: cannot be used as the database ({error})") from None


def _create_tables(db: Any) -> None:
    db.table("runs").create(schema.RUNS, pk="run_id", not_null={"state", "fingerprint_hash"})
    db.table("runs").create_index(["fingerprint_hash"])
    for name, columns in {
        "trials": schema.TRIALS,
        "samples": schema.SAMPLES,
        "certificates": schema.CERTIFICATES,
    }.items():
        table = db.table(name)
        table.create(
            columns,
            pk="id",
            not_null={"run_id", "trial_id"},
            foreign_keys=[("run_id", "runs", "run_id")],
        )
        table.create_index(["run_id"])
    db.table("trials").create_index(["run_id", "trial_id"], unique=True)
    _create_indexes(db)


def _create_indexes(db: Any) -> None:
    """Hold each run to one trial of a setting; what its table does not have is null, and equal."""
    for (name,) in db.execute(
        "SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE 'idx_trials_run_id_%'"
    ).fetchall():
        if name != "idx_trials_run_id_trial_id":  # of earlier versions: one for each table
            db.execute(f"DROP INDEX {name}")
    values = ", ".join(f"IFNULL({name}, -1)" for name in every_parameter())
    db.execute(f"CREATE UNIQUE INDEX idx_trials_setting ON trials (run_id, {values})")


def _add_columns(db: Any, *, since: int) -> None:
    """Give a file of version ``since`` the columns that came later."""
    kinds = {"runs": schema.RUNS, "trials": schema.TRIALS}
    for version, tables in schema.ADDED.items():
        for table, columns in tables.items() if version > since else ():
            for column in columns:
                db.table(table).add_column(column, kinds[table][column])
    _create_indexes(db)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
