from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.errors import LogError, NoAnswerError
from autotune.storage import open_logs, read_log, sqlite_reader
from autotune.storage.csv_log import HEADER
from autotune.storage.reader import best_so_far
from autotune.trial import RunState, TrialState


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"missing\.csv: no such file"):
        read_log(str(tmp_path / "missing.csv"))
    with pytest.raises(LogError):
        read_log("a\0b")


def test_a_folder_without_databases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="folder without autotune databases"):
        read_log(str(tmp_path))


def test_what_never_ends_is_not_read() -> None:
    with pytest.raises(LogError, match="not a regular file"):
        read_log("/dev/zero")


@pytest.mark.parametrize("content", ["", HEADER, HEADER + "\n"])
def test_a_log_without_trials_has_no_answer(tmp_path: Path, content: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(content)
    with pytest.raises(NoAnswerError, match=r"log\.csv: no answer"):
        read_log(str(path)).answer()


def test_only_complete_trials_are_the_answer(make_trial) -> None:
    trials = [
        make_trial(0, 5.0),
        make_trial(1, 9.0, state=TrialState.ABANDONED),
        make_trial(2, 5.0),
        make_trial(3, 0.0, state=TrialState.REJECTED),
    ]
    assert best_so_far(trials) == trials[0]
    assert best_so_far(trials[1:2]) is None


def test_a_lead_over_the_default_that_may_be_luck_does_not_count(make_trial) -> None:
    trials = [make_trial(0, 100.0), make_trial(1, 104.0), make_trial(2, 103.0)]
    assert best_so_far(trials) == trials[0]
    assert best_so_far(trials, default_first=False) == trials[1]
    assert best_so_far([*trials, make_trial(3, 108.0)]).trial_id == 3


@pytest.mark.parametrize("damage", [b"", b"precious", b"SQLite format 3\0 and then nothing"])
def test_a_damaged_database_does_not_hide_the_csv(
    tmp_path: Path, make_run, make_trial, damage: bytes
) -> None:
    logs = open_logs(str(tmp_path / "log.csv"), None, host="node1", pid=1)
    logs.start(make_run())
    logs.add_trial(make_trial(0))
    logs.finish_run(RunState.DONE, make_trial(0))
    logs.close()
    (tmp_path / "log.db").write_bytes(damage)
    view = read_log(str(tmp_path / "log.csv"))
    assert view.best == make_trial(0)
    assert view.finished


def test_a_database_in_a_folder_that_cannot_be_written_is_read(
    tmp_path: Path, make_run, make_trial, monkeypatch
) -> None:
    """There SQLite can make neither journal nor shared memory."""
    logs = open_logs(None, str(tmp_path / "log.db"), host="node1", pid=1)
    logs.start(make_run())
    logs.add_trial(make_trial(0))
    logs.close()
    real = sqlite_reader._uri
    refused = str(tmp_path / "missing" / "log.db")
    monkeypatch.setattr(
        sqlite_reader,
        "_uri",
        lambda path, mode: real(path if "immutable" in mode else refused, mode),
    )
    assert read_log(str(tmp_path / "log.db")).trials == (make_trial(0),)


def test_reading_changes_no_file(tmp_path: Path, make_run, make_trial) -> None:
    logs = open_logs(str(tmp_path / "log.csv"), None, host="node1", pid=1)
    logs.start(make_run())
    logs.add_trial(make_trial(0))
    logs.close()
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    for name in ("log.csv", "log.db", "."):
        assert read_log(str(tmp_path / name)).trials == (make_trial(0),)
    assert before == {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
