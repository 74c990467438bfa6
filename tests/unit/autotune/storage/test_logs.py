from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import LogBusyError, LogError
from autotune.space import HOROVOD
from autotune.storage import Fresh, Logs, Replay, Resume, open_logs, read_log
from autotune.storage.paths import default_db_path
from autotune.trial import RunState, Standing, TrialState

HEADER = ",".join(HOROVOD.columns)

DATA = Path(__file__).parents[3] / "data"


@pytest.fixture
def open_at(tmp_path: Path) -> Callable[..., Logs]:
    def open_(csv: str | None = "log.csv", db: str | None = None) -> Logs:
        csv_path, db_path = (name and f"{tmp_path}/{name}" for name in (csv, db))
        return open_logs(csv_path, db_path, host="node1", pid=4242, patience_s=0.05)

    return open_


@pytest.fixture
def tune(open_at, make_run, make_trial, make_sample) -> Callable[..., None]:
    """A whole job: ``trials`` trials, done or not."""

    def job(*, trials: int, done: bool, run=None, score=10.0, **where) -> None:
        logs = open_at(**where)
        logs.start(run or make_run())
        for number in range(trials):
            logs.add_sample(make_sample(number))
            logs.add_trial(make_trial(number, score + number))
        best = make_trial(trials - 1, score + trials - 1)
        logs.finish_run(RunState.DONE if done else RunState.UNFINISHED, best if done else None)
        logs.close()

    return job


class TestOpening:
    """What can be wrong is said at once, names the path, and changes nothing."""

    def test_missing_folder(self, tmp_path: Path, open_at) -> None:
        with pytest.raises(LogError, match=r"HOROVOD_AUTOTUNE_LOG=.*missing/log\.csv.*create it"):
            open_at("missing/log.csv")
        with pytest.raises(LogError, match=r"HOROVOD_AUTOTUNE_DB=.*missing/log\.db.*create it"):
            open_at("log.csv", "missing/log.db")
        with pytest.raises(LogError, match=r"HOROVOD_AUTOTUNE_DB=.*create it"):
            open_at("log.csv", "missing/")
        assert os.listdir(tmp_path) == []

    def test_directory(self, tmp_path: Path, open_at) -> None:
        with pytest.raises(LogError, match=f"{tmp_path}: is a directory"):
            open_logs(str(tmp_path), None, host="node1", pid=1)

    def test_not_writable(self, tmp_path: Path, open_at, monkeypatch) -> None:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(LogError, match="not writable"):
            open_at()

    def test_not_a_regular_file(self, tmp_path: Path, open_at) -> None:
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(LogError, match="regular file"):
            open_at("fifo")
        with pytest.raises(LogError, match="regular file"):
            open_logs("/dev/null", None, host="node1", pid=1)

    def test_impossible_names(self, open_at) -> None:
        for name in ("a\0b", "x" * 5000):
            with pytest.raises(LogError, match="HOROVOD_AUTOTUNE_LOG"):
                open_at(name)

    def test_other_files_are_never_overwritten(self, tmp_path: Path, open_at) -> None:
        (tmp_path / "log.csv").write_text("name,age\nada,36\n")
        with pytest.raises(LogError, match=r"log\.csv.*not an autotune log.*not overwritten"):
            open_at()
        (tmp_path / "log.db").write_text("precious")
        with pytest.raises(LogError, match=r"log\.db.*not overwritten"):
            open_at("other.csv", "log.db")
        assert (tmp_path / "log.csv").read_text() == "name,age\nada,36\n"
        assert sorted(os.listdir(tmp_path)) == ["log.csv", "log.db"]

    def test_csv_and_database_in_one_file(self, open_at) -> None:
        with pytest.raises(LogError, match="two files"):
            open_at("log.csv", "log.csv")

    def test_two_live_jobs(self, tmp_path: Path, open_at) -> None:
        first = open_at()
        for csv, db in (("log.csv", "b.db"), ("b.csv", "log.db"), (None, "log.db")):
            with pytest.raises(LogBusyError, match="process 4242 on host node1"):
                open_at(csv, db)
        (tmp_path / "link.csv").symlink_to(tmp_path / "log.csv")
        with pytest.raises(LogBusyError, match="process 4242 on host node1"):
            open_at("link.csv", "b.db")
        first.close()
        open_at().close()

    def test_nothing_is_left_locked_after_an_error(self, tmp_path: Path, open_at) -> None:
        (tmp_path / "log.db").write_text("precious")
        with pytest.raises(LogError):
            open_at()
        assert sorted(os.listdir(tmp_path)) == ["log.db"]


