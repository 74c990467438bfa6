from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from autotune.errors import LogError
from autotune.space import HOROVOD
from autotune.storage import Replay, Resume, open_logs, paths, read_log, sqlite_log
from autotune.storage.csv_log import row_text
from autotune.storage.sqlite_log import SqliteLog
from autotune.storage.sqlite_reader import list_runs, open_read_only, read_run
from autotune.storage.sqlite_schema import SCHEMA_VERSION, fingerprint_hash
from autotune.trial import RunState, Standing

HEADER = ",".join(HOROVOD.columns)

DATA = Path(__file__).parents[3] / "data"
OLD_ROWS = [
    "0,0,1024,1,64,100",
    "0,0,1024,1,0.003909111022949219,180",
    "0,0,1024,1,0.007818222045898438,20",
]


def query(path: Path, sql: str) -> list[tuple]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.mark.parametrize(("local", "journal"), [(True, "wal"), (False, "delete")])
def test_the_journal_suits_the_file_system(
    db: Path, make_run, monkeypatch, local: bool, journal: str
) -> None:
    monkeypatch.setattr(sqlite_log, "is_local", lambda folder: local)
    log = SqliteLog(str(db))
    log.begin_run(make_run())
    assert query(db, "PRAGMA journal_mode") == [(journal,)]
    log.close()
    assert os.listdir(db.parent) == ["log.db"]
    assert query(db, "PRAGMA journal_mode") == [("delete",)]


@pytest.mark.parametrize(
    ("magic", "local"),
    [(0xEF53, True), (0x01021994, True), (0x6969, False), (0x0BD00BD0, False), (None, False)],
)
def test_unknown_file_systems_count_as_network(monkeypatch, magic: int | None, local: bool) -> None:
    monkeypatch.setattr(paths, "file_system_magic", lambda folder: magic)
    assert paths.is_local("/") is local


def test_the_file_system_says_what_it_is(tmp_path: Path) -> None:
    assert paths.file_system_magic(str(tmp_path))
    assert paths.file_system_magic(str(tmp_path / "missing")) is None


