from __future__ import annotations

import pytest

from autotune.service.logkeeper import LogKeeper, fingerprint
from autotune.service.protocol import Hello
from autotune.storage import csv_log, read_log
from autotune.storage.contract import Fresh
from autotune.storage.sqlite_log import SqliteLog
from autotune.trial import CommParams, RunState, Trial
from autotune.tuning.events import RunFinished

HELLO = Hello(size=4, local_size=2, cross_size=2, host="h", pid=1, fixed={"cycle_time_ms": 2.0})
TRIAL = Trial(trial_id=0, params=CommParams(), score=1.0)


class BrokenLogs:
    """Every call raises, which only a fault of ours can do."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.troubles: list[str] = []
        self.calls = 0

    def __getattr__(self, name: str):
        def fail(*args: object, **more: object) -> None:
            self.calls += 1
            raise OSError(28, "No space left on device")

        return fail


def test_logs_that_break_are_reported_once_and_never_end_the_job():
    logs = BrokenLogs()
    keeper = LogKeeper(logs, where="log.csv")
    for _ in range(3):
        keeper.take(TRIAL)
    (complaint,) = keeper.complaints()
    assert "log.csv" in complaint and "No space left" in complaint
    assert keeper.complaints() == [] and logs.calls == 3
    keeper.close()
    assert logs.calls == 4 and keeper.complaints() == []


def test_a_log_that_cannot_be_started_gives_a_fresh_run():
    keeper = LogKeeper(BrokenLogs(), where="log.csv")
    assert keeper.start(HELLO, [("allreduce", 8)], seed=1) == Fresh()
    assert len(keeper.complaints()) == 1


def test_a_removed_folder_does_not_end_the_job(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    hello = Hello(
        csv_path=str(folder / "log.csv"), size=2, local_size=2, cross_size=1, host="h", pid=1
    )
    keeper = LogKeeper.open(hello)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    keeper.start(hello, [("allreduce", 8)], seed=1)
    keeper.take(TRIAL)
    assert len(keeper.complaints()) <= 1
    keeper.close()


def test_a_job_that_is_tuned_again_replaces_its_result_once_that_is_final(tmp_path):
    csv = tmp_path / "log.csv"
    hello = Hello(csv_path=str(csv), size=2, local_size=2, cross_size=1, host="h", pid=1)
    keeper = LogKeeper.open(hello)
    operations = [("allreduce", 8)]
    better = Trial(trial_id=1, params=CommParams(cycle_time_ms=2.0), score=2.0)
    other = Trial(trial_id=1, params=CommParams(cycle_time_ms=5.0), score=3.0)

    def run(best: Trial, *, retune: bool) -> None:
        keeper.start(hello, operations, seed=1, retune=retune)
        for event in (TRIAL, best):
            keeper.take(event)
        if retune:  # until the new result is final, the old one stands
            assert read_log(str(csv)).answer() == better
        keeper.take(RunFinished(state=RunState.DONE, best=best))
        assert read_log(str(csv)).answer() == best and read_log(str(csv)).finished

    run(better, retune=False)
    run(other, retune=True)
    assert keeper.complaints() == []
    keeper.close()
    assert read_log(str(csv)).answer() == other


def test_a_log_that_fails_and_works_again_is_said_once_each(tmp_path, monkeypatch):
    csv = tmp_path / "log.csv"
    hello = Hello(csv_path=str(csv), size=2, local_size=2, cross_size=1, host="h", pid=1)
    keeper = LogKeeper.open(hello)
    keeper.start(hello, [("allreduce", 8)], seed=1)
    trials = [
        Trial(trial_id=number, params=CommParams(cycle_time_ms=1.0 + number), score=1.0)
        for number in range(4)
    ]
    with monkeypatch.context() as full:
        full.setattr(csv_log, "_write", no_space)
        for trial in trials[:3]:
            keeper.take(trial)
    (complaint,) = keeper.complaints()
    assert complaint.startswith(f"autotune: {csv}: cannot be written (No space left on device)")
    keeper.take(trials[3])
    assert keeper.complaints() == [f"autotune: {csv} can be written again: nothing is missing"]
    assert read_log(str(csv)).trials == tuple(trials)
    keeper.take(RunFinished(state=RunState.UNFINISHED, best=trials[1]))
    keeper.close()
    assert keeper.complaints() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "log.db"]


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        ({"csv_path": "log.csv"}, "HOROVOD_AUTOTUNE_LOG"),
        ({"db_path": "log.db"}, "HOROVOD_AUTOTUNE_DB"),
        ({}, None),
    ],
)
def test_a_job_goes_on_from_here_only_where_its_log_is_whole(tmp_path, monkeypatch, paths, name):
    paths = {key: str(tmp_path / value) for key, value in paths.items()}
    hello = Hello(**paths, size=2, local_size=2, cross_size=1, host="h", pid=1)

    def last_notes(*, retune: bool = False, best: Trial | None = TRIAL) -> str:
        keeper = LogKeeper.open(hello)
        keeper.notes()
        keeper.start(hello, [("allreduce", 8)], seed=1, retune=retune)
        if best is not None and not (tmp_path / "log.csv").exists():
            keeper.take(best)
        keeper.notes()
        keeper.take(RunFinished(state=RunState.UNFINISHED, best=best))
        keeper.close()
        return " ".join(keeper.notes())

    if name is None:
        assert last_notes() == ""
        return
    assert last_notes(best=None) == ""
    for path in tmp_path.iterdir():
        path.unlink()
    assert f"the same job with the same {name} goes on from here" in last_notes()
    assert last_notes(retune=True) == ""
    with monkeypatch.context() as full:
        full.setattr(SqliteLog, "finish_run", no_space)
        assert last_notes() == ""


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_without_a_path_there_is_a_note_and_no_file():
    keeper = LogKeeper.open(HELLO)
    assert "HOROVOD_AUTOTUNE_LOG" in keeper.notes()[0]
    keeper.take(TRIAL)
    assert keeper.notes() == keeper.complaints() == []


@pytest.mark.parametrize("order", [[("b", 2), ("a", 1)], [("a", 1), ("b", 2)]])
def test_fingerprints_do_not_depend_on_the_order_of_operations(order):
    assert fingerprint(HELLO, order) == fingerprint(HELLO, [("a", 1), ("b", 2)])
