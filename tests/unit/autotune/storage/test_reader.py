from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import LogError, NoAnswerError
from autotune.space import HOROVOD
from autotune.storage import Resume, open_logs, read_log, sqlite_reader
from autotune.storage.csv_log import row_text
from autotune.storage.standing import best_so_far
from autotune.trial import RunState, Standing, TrialState

HEADER = ",".join(HOROVOD.columns)


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


def test_a_csv_alone_answers_with_the_highest_score_however_small_its_lead(
    tmp_path: Path, make_trial
) -> None:
    trials = [make_trial(0, 100.0), make_trial(1, 101.0), make_trial(2, 100.5)]
    assert best_so_far(trials) == trials[1]
    path = tmp_path / "log.csv"
    path.write_text("".join(f"{line}\n" for line in [HEADER, *map(row_text, trials)]))
    view = read_log(str(path))
    assert (view.kind, view.finished, view.answer()) == ("csv", False, trials[1])


def test_the_readings_of_a_trial_count_together(make_trial, make_sample) -> None:
    trials = [make_trial(0, 100.0), make_trial(1, 140.0), make_trial(2, 110.0)]
    scores = [(0, 100.0), (1, 140.0), (2, 110.0), (1, 70.0), (1, 60.0), (0, 102.0)]
    samples = [replace(make_sample(trial_id), score=score) for trial_id, score in scores]
    assert best_so_far(trials, samples) == trials[2]
    assert best_so_far(trials, [*samples, replace(make_sample(2), score=90.0)]) == trials[0]
    assert best_so_far(trials) == trials[1]


def test_raw_readings_of_different_times_do_not_count_beside_gains(
    make_trial, make_sample, make_gain
) -> None:
    trials = [make_trial(0, 100.0), make_trial(1, 120.0, gain=make_gain(20))]
    samples = [replace(make_sample(0), score=100.0), replace(make_sample(1), score=60.0)]
    assert best_so_far(trials, samples) == trials[1]


@pytest.mark.parametrize("end", ["killed", "unfinished", "resumed"])
@pytest.mark.parametrize("says", [True, False])
def test_the_best_so_far_is_what_the_job_holds_for_it(
    tmp_path: Path, make_run, make_trial, make_sample, end: str, says: bool
) -> None:
    """A job knows more than scores; of one that did not come to say it, all readings count."""
    logs = open_logs(str(tmp_path / "log.csv"), None, host="node1", pid=1)
    logs.start(make_run())
    for number, score in enumerate((100.0, 140.0, 120.0)):
        logs.add_sample(replace(make_sample(number), score=score))
        logs.add_trial(make_trial(number, score))
    logs.add_sample(replace(make_sample(1), score=50.0))
    best = make_trial(0, 100.0) if says else make_trial(2, 120.0)
    if says:
        logs.set_best(Standing(best=make_trial(1, 140.0)))
        logs.set_best(Standing(best=best))
    if end == "unfinished":
        logs.finish_run(RunState.UNFINISHED, best)
    if end != "killed":
        logs.close()
    if end == "resumed":
        logs = open_logs(str(tmp_path / "log.csv"), None, host="node1", pid=1)
        start = logs.start(make_run())
        assert isinstance(start, Resume) and start.best == best
    for name in ("log.csv", "log.db", "."):
        view = read_log(str(tmp_path / name))
        assert (view.answer(), view.finished) == (make_trial(0, 100.0), False)
        assert view.standing == Standing(best=best)
    logs.close()
    (tmp_path / "log.db").unlink()
    assert read_log(str(tmp_path / "log.csv")).answer() == make_trial(1, 140.0)


@pytest.mark.parametrize("certified", [True, False])
def test_a_certificate_is_proof_also_of_a_job_that_was_killed_right_after_it(
    tmp_path: Path, make_run, make_trial, certificate, certified: bool
) -> None:
    logs = open_logs(str(tmp_path / "log.csv"), None, host="node1", pid=1)
    logs.start(make_run())
    for number in range(2):
        logs.add_trial(make_trial(number))
    logs.set_best(Standing(best=make_trial(1)))
    logs.add_certificate(replace(certificate, certified=certified))
    logs.close()
    for name in ("log.csv", "log.db"):
        view = read_log(str(tmp_path / name))
        assert view.standing is not None and view.standing.proven is certified
        assert (view.answer().trial_id, view.finished) == (int(certified), False)


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
