"""Files that cannot be written for a while: each for itself, said once, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from autotune.errors import LogError, RefusedEntryError
from autotune.storage import Fresh, Logs, Resume, csv_log, open_logs, read_log, sqlite_log
from autotune.storage.backlog import Backlog
from autotune.trial import RunState, Standing, Trial

FAILING = [{"csv"}, {"db"}, {"csv", "db"}]
NAMES = {"csv": "log.csv", "db": "log.db"}


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager]:
    """No room for one of the files, or for both."""

    class Full:
        def __init__(self, files: set[str]) -> None:
            self._files = files

        def __enter__(self) -> None:
            if "csv" in self._files:
                monkeypatch.setattr(csv_log, "_write", no_space)
            if "db" in self._files:
                monkeypatch.setattr(sqlite_log.SqliteLog, "_running", no_space)
                monkeypatch.setattr(sqlite_log.SqliteLog, "_mark_dead_runs", no_space)

        def __exit__(self, *_: object) -> None:
            monkeypatch.undo()

    return Full


@pytest.fixture
def open_at(tmp_path: Path) -> Callable[..., Logs]:
    def open_(csv: str | None = "log.csv", db: str | None = None) -> Logs:
        csv_path, db_path = (name and f"{tmp_path}/{name}" for name in (csv, db))
        return open_logs(csv_path, db_path, host="node1", pid=4242)

    return open_


def check(logs: Logs, trials: list[Trial], *, failed: set[str]) -> None:
    """Each file that failed said so once, and that it works again once; both hold everything."""
    for file, name in NAMES.items():
        said = [text for text in logs.troubles if f"/{name}" in text]
        assert len(said) == (2 if file in failed else 0)
        if said:
            assert "No space left on device" in said[0]
            assert "again: nothing is missing" in said[1]
    for path in (logs.csv_path, logs.db_path):
        assert path is not None and list(read_log(path).trials) == trials
    assert sorted(os.listdir(os.path.dirname(str(logs.csv_path)))) == ["log.csv", "log.db"]


@pytest.mark.parametrize("failing", FAILING)
def test_what_was_missed_follows_with_the_next_entry(
    full, open_at, make_run, make_trial, make_sample, failing
) -> None:
    trials = [make_trial(number) for number in range(5)]
    logs = open_at()
    logs.start(make_run())
    logs.add_trial(trials[0])
    with full(failing):
        for trial in trials[1:4]:
            logs.add_sample(make_sample(trial.trial_id))
            logs.add_trial(trial)
            logs.set_best(Standing(best=trial))
        for file in set(NAMES) - failing:
            assert (
                list(read_log(f"{os.path.dirname(logs.csv_path)}/{NAMES[file]}").trials)
                == (trials[:4])
            )
        assert len(logs.troubles) == len(failing)
    logs.add_trial(trials[4])
    logs.finish_run(RunState.DONE, trials[2])
    logs.close()
    check(logs, trials, failed=failing)
    assert read_log(str(logs.csv_path)).best == read_log(str(logs.db_path)).best == trials[2]


@pytest.mark.parametrize("failing", FAILING)
def test_a_run_may_begin_and_end_without_room(full, open_at, make_run, make_trial, failing) -> None:
    logs = open_at()
    with full(failing):
        assert logs.start(make_run()) == Fresh()
        logs.add_trial(make_trial(0))
        logs.finish_run(RunState.UNFINISHED, make_trial(0))
    logs.close()
    check(logs, [make_trial(0)], failed=failing)
    logs = open_at()
    start = logs.start(make_run())
    assert isinstance(start, Resume) and start.trials == (make_trial(0),)
    logs.close()


@pytest.mark.parametrize("failing", FAILING)
def test_what_is_never_written_is_said_at_the_end_and_the_files_are_closed(
    full, tmp_path: Path, open_at, make_run, make_trial, failing
) -> None:
    logs = open_at()
    logs.start(make_run())
    logs.add_trial(make_trial(0))
    with full(failing):
        logs.add_trial(make_trial(1))
        logs.finish_run(RunState.UNFINISHED, make_trial(0))
        logs.close()
    for file, name in NAMES.items():
        said = [text for text in logs.troubles if f"/{name}" in text]
        assert [text.endswith("2 entries are missing") for text in said] == (
            [False, True] if file in failing else []
        )
    assert sorted(os.listdir(tmp_path)) == ["log.csv", "log.db"]
    open_at().close()


def test_trials_that_only_the_csv_got_are_kept(
    full, tmp_path: Path, open_at, make_run, make_trial
) -> None:
    logs = open_at()
    logs.start(make_run())
    logs.add_trial(make_trial(0))
    with full({"db"}):
        logs.add_trial(make_trial(1))
        logs.close()
    logs = open_at()
    start = logs.start(make_run())
    assert isinstance(start, Resume) and start.trials == (make_trial(0),)
    logs.close()
    assert "holds trials that its database lacks, moved to" in logs.notes[0]
    assert read_log(str(tmp_path / "log.csv.1")).trials == (make_trial(0), make_trial(1))


def test_an_end_that_only_the_csv_got_does_not_make_it_the_log_of_another_job(
    full, tmp_path: Path, open_at, make_run, make_trial
) -> None:
    trials = (make_trial(0), make_trial(1, 140.0))
    logs = open_at()
    logs.start(make_run())
    for trial in trials:
        logs.add_trial(trial)
    with full({"db"}):
        logs.finish_run(RunState.DONE, make_trial(1, 120.0))
        logs.close()
    assert read_log(str(tmp_path / "log.csv")).best == make_trial(1, 120.0)
    logs = open_at()
    start = logs.start(make_run())
    assert isinstance(start, Resume) and start.trials == trials
    logs.close()
    assert sorted(os.listdir(tmp_path)) == ["log.csv", "log.db"]


def test_a_result_that_is_replaced_stays_until_there_is_room_for_the_new_one(
    full, tmp_path: Path, open_at, make_run, make_trial
) -> None:
    logs = open_at()
    logs.start(make_run())
    logs.add_trial(make_trial(0))
    logs.finish_run(RunState.DONE, make_trial(0))
    with full({"csv"}):
        logs.start(make_run(), retune=True)
        logs.add_trial(make_trial(5))
        logs.finish_run(RunState.DONE, make_trial(5))
        assert read_log(str(tmp_path / "log.csv")).best == make_trial(0)
    logs.close()
    assert read_log(str(tmp_path / "log.csv")).best == make_trial(5)
    assert sorted(os.listdir(tmp_path)) == ["log.csv", "log.db"]


def test_a_folder_without_room_gets_one_file_once_there_is_room(
    tmp_path: Path, open_at, make_run, make_trial, monkeypatch
) -> None:
    (tmp_path / "runs").mkdir()
    logs = open_at("log.csv", "runs")

    def leave_an_empty_file(log: sqlite_log.SqliteLog) -> None:
        Path(log.path).touch()
        no_space()

    with monkeypatch.context() as full:
        full.setattr(sqlite_log.SqliteLog, "_prepare", leave_an_empty_file)
        assert logs.start(make_run()) == Fresh()
        logs.add_trial(make_trial(0))
        logs.add_trial(make_trial(1))
    logs.add_trial(make_trial(2))
    logs.close()
    (name,) = os.listdir(tmp_path / "runs")
    assert len(read_log(str(tmp_path / "runs" / name)).trials) == 3


def test_entries_keep_their_order_and_one_that_is_refused_is_dropped() -> None:
    said: list[str] = []
    written: list[int] = []
    backlog = Backlog("log", said.append)
    is_full = True

    def entry(number: int) -> None:
        if is_full:
            raise LogError("log: full")
        if number == 2:
            raise RefusedEntryError("log: has it already")
        written.append(number)

    for number in range(3):
        backlog.write(lambda number=number: entry(number))
    assert (written, backlog.missing) == ([], 3)
    is_full = False
    with pytest.raises(RefusedEntryError):
        backlog.write(lambda: entry(3))
    assert (written, backlog.missing) == ([0, 1, 3], 0)
    assert len(said) == 2 and said[0].startswith("log: full")
