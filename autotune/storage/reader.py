"""One reader for every kind of log: our CSV, Horovod's CSV, SQLite files and folders of them.

Standard library only: ``autotune best`` answers at once.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from autotune.errors import LogError, NoAnswerError
from autotune.storage.csv_log import row_text
from autotune.storage.foreign import CsvContent, parse_csv
from autotune.storage.paths import default_db_path
from autotune.storage.sqlite_reader import (
    RunContent,
    check_ours,
    is_sqlite,
    list_runs,
    open_read_only,
    read_run,
)
from autotune.storage.sqlite_schema import StoredRun
from autotune.storage.standing import best_so_far, safe_best, standing_of
from autotune.trial import Certificate, RunState, Standing, Trial, TrialState


@dataclass(frozen=True, kw_only=True)
class LogView:
    """What a log says.

    Attributes:
        path: The file.
        kind: ``csv`` (ours), ``horovod`` (a CSV of Horovod) or ``sqlite``.
        trials: The trials in order of finishing. Only SQLite knows abandoned and rejected ones.
        best: The final best, else what is safe to use meanwhile; None: no complete trial. While a
            run is not finished that is the default, unless another setting is better beyond doubt;
            without its database, and of Horovod's logs, it is the highest score so far.
        finished: Tuning was finalised.
        standing: What an unfinished run holds for the best, where SQLite knows it.
        run: The run, where SQLite knows it.
        database: The SQLite file that holds it.
        certificate: The latest one, where SQLite knows it.
        warnings: Sentences for people.
        damage: What is wrong with the last line, where that hides whether tuning has finished.
    """

    path: str
    kind: Literal["csv", "horovod", "sqlite"]
    trials: tuple[Trial, ...]
    best: Trial | None
    finished: bool
    standing: Standing | None = None
    run: StoredRun | None = None
    database: str | None = None
    certificate: Certificate | None = None
    warnings: tuple[str, ...] = ()
    damage: str = ""

    def answer(self) -> Trial:
        """Return ``best``.

        Raises:
            NoAnswerError: There is no complete trial.
        """
        if self.best is not None:
            return self.best
        if self.trials:
            why = f"got {len(self.trials)} trials of which none is complete"
            raise NoAnswerError(f"{self.path}: no answer: expected a complete trial, {why}")
        why = "the log holds no trial yet"
        if self.damage:
            why = f"no line of the log can be used; {self.damage}"
        raise NoAnswerError(f"{self.path}: no answer: {why}")


def read_log(path: str) -> LogView:
    """Read a log: CSV of ours or of any Horovod release, SQLite file, or folder of SQLite files.

    Raises:
        LogError: No such file, not readable, or not an autotune log.
    """
    try:
        if os.path.isdir(path):
            return _read_folder(path)
        if not os.path.isfile(path):
            problem = "is not a regular file" if os.path.exists(path) else "no such file"
            raise LogError(f"{path}: {problem}: expected an autotune log (CSV or SQLite)")
        return _read_sqlite(path) if is_sqlite(path) else _read_csv(path)
    except (OSError, ValueError) as error:
        raise LogError(f"{path}: cannot be read ({error})") from None


def _read_csv(path: str) -> LogView:
    with open(path, "rb") as file:
        content = parse_csv(file.read(), path)
    said = [*content.warnings, content.damage] if content.damage else content.warnings
    warnings = [f"{path}: {text}" for text in said]
    found = _stored_run(path, content, warnings) if content.own and content.trials else None
    if found is not None:
        database, stored = found
        known = {row_text(trial): trial for trial in stored.trials}
        trials = tuple(known[row_text(trial)] for trial in content.trials)
        view = _view_of(path, "csv", stored, final=_final(stored, content.best))
        return replace(view, trials=trials, database=database, warnings=tuple(warnings))
    trials = content.trials
    if content.own:
        trials = tuple(_without_database(trial) for trial in trials)
    return LogView(
        path=path,
        kind="csv" if content.own else "horovod",
        trials=trials,
        best=content.best or best_so_far(trials),
        finished=content.best is not None,
        warnings=tuple(warnings),
        damage=content.damage if content.best is None else "",
    )


def _view_of(
    path: str, kind: Literal["csv", "sqlite"], stored: RunContent, *, final: Trial | None
) -> LogView:
    standing = standing_of(stored) if final is None else None
    return LogView(
        path=path,
        kind=kind,
        trials=stored.trials,
        best=final or safe_best(stored.trials, standing),
        finished=final is not None,
        standing=standing,
        run=stored.run,
        certificate=stored.certificate,
    )


def _final(stored: RunContent, line: Trial | None) -> Trial | None:
    """Return what the best line names, with all that is known of it; without one, the run's end."""
    if line is None or (stored.best is not None and stored.best.params == line.params):
        return stored.best
    known = next(trial for trial in stored.trials if trial.params == line.params)
    return replace(known, score=line.score)