def test_without_paths_nothing_happens(tmp_path, make_run, make_trial, make_sample, certificate):
    logs = open_logs(None, None, host=socket.gethostname(), pid=1)
    assert logs.start(make_run()) == Fresh()
    logs.add_sample(make_sample(0))
    logs.add_trial(make_trial(0))
    logs.add_certificate(certificate)
    logs.finish_run(RunState.DONE, make_trial(0))
    logs.close()


@pytest.mark.parametrize(
    ("csv", "db"),
    [("log.csv", "log.db"), ("a.b/tune.log", "a.b/tune.db"), ("run.7", "run.db"), ("x", "x.db")],
)
def test_the_database_has_the_name_of_the_csv(csv: str, db: str) -> None:
    assert default_db_path(csv) == db
    assert default_db_path(csv + ".12") == (db if csv != "run.7" else "run.7.db")


class TestStarting:
    def test_the_first_job_is_fresh(self, tmp_path: Path, open_at, make_run) -> None:
        logs = open_at()
        assert logs.start(make_run()) == Fresh()
        assert (tmp_path / "log.csv").read_text() == HEADER + "\n"
        logs.close()
        assert sorted(os.listdir(tmp_path)) == ["log.csv", "log.db"]

    def test_an_empty_file_is_taken(self, tmp_path: Path, open_at, make_run) -> None:
        (tmp_path / "log.csv").touch()
        logs = open_at()
        assert logs.start(make_run()) == Fresh()
        logs.close()

    @pytest.mark.parametrize("where", [{}, {"db": "x.db"}, {"csv": None, "db": "x.db"}])
    def test_the_same_job_resumes_with_trials_samples_and_seed(
        self, open_at, make_run, make_trial, make_sample, tune, where
    ) -> None:
        tune(trials=2, done=False, **where)
        logs = open_at(**where)
        start = logs.start(make_run(seed=99))
        assert start == Resume(
            trials=(make_trial(0, 10.0), make_trial(1, 11.0)),
            samples=(make_sample(0), make_sample(1)),
            seed=7,
            standing=Standing(best=make_trial(0, 10.0)),
        )
        logs.add_trial(make_trial(2, 3.0))
        logs.close()
        assert len(read_log(logs.csv_path or str(logs.db_path)).trials) == 3

    @pytest.mark.parametrize("where", [{}, {"db": "x.db"}, {"csv": None, "db": "x.db"}])
    def test_the_same_job_replays_what_is_finished(
        self, open_at, make_run, make_trial, tune, where
    ) -> None:
        tune(trials=2, done=True, **where)
        for _ in range(2):
            logs = open_at(**where)
            start = logs.start(make_run())
            assert start == Replay(best=make_trial(1, 11.0), certificate=None)
            assert "replayed" in logs.notes[0]
            logs.close()

    def test_another_job_moves_the_log_aside(self, tmp_path: Path, open_at, make_run, tune) -> None:
        tune(trials=2, done=True)
        content = (tmp_path / "log.csv").read_bytes()
        logs = open_at()
        start = logs.start(make_run(size=3))
        assert isinstance(start, Fresh) and start.moved_to == str(tmp_path / "log.csv.1")
        assert [memory.run_id for memory in start.memory] == [1]
        logs.close()
        assert (tmp_path / "log.csv.1").read_bytes() == content
        assert (tmp_path / "log.csv").read_text() == HEADER + "\n"
        view = read_log(str(tmp_path / "log.csv.1"))
        assert view.finished and view.run is not None and view.run.size == 2
        assert view.run.csv_path == str(tmp_path / "log.csv.1")

    def test_a_job_that_comes_back_finds_its_result(
        self, tmp_path: Path, open_at, make_run, make_trial, tune
    ) -> None:
        tune(trials=2, done=True)
        content = (tmp_path / "log.csv").read_bytes()
        tune(trials=1, done=True, run=make_run(size=3), score=20.0)
        logs = open_at()
        assert isinstance(logs.start(make_run()), Replay)
        logs.close()
        assert (tmp_path / "log.csv").read_bytes() == content
        assert read_log(str(tmp_path / "log.csv.2")).best == make_trial(0, 20.0)

    def test_a_log_without_its_database_moves_aside(
        self, tmp_path: Path, open_at, make_run, tune
    ) -> None:
        tune(trials=2, done=True)
        (tmp_path / "log.db").unlink()
        logs = open_at()
        assert logs.start(make_run()) == Fresh(moved_to=str(tmp_path / "log.csv.1"))
        logs.close()

    def test_a_log_of_horovod_moves_aside(self, tmp_path: Path, open_at, make_run) -> None:
        content = (DATA / "horovod-0.28.1-autotune-cut-short.csv").read_bytes()
        (tmp_path / "log.csv").write_bytes(content)
        logs = open_at()
        assert logs.start(make_run()) == Fresh(moved_to=str(tmp_path / "log.csv.1"))
        logs.close()
        assert (tmp_path / "log.csv.1").read_bytes() == content

    @pytest.mark.parametrize("done", [True, False])
    def test_removing_the_csv_starts_over(
        self, tmp_path: Path, open_at, make_run, tune, done: bool
    ) -> None:
        tune(trials=2, done=done)
        (tmp_path / "log.csv").unlink()
        logs = open_at()
        assert logs.start(make_run()) == Fresh()
        logs.close()
        assert (tmp_path / "log.csv").read_text() == HEADER + "\n"

    def test_a_job_that_found_nothing_leaves_nothing_to_resume(
        self, open_at, make_run, tune
    ) -> None:
        logs = open_at()
        logs.start(make_run())
        logs.close()
        logs = open_at()
        assert logs.start(make_run()) == Fresh()
        logs.close()

    def test_a_moved_folder_resumes(self, tmp_path: Path, open_at, make_run, tune) -> None:
        (tmp_path / "a").mkdir()
        tune(csv="a/log.csv", trials=2, done=False)
        (tmp_path / "a").rename(tmp_path / "b")
        logs = open_at("b/log.csv")
        assert isinstance(logs.start(make_run()), Resume)
        logs.close()

    @pytest.mark.parametrize("cut", [0, 1, 20, 45])
    def test_resuming_repairs_the_csv(
        self, tmp_path: Path, open_at, make_run, tune, cut: int
    ) -> None:
        tune(trials=3, done=False)
        path = tmp_path / "log.csv"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) - cut])
        logs = open_at()
        logs.start(make_run())
        logs.close()
        assert path.read_bytes() == whole

    @pytest.mark.parametrize("cut", [0, 1, 20, 45])
    def test_a_last_line_keeps_the_score_that_the_end_gave_it(
        self, tmp_path: Path, open_at, make_run, make_trial, cut: int
    ) -> None:
        logs = open_at()
        logs.start(make_run())
        for number in range(2):
            logs.add_trial(make_trial(number, 10.0 + number))
        best = make_trial(1, 10.5)
        logs.finish_run(RunState.DONE, best)
        logs.close()
        path = tmp_path / "log.csv"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) - cut])
        assert read_log(str(path)).finished  # the database has the end already
        logs = open_at()
        assert logs.start(make_run()) == Replay(best=best, certificate=None)
        logs.close()
        assert path.read_bytes() == whole
        for name in ("log.csv", "log.db"):
            view = read_log(str(tmp_path / name))
            assert view.best == best and view.trials[1] == make_trial(1, 11.0)
        assert sorted(os.listdir(tmp_path)) == ["log.csv", "log.db"]

    def test_a_job_that_ends_before_its_run_begins_ends_nothing(
        self, tmp_path: Path, open_at, make_run, tune
    ) -> None:
        tune(trials=2, done=True)
        content = (tmp_path / "log.csv").read_bytes()
        logs = open_at()
        logs.finish_run(RunState.UNFINISHED, None)
        logs.start(make_run())
        logs.finish_run(RunState.UNFINISHED, None)
        logs.close()
        assert (tmp_path / "log.csv").read_bytes() == content
        assert read_log(str(logs.db_path)).finished

    def test_a_run_that_ended_without_a_best_resumes(self, open_at, make_run, make_trial) -> None:
        logs = open_at()
        logs.start(make_run())
        logs.add_trial(make_trial(0))
        logs.finish_run(RunState.DONE, None)
        logs.close()
        logs = open_at()
        assert isinstance(logs.start(make_run()), Resume)
        logs.add_trial(make_trial(1))
        logs.close()
        assert len(read_log(str(logs.csv_path)).trials) == 2