def test_every_table_has_a_primary_key_and_points_to_its_run(db: Path) -> None:
    SqliteLog(str(db)).close()
    tables = [name for (name,) in query(db, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert sorted(tables) == ["certificates", "column_descriptions", "runs", "samples", "trials"]
    for table in sorted(tables):
        assert any(column[5] for column in query(db, f"PRAGMA table_info({table})"))
        keys = query(db, f"PRAGMA foreign_key_list({table})")
        assert [key[2:5] for key in keys] == (
            [] if table in ("column_descriptions", "runs") else [("runs",) + ("run_id",) * 2]
        )


def test_a_run_says_what_it_was(db: Path, make_run, make_trial, certificate) -> None:
    run = make_run(size=4, seed=2**100)
    log = SqliteLog(str(db))
    log.begin_run(run, csv_path="/a/log.csv")
    log.add_trial(make_trial(0))
    log.add_certificate(certificate)
    log.finish_run(RunState.DONE, make_trial(0))
    log.close()
    columns = "fingerprint_hash, fingerprint, size, host, pid, seed, csv_path, state, best_trial_id"
    row = query(db, f"SELECT {columns} FROM runs")[0]
    assert row[0] == fingerprint_hash(run.fingerprint)
    assert json.loads(row[1]) == run.fingerprint.as_dict()
    assert row[2:] == (4, "node1", 4242, str(2**100), "/a/log.csv", "done", 0)
    assert query(db, "SELECT gain, gain_low, gain_high, certified FROM certificates") == [
        (0.1, 0.03, 0.2, 1)
    ]


def test_equal_fingerprints_have_equal_hashes_and_others_do_not(make_run) -> None:
    assert fingerprint_hash(make_run().fingerprint) == fingerprint_hash(make_run().fingerprint)
    assert fingerprint_hash(make_run(2).fingerprint) != fingerprint_hash(make_run(3).fingerprint)


def test_a_new_run_marks_killed_ones_as_unfinished(db: Path, make_run) -> None:
    log = SqliteLog(str(db))
    log.begin_run(make_run(2))
    log.close()
    log = SqliteLog(str(db))
    log.begin_run(make_run(3))
    assert query(db, "SELECT state FROM runs") == [("unfinished",), ("running",)]
    log.close()


def test_other_databases_are_refused_and_kept(db: Path) -> None:
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")
    content = db.read_bytes()
    with pytest.raises(LogError, match=r"log\.db: not an autotune database"):
        SqliteLog(str(db))
    assert db.read_bytes() == content


def test_other_files_are_refused_and_kept(db: Path) -> None:
    db.write_text("precious")
    with pytest.raises(LogError, match=r"log\.db"):
        SqliteLog(str(db))
    assert db.read_text() == "precious"


def test_tables_of_a_later_version_are_refused(db: Path) -> None:
    SqliteLog(str(db)).close()
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(LogError, match="later version"):
        SqliteLog(str(db))
    with pytest.raises(LogError, match="later version"):
        read_log(str(db))


class TestVersion1:
    """A file that this package wrote before trials had gains."""

    @pytest.fixture
    def old(self, db: Path) -> Path:
        with closing(sqlite3.connect(db)) as connection:
            connection.executescript((DATA / "autotune-tables-1.sql").read_text())
        return db

    def test_it_is_read_as_it_is_also_where_nothing_can_be_written(self, old: Path) -> None:
        before = old.read_bytes()
        old.chmod(0o400)
        with open_read_only(str(old)) as connection:
            unfinished, done = (read_run(connection, run) for run in list_runs(connection))
        assert done.best is not None and done.best.score == 140.0
        assert done.certificate is not None and done.certificate.certified
        assert unfinished.standing is not None and unfinished.standing.best.score == 180.0
        assert not unfinished.standing.proven and unfinished.standing.gain is None
        assert {trial.gain for trial in unfinished.trials} == {None}
        view = read_log(str(old))
        assert view.finished is False and view.answer().trial_id == 0
        assert old.read_bytes() == before

    def test_a_job_resumes_it_and_writes_what_is_new(
        self, old: Path, make_run, make_trial, make_sample, make_gain
    ) -> None:
        csv = old.with_suffix(".csv")
        csv.write_text(f"{HEADER}\n" + "".join(f"{row}\n" for row in OLD_ROWS))
        logs = open_logs(str(csv), None, host="node1", pid=1)
        start = logs.start(make_run(2))
        assert isinstance(start, Resume) and start.best == make_trial(1, 180.0)
        assert [sample.score for sample in start.samples] == [100.0, 180.0, 20.0]
        new = make_trial(3, 112.0, gain=make_gain(12))
        logs.add_sample(make_sample(3))
        logs.add_trial(new)
        logs.set_best(Standing(best=new, gain=make_gain(11), proven=True))
        assert logs.troubles == []
        logs.close()
        view = read_log(str(csv))
        assert view.standing is not None and view.standing.gain == make_gain(11)
        assert view.answer().params == new.params and len(view.trials) == 4
        assert csv.read_text().splitlines()[1:] == [*OLD_ROWS, row_text(new)]
        assert query(old, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
        assert query(old, "SELECT gain_percent FROM trial_gains WHERE trial_id = 3") == [(12.0,)]

    def test_a_job_replays_it_and_repeats_its_last_row(self, old: Path, make_run) -> None:
        logs = open_logs(str(old.with_suffix(".csv")), None, host="node1", pid=1)
        logs.csv_path and Path(logs.csv_path).write_text(f"{HEADER}\n{OLD_ROWS[0]}\n")
        start = logs.start(make_run(3))
        logs.close()
        assert isinstance(start, Replay) and start.best.score == 140.0
        rows = old.with_suffix(".csv").read_text().splitlines()[1:]
        assert len(rows) == 3 and rows[1] == rows[2] and rows[2].endswith(",140")

    def test_it_gets_the_columns_and_views_of_a_new_file(self, old: Path, tmp_path: Path) -> None:
        SqliteLog(str(old)).close()
        new = tmp_path / "new.db"
        SqliteLog(str(new)).close()
        names = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
        assert query(old, names) == query(new, names)
        for (name,) in query(new, names):
            columns = f"PRAGMA table_info({name})"
            assert query(old, columns) == query(new, columns)
        views = "SELECT name, sql FROM sqlite_master WHERE type = 'view' ORDER BY name"
        assert query(old, views) == query(new, views)


def test_a_damaged_database_is_one_clear_error(db: Path, make_run, make_trial) -> None:
    log = SqliteLog(str(db))
    log.begin_run(make_run())
    log.add_trial(make_trial(0))
    log.close()
    content = bytearray(db.read_bytes())
    for start in range(100, len(content), 997):
        damaged = content.copy()
        damaged[start : start + 300] = os.urandom(len(damaged[start : start + 300]))
        db.write_bytes(damaged)
        try:
            read_log(str(db))
        except LogError as error:
            assert "log.db" in str(error)


@pytest.mark.parametrize("column", ["fingerprint", "versions", "seed", "state", "settings"])
def test_values_that_are_not_ours_are_one_clear_error(db: Path, make_run, column: str) -> None:
    log = SqliteLog(str(db))
    log.begin_run(make_run())
    log.close()
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute(f"UPDATE runs SET {column} = ?", ("[" * 100_000,))
    with pytest.raises(LogError, match=r"log\.db"):
        read_log(str(db))