def _without_database(trial: Trial) -> Trial:
    """Our rows with score 0 are rejected trials, also where no database says so."""
    return trial if trial.score > 0 else replace(trial, state=TrialState.REJECTED)


def _stored_run(
    path: str, content: CsvContent, warnings: list[str]
) -> tuple[str, RunContent] | None:
    """Return the database beside the CSV, and the run in it that has all of the CSV's trials."""
    rows = {row_text(trial) for trial in content.trials}
    for database in _databases_of(path):
        try:
            found = _first_run(database, lambda run: rows.issubset(map(row_text, run.trials)))
        except LogError as error:
            warnings.append(f"{error}; states and gain are not known")
            continue
        if found is not None:
            return database, found
    return None


def _databases_of(path: str) -> list[str]:
    """Return where a CSV's database may be: beside it, or where HOROVOD_AUTOTUNE_DB says."""
    beside = default_db_path(os.path.realpath(path))
    named = os.path.expanduser(os.environ.get("HOROVOD_AUTOTUNE_DB", "").strip())
    files = [beside] if os.path.isfile(beside) else []
    if named and os.path.isdir(named):
        files += sorted(glob.glob(os.path.join(glob.escape(named), "*.db")))
    elif named and os.path.isfile(named) and named not in files:
        files.append(named)
    return files


def _read_sqlite(path: str) -> LogView:
    stored = _first_run(path, _has_answer) or _first_run(path, lambda run: True)
    if stored is None:
        return LogView(path=path, kind="sqlite", trials=(), best=None, finished=False)
    return replace(_view_of(path, "sqlite", stored, final=stored.best), database=path)


def _read_folder(path: str) -> LogView:
    views = []
    for name in glob.glob(os.path.join(glob.escape(path), "*.db")):
        with contextlib.suppress(LogError):
            views.append(_read_sqlite(name))
    if not views:
        raise LogError(f"{path}: is a folder without autotune databases: name a log")
    views.sort(key=lambda view: (view.best is not None, view.run.started_at if view.run else ""))
    if len(views) == 1:
        return views[0]
    warning = f"{path}: holds {len(views)} runs; this is the latest, {views[-1].path}"
    return replace(views[-1], warnings=(warning, *views[-1].warnings))


def _has_answer(stored: RunContent) -> bool:
    """An unfinished retune does not hide the result that it was to replace."""
    done = stored.run.state is RunState.DONE
    return best_so_far(stored.trials) is not None and (done or not stored.run.retune)


def _first_run(path: str, matches: Callable[[RunContent], bool]) -> RunContent | None:
    with open_read_only(path) as connection:
        return _first(connection, path, matches)


def _first(
    connection: sqlite3.Connection, path: str, matches: Callable[[RunContent], bool]
) -> RunContent | None:
    if check_ours(connection, path) is None:
        return None
    for run in list_runs(connection):
        stored = read_run(connection, run, all_samples=False)
        if matches(stored):
            return stored
    return None
