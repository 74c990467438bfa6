from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli.main import main
from autotune.storage import open_logs, sqlite_views
from autotune.storage.contract import RunInfo
from autotune.storage.sqlite_log import SqliteLog
from autotune.trial import Certificate, CommParams, Fingerprint, Gain, RunState, Trial

CERTIFICATE = Certificate(
    trial_id=1,
    pairs=9,
    gain=0.121,
    gain_low=0.05,
    gain_high=0.194,
    alpha=0.01,
    certified=True,
    reason="nine pairs agreed",
)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Path]:
    """``job("a", size=4)``: a finished job's database; ``done=False``: one that was ended."""

    def make(
        name: str,
        *,
        size: int = 2,
        done: bool = True,
        folder: str = ".",
        certificate: Certificate | None = CERTIFICATE,
    ) -> Path:
        fingerprint = Fingerprint(
            tensors=(), size=size, local_size=2, cross_size=size // 2, versions={}, fixed={}
        )
        path = tmp_path / folder / f"{name}.csv"
        path.parent.mkdir(exist_ok=True)
        logs = open_logs(str(path), None, host="node1", pid=1)
        logs.start(RunInfo(fingerprint=fingerprint, host="node1", pid=1, seed=7))
        gain = Gain(estimate=0.1, low=0.02, high=0.18)
        best = Trial(trial_id=1, params=CommParams(cycle_time_ms=0.5), score=110.0, gain=gain)
        default = Trial(trial_id=0, params=CommParams(), score=100.0)
        logs.add_trial(default)
        logs.add_trial(best)
        if done and certificate is not None:
            logs.add_certificate(certificate)
            kept = best if certificate.certified else default
            logs.finish_run(RunState.DONE, kept)
        logs.close()
        return path.with_suffix(".db")

    return make


def test_runs_lists_job_ranks_state_and_gain_with_its_interval(capsys, job, tmp_path) -> None:
    job("a", size=4)
    job("b", done=False)
    assert main(["runs", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    header, *lines = out.splitlines()
    assert header.split()[:4] == ["run", "job", "begun", "host"]
    done, unfinished = sorted(line.split(maxsplit=8) for line in lines)
    assert done[:2] == ["a:1", "a.csv"] and done[3:8] == ["node1", "4", "2", "2", "done"]
    assert done[8] == "+12.1 % (+5.0 to +19.4), certified"
    assert unfinished[0] == "b:1" and unfinished[4] == "2"
    assert unfinished[7:] == ["unfinished", "+10.0 % (+2.0 to +18.0), not certified yet"]
    assert err == ""


@pytest.mark.parametrize("suffix", [".db", ".csv"])
def test_runs_takes_a_database_or_the_csv_beside_it(capsys, job, suffix: str) -> None:
    assert main(["runs", str(job("a").with_suffix(suffix))]) == 0
    assert "a:1" in capsys.readouterr().out


def test_a_file_that_is_no_database_hides_no_other(capsys, job, tmp_path) -> None:
    job("a")
    (tmp_path / "junk.db").write_text("junk")
    assert main(["runs", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "a:1" in out and "junk.db: not a SQLite database" in err


@pytest.mark.parametrize("what", ["missing", "folder", "csv", "database"])
def test_no_runs_is_1_with_one_line(capsys, tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "folder":
        path.mkdir()
    if what == "csv":
        path.write_text("a,b\n")
    if what == "database":
        SqliteLog(str(path)).close()
    assert main(["runs", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and str(path) in err


def test_every_column_has_a_description(job) -> None:
    with sqlite3.connect(job("a")) as database:
        for table in sqlite_views.TABLES:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            query = "SELECT column_name FROM column_descriptions WHERE table_name = ?"
            assert sorted(columns) == sorted(row[0] for row in database.execute(query, (table,)))


def test_a_view_has_one_row_per_run_and_per_trial(job) -> None:
    with sqlite3.connect(job("a")) as database:
        query = "SELECT job, size, state, cycle_time_ms, gain_low_percent FROM run_summary"
        assert database.execute(query).fetchall() == [("a.csv", 2, "done", 0.5, 5.0)]
        query = "SELECT trial_id FROM trial_gains"
        assert database.execute(query).fetchall() == [(1,), (0,)]


@pytest.mark.parametrize(
    ("end", "verdict", "score", "gain"),
    [
        ("killed", "not certified yet", 110.0, (10.0, 2.0, 18.0)),
        ("certified", "certified", 112.1, (12.1, 5.0, 19.4)),
        ("refuted", "not certified, default kept", 112.1, (12.1, 5.0, 19.4)),
    ],
)
def test_both_views_say_whether_a_gain_was_compared_and_show_what_is_known_at_last(
    job, end: str, verdict: str, score: float, gain: tuple[float, ...]
) -> None:
    certificate = replace(CERTIFICATE, certified=end == "certified")
    path = job("a", certificate=None if end == "killed" else certificate)
    numbers = "score, gain_percent, gain_low_percent, gain_high_percent"
    with sqlite3.connect(path) as database:
        query = f"SELECT trial_id, comparison, {numbers} FROM trial_gains"
        trial, default = database.execute(query).fetchall()
        query = "SELECT comparison, gain_percent FROM run_summary"
        summary = database.execute(query).fetchone()
    assert trial[:2] == (1, verdict) and trial[2:] == pytest.approx((score, *gain))
    assert default == (0, "the default", 100.0, None, None, None)
    assert summary[0] == verdict
    if end == "certified":
        assert summary[1] == pytest.approx(gain[0])


def test_datasette_shows_tables_views_and_what_columns_mean(capsys, job) -> None:
    from datasette.app import Datasette

    path = job("a")
    assert main(["runs", str(path), "--datasette-metadata"]) == 0
    metadata = json.loads(capsys.readouterr().out)

    async def ask() -> tuple[dict, list, str]:
        site = Datasette([str(path)], metadata=metadata)
        try:
            await site.invoke_startup()
            answers = [await site.client.get(f"/a{page}") for page in PAGES]
        finally:
            for database in site.databases.values():
                database.close()
            site.executor.shutdown()
        assert [answer.status_code for answer in answers] == [200] * len(PAGES)
        return answers[0].json(), answers[1].json(), answers[2].text

    database, summary, page = asyncio.run(ask())
    assert {table["name"] for table in database["tables"]} >= {"runs", "trials", "samples"}
    assert {view["name"] for view in database["views"]} == set(sqlite_views.VIEWS)
    assert (summary[0]["job"], summary[0]["certified"]) == ("a.csv", 1)
    assert "higher is better" in page
    (described,) = metadata["databases"].values()
    columns = {table["name"]: set(table["columns"]) for table in database["tables"]}
    for name in ("runs", "trials", "samples", "certificates"):
        told = set(described["tables"][name]["columns"])
        assert told and told <= columns[name] and (name == "certificates") == ("alpha" in told)


PAGES = (".json", "/run_summary.json?_shape=array", "/trials")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.db", "", "no answer: holds no run yet"),
        ("log.csv", "", "no answer: holds no run yet"),
        ("text.db", "precious", "not a database"),
        ("log.csv", "precious", "not a database, and there is none beside it ({folder}/log.db)"),
    ],
)
def test_a_file_without_runs_is_called_what_it_is(
    capsys, tmp_path: Path, name: str, content: str, reason: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert main(["runs", str(path)]) == 1
    assert capsys.readouterr().err == f"autotune: {path}: {reason.format(folder=tmp_path)}\n"
