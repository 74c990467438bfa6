"""The table that ``autotune runs`` prints: every run in a database, or in a folder of them."""

from __future__ import annotations

import glob
import json
import os
from dataclasses import dataclass

from autotune.cli.table import lines
from autotune.errors import LogError, NoAnswerError
from autotune.result import NOT_CERTIFIED, interval_text
from autotune.storage.locking import holder
from autotune.storage.paths import default_db_path
from autotune.storage.sqlite_reader import (
    RunContent,
    check_ours,
    is_sqlite,
    list_runs,
    open_read_only,
    read_run,
)
from autotune.storage.sqlite_views import datasette_metadata as metadata
from autotune.storage.standing import certified_gain, standing_of
from autotune.trial import RunState

_HEADER = ["run", "job", "begun", "host", "ranks", "a host", "trials", "state", "gain over default"]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Runs, the latest first, each with the file that holds it; and sentences for people."""

    path: str
    runs: tuple[tuple[str, RunContent], ...]
    warnings: tuple[str, ...] = ()


def list_all(path: str) -> Listing:
    """Return the runs in a database, in a folder of databases, or in the one beside a CSV.

    Raises:
        LogError: No database there; a file of a folder that cannot be read is only a warning.
    """
    found: list[tuple[str, RunContent]] = []
    warnings: list[str] = []
    files = databases(path)
    for file in files:
        try:
            found += [(file, run) for run in _runs_of(file)]
        except LogError as error:
            if len(files) == 1:
                raise
            warnings.append(str(error))
    found.sort(key=lambda entry: (entry[1].run.started_at, entry[1].run.run_id), reverse=True)
    return Listing(path=path, runs=tuple(found), warnings=tuple(warnings))


def databases(path: str) -> list[str]:
    """Return the database files that ``path`` stands for.

    Raises:
        LogError: There is none.
    """
    if os.path.isdir(path):
        files = sorted(glob.glob(os.path.join(glob.escape(path), "*.db")))
        if not files:
            raise LogError(f"{path}: is a folder without autotune databases (*.db)")
        return files
    if not os.path.isfile(path):
        problem = "is not a regular file" if os.path.exists(path) else "no such file"
        raise LogError(f"{path}: {problem}: expected a database or a folder of databases")
    try:
        if is_sqlite(path):
            return [path]
        beside, is_empty = default_db_path(os.path.realpath(path)), not os.path.getsize(path)
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror})") from None
    if os.path.isfile(beside):
        return [beside]
    if is_empty:
        return [path]  # a database without a run
    where = "" if path.endswith(".db") else f", and there is none beside it ({beside})"
    raise LogError(f"{path}: not a database{where}")


def datasette_metadata(path: str) -> str:
    """Return JSON for ``datasette -m``: what the tables and columns of ``path`` mean."""
    return json.dumps(metadata(databases(path)), indent=2)


def table(listing: Listing) -> str:
    """Return the runs as text, one line each.

    Raises:
        NoAnswerError: There is none.
    """
    if not listing.runs:
        raise NoAnswerError(f"{listing.path}: no answer: holds no run yet")
    rows = [_cells(file, content) for file, content in listing.runs]
    return "\n".join(lines(_HEADER, rows))


def _runs_of(path: str) -> list[RunContent]:
    with open_read_only(path) as connection:
        if check_ours(connection, path) is None:
            return []
        runs = list_runs(connection)
        return [read_run(connection, run, all_samples=False) for run in runs]


def _cells(file: str, content: RunContent) -> list[str]:
    run = content.run
    name = os.path.splitext(os.path.basename(file))[0]
    return [
        f"{name}:{run.run_id}",
        run.csv_key or "-",
        run.started_at,
        run.host,
        str(run.size),
        str(run.local_size),
        str(len(content.trials)),
        _state(file, run.state),
        _gain(content),
    ]


def _state(file: str, state: RunState) -> str:
    """Return the run's state; one that no process holds any more was ended before its tuner."""
    if state is RunState.RUNNING and holder(os.path.realpath(file)) is None:
        return str(RunState.UNFINISHED)
    return str(state)


def _gain(content: RunContent) -> str:
    certificate, standing = content.certificate, standing_of(content)
    if certificate is not None:
        gain = certified_gain(certificate)
        verdict = "certified" if certificate.certified else "not certified, default kept"
    elif standing is not None:
        gain, verdict = standing.gain, NOT_CERTIFIED
    else:
        return "-"
    if gain is None:
        return verdict
    return f"{interval_text(gain, unit=' %')}, {verdict}"
