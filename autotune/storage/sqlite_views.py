"""What people see in a database browser: views, and what every column means.

``run_summary`` has one row per run with its best setting and its gain; ``trial_gains`` one per
trial with its gain over the default at the same time. Until the two were compared in pairs, a gain
is an estimate with a nominal 90 % interval, and ``comparison`` says so in both views.
``column_descriptions`` holds a sentence per column, and ``datasette_metadata`` gives the same to
Datasette (``datasette log.db -m metadata.json``).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from autotune.storage.sqlite_reader import open_read_only
from autotune.tables import every_parameter

if TYPE_CHECKING:
    from sqlite_utils import Database

_SETTINGS = ", ".join(f"trials.{name}" for name in every_parameter())
_COMPARISON = """CASE certificates.certified WHEN 1 THEN 'certified'
                WHEN 0 THEN 'not certified, default kept' ELSE 'not certified yet' END"""

VIEWS: dict[str, str] = {
    "run_summary": f"""
        SELECT runs.run_id, runs.csv_key AS job, runs.host, runs.size, runs.local_size,
            runs.cross_size, runs.state, runs.started_at, runs.finished_at,
            (SELECT count(*) FROM trials AS t WHERE t.run_id = runs.run_id) AS trial_count,
            trials.trial_id AS best_trial_id, {_SETTINGS},
            coalesce(runs.best_score, trials.score) AS score,
            100 * coalesce(certificates.gain, runs.best_gain) AS gain_percent,
            100 * coalesce(certificates.gain_low, runs.best_gain_low) AS gain_low_percent,
            100 * coalesce(certificates.gain_high, runs.best_gain_high) AS gain_high_percent,
            {_COMPARISON} AS comparison, certificates.certified
        FROM runs
        LEFT JOIN trials ON trials.run_id = runs.run_id AND trials.trial_id = runs.best_trial_id
        LEFT JOIN certificates ON certificates.id =
            (SELECT max(id) FROM certificates AS c WHERE c.run_id = runs.run_id)
        ORDER BY runs.run_id DESC""",
    "trial_gains": f"""
        SELECT trials.run_id, trials.trial_id, {_SETTINGS}, trials.state,
            coalesce((1 + certificates.gain) * defaults.score, trials.score) AS score,
            100 * coalesce(certificates.gain, trials.gain) AS gain_percent,
            100 * coalesce(certificates.gain_low, trials.gain_low) AS gain_low_percent,
            100 * coalesce(certificates.gain_high, trials.gain_high) AS gain_high_percent,
            CASE trials.trial_id WHEN 0 THEN 'the default' ELSE {_COMPARISON} END AS comparison
        FROM trials
        LEFT JOIN trials AS defaults ON defaults.run_id = trials.run_id AND defaults.trial_id = 0
        LEFT JOIN certificates ON trials.trial_id > 0
            AND certificates.trial_id = trials.trial_id AND certificates.id =
            (SELECT max(id) FROM certificates AS c WHERE c.run_id = trials.run_id)
        ORDER BY trials.run_id DESC, score DESC""",
}

TABLES: dict[str, str] = {
    "runs": "One tuning run of one job; a resumed run keeps its row.",
    "trials": "One setting of the communication parameters and how it ended.",
    "samples": "Every window of training steps that was read.",
    "certificates": "The paired comparison of the default and the best setting in the job.",
    "column_descriptions": "What every column means.",
    "run_summary": "One row per run: the best setting and its gain over the default.",
    "trial_gains": "Every trial against the default of its run.",
}

_PARAMETERS = {
    name: (row.unit, f"parameter, set by {row.env}") for name, row in every_parameter().items()
}
_COLUMNS: dict[str, tuple[str, str]] = {
    "id": ("", "number of the row"),
    "run_id": ("", "number of the run in this file"),
    "trial_id": ("", "number of the trial in its run; 0 is the default setting"),
    "best_trial_id": ("", "trial that stays in force; of an unfinished run, the most promising"),
    "best_score": (
        "bytes/us",
        "its score by the comparison in pairs; before that by all its readings",
    ),
    "best_gain": (
        "fraction",
        "its gain over the default, without the comparison in pairs",
    ),
    "best_gain_low": ("fraction", "lower bound of that gain, 90 % interval"),
    "best_gain_high": ("fraction", "upper bound of that gain, 90 % interval"),
    "best_proven": ("0 or 1", "it is better beyond doubt, also without a comparison in pairs"),
    "trial_count": ("", "trials so far"),
    "state": ("", "runs: running, unfinished, done; trials: complete, abandoned, rejected"),
    "started_at": ("ISO 8601, UTC", "begin"),
    "finished_at": ("ISO 8601, UTC", "end; of a trial or sample, the moment it was recorded"),
    "host": ("", "host of rank 0"),
    "pid": ("", "process of rank 0"),
    "size": ("ranks", "ranks of the job"),
    "local_size": ("ranks", "ranks on rank 0's host"),
    "cross_size": ("hosts", "hosts of the job"),
    "versions": ("JSON", "versions of this package and of MPI"),
    "parameter_table": ("", "which parameters were tuned; those of other tables are null"),
    "fingerprint": ("JSON", "what makes two jobs the same"),
    "fingerprint_hash": ("SHA-256", "hash of the fingerprint"),
    "seed": ("", "makes proposals reproducible; text, because it may be wider than 64 bits"),
    "settings": ("JSON", "the tuner's own settings"),
    "csv_path": ("", "CSV log of the run"),
    "csv_key": ("", "CSV log of the run, relative to this file"),
    "job": ("", "CSV log of the run, relative to this file"),
    "retune": ("0 or 1", "the run was to replace an earlier result"),
    "score": (
        "bytes/us",
        "payload over time as read; of trials (1 + gain) x the default's; higher is better",
    ),
    "epoch": ("", "number of parameter changes in the job before the window"),
    "kind": ("", "what the window was read for: search, reread, certify"),
    "pair": ("", "number of the pair in the comparison"),
    "steps": ("steps", "training steps in the window"),
    "duration_us": ("us", "time of those steps"),
    "payload_bytes": ("bytes", "bytes of all data collectives in those steps"),
    "exposed_us": ("us", "time that the training thread waited for communication"),
    "pairs": ("", "pairs of windows that were compared"),
    "gain": ("fraction", "time(default) / time(this) - 1, the default at the same time"),
    "gain_low": ("fraction", "lower bound: of a certificate one-sided, else of a 90 % interval"),
    "gain_high": ("fraction", "upper bound of the gain"),
    "gain_percent": ("%", "gain in step time over the default at the same time"),
    "gain_low_percent": ("%", "lower bound: of a certificate one-sided, else of a 90 % interval"),
    "gain_high_percent": ("%", "upper bound of the gain"),
    "comparison": (
        "",
        "verdict of the comparison in pairs, or that there was none yet",
    ),
    "alpha": ("", "error probability of the lower bound"),
    "certified": ("0 or 1", "the lower bound is above 0: the setting is kept, else the default"),
    "reason": ("", "the verdict as a sentence"),
    "table_name": ("", "table or view"),
    "column_name": ("", "column"),
    "unit": ("", "unit of the values"),
    "description": ("", "meaning of the values"),
    **_PARAMETERS,
}


def create_views(db: Database) -> None:
    """Create the views and the table of descriptions anew, in the caller's transaction."""
    for name, query in VIEWS.items():
        db.create_view(name, query, replace=True)
    names = ("table_name", "column_name", "unit", "description")
    descriptions = db.table("column_descriptions")
    descriptions.drop(ignore=True)
    descriptions.create(dict.fromkeys(names, str), pk=names[:2])
    rows = [
        (table, column.name, *_COLUMNS[column.name])
        for table in TABLES
        for column in db[table].columns
    ]
    descriptions.insert_all(dict(zip(names, row, strict=True)) for row in rows)


def datasette_metadata(paths: Iterable[str]) -> dict[str, Any]:
    """Return what Datasette shows about the databases: tables and columns in words."""
    databases = {}
    for path in paths:
        with open_read_only(path) as connection:
            tables = {
                table: {"description": description, "columns": _sentences(connection, table)}
                for table, description in TABLES.items()
            }
        databases[os.path.splitext(os.path.basename(path))[0]] = {"tables": tables}
    return {"title": "Tuning runs", "databases": databases}


def _sentences(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    found = {}
    for (column,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)):
        unit, meaning = _COLUMNS.get(column, ("", ""))
        if meaning:
            found[column] = f"{meaning} ({unit})" if unit else meaning
    return found