class TestFolder:
    def test_each_run_has_its_own_file(self, tmp_path: Path, open_at, make_run, tune) -> None:
        (tmp_path / "runs").mkdir()
        tune(csv="a.csv", db="runs", trials=1, done=True)
        tune(csv="b.csv", db="runs", trials=1, done=False, run=make_run(size=3))
        assert len(os.listdir(tmp_path / "runs")) == 2
        logs = open_at("a.csv", "runs")
        assert isinstance(logs.start(make_run()), Replay)
        logs.close()
        logs = open_at("b.csv", "runs")
        assert isinstance(logs.start(make_run(size=3)), Resume)
        logs.close()
        assert len(os.listdir(tmp_path / "runs")) == 2
        view = read_log(str(tmp_path / "runs"))
        assert view.best is not None
        assert "2 runs" in view.warnings[0]

    def test_two_live_jobs_share_it(self, tmp_path: Path, open_at, make_run, tune) -> None:
        (tmp_path / "runs").mkdir()
        tune(csv=None, db="runs", trials=1, done=False)
        first = open_at(None, "runs")
        assert isinstance(first.start(make_run()), Resume)
        second = open_at(None, "runs")
        assert isinstance(second.start(make_run()), Fresh)
        first.close()
        second.close()


class TestRetuning:
    def test_the_result_is_in_place_until_the_new_one_is_final(
        self, tmp_path: Path, open_at, make_run, make_trial, tune
    ) -> None:
        tune(trials=2, done=True)
        old = (tmp_path / "log.csv").read_bytes()
        logs = open_at()
        assert isinstance(logs.start(make_run()), Replay)
        assert logs.start(make_run(), retune=True) == Fresh()
        logs.add_trial(make_trial(5, 50.0))
        assert (tmp_path / "log.csv").read_bytes() == old
        assert read_log(str(tmp_path / "log.db")).best == make_trial(1, 11.0)
        logs.finish_run(RunState.DONE, make_trial(5, 50.0))
        logs.close()
        assert read_log(str(tmp_path / "log.csv")).best == make_trial(5, 50.0)
        assert read_log(str(tmp_path / "log.db")).best == make_trial(5, 50.0)
        assert sorted(os.listdir(tmp_path)) == ["log.csv", "log.db"]

    @pytest.mark.parametrize("killed", [True, False])
    def test_a_retune_cut_off_leaves_the_result(
        self, tmp_path: Path, open_at, make_run, make_trial, tune, killed: bool
    ) -> None:
        tune(trials=2, done=True)
        old = (tmp_path / "log.csv").read_bytes()
        logs = open_at()
        logs.start(make_run(), retune=True)
        logs.add_trial(make_trial(5, 50.0))
        if not killed:
            logs.finish_run(RunState.UNFINISHED, None)
        logs.close()
        logs = open_at()
        assert logs.start(make_run()) == Replay(best=make_trial(1, 11.0), certificate=None)
        logs.close()
        assert (tmp_path / "log.csv").read_bytes() == old
        assert sorted(os.listdir(tmp_path)) == ["log.csv", "log.db"]


