from __future__ import annotations

import pytest

from autotune.events import RunFinished
from autotune.logkeeper import LogKeeper, fingerprint
from autotune.protocol import Hello, Line
from autotune.storage import read_log
from autotune.storage.contract import Fresh
from autotune.trial import CommParams, RunState, Trial

HELLO = Hello(size=4, local_size=2, cross_size=2, host="h", pid=1, fixed={"cycle_time_ms": 2.0})
TRIAL = Trial(trial_id=0, params=CommParams(), score=1.0)


class BrokenLogs:
    """Every write fails, as on a full disk."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.calls = 0

    def __getattr__(self, name: str):
        def fail(*args: object, **more: object) -> None:
            self.calls += 1
            raise OSError(28, "No space left on device")

        return fail


def test_a_log_that_breaks_is_reported_once_and_done_without():
    logs = BrokenLogs()
    keeper = LogKeeper(logs, where="log.csv")
    for _ in range(3):
        assert keeper.take(TRIAL)
    (complaint,) = keeper.complaints()
    assert "log.csv" in complaint and "No space left" in complaint
    assert keeper.complaints() == [] and logs.calls == 1
    keeper.close()


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


def test_messages_are_not_for_the_logs():
    assert not LogKeeper(None, where="").take(Line(text="x"))


def test_without_a_path_there_is_a_note_and_no_file():
    keeper = LogKeeper.open(HELLO)
    assert "HOROVOD_AUTOTUNE_LOG" in keeper.notes()[0]
    assert keeper.notes() == [] and keeper.take(TRIAL)


@pytest.mark.parametrize("order", [[("b", 2), ("a", 1)], [("a", 1), ("b", 2)]])
def test_fingerprints_do_not_depend_on_the_order_of_operations(order):
    assert fingerprint(HELLO, order) == fingerprint(HELLO, [("a", 1), ("b", 2)])