@pytest.mark.parametrize("how", ["while tuning", "at the end", "replayed", "tuned again"])
def test_a_setting_found_wrong_is_kept_by_no_later_job(
    open_at, tune, make_run, make_trial, how: str
) -> None:
    if how in ("replayed", "tuned again"):
        tune(trials=2, done=True)
    logs = open_at()
    logs.start(make_run(), retune=how == "tuned again")
    if how != "replayed":
        logs.add_trial(make_trial(0, 10.0))
        logs.add_trial(make_trial(1, 11.0))
    if how in ("at the end", "tuned again"):
        logs.finish_run(RunState.DONE, make_trial(1, 11.0))
    logs.reject_trial(make_trial(1, 11.0))
    logs.close()
    assert logs.troubles == []
    later = open_at()
    start = later.start(make_run())
    assert isinstance(start, Resume)
    assert start.trials[1] == make_trial(1, 0.0, state=TrialState.REJECTED)
    assert later.notes == [n for n in later.notes if "moved" not in n]
    later.close()


def test_a_rejection_that_the_csv_has_not_heard_of_is_made_up_for(
    tmp_path: Path, open_at, tune, make_run, make_trial
) -> None:
    tune(trials=3, done=True)
    before = (tmp_path / "log.csv").read_text(encoding="utf-8")
    logs = open_at()
    logs.start(make_run())
    logs.reject_trial(make_trial(2, 12.0))
    logs.close()
    after = (tmp_path / "log.csv").read_text(encoding="utf-8")
    (tmp_path / "log.csv").write_text(before, encoding="utf-8")  # killed between the two files
    logs = open_at()
    assert isinstance(logs.start(make_run()), Resume)
    logs.close()
    assert (tmp_path / "log.csv").read_text(encoding="utf-8") == after != before
    assert not (tmp_path / "log.csv.1").exists()


def test_states_of_trials_survive_in_the_view_of_the_csv(open_at, make_run, make_trial) -> None:
    logs = open_at()
    logs.start(make_run())
    logs.add_trial(make_trial(0, 10.0))
    logs.add_trial(make_trial(1, 99.0, state=TrialState.ABANDONED))
    logs.close()
    view = read_log(str(logs.csv_path))
    assert view.best == make_trial(0, 10.0)
