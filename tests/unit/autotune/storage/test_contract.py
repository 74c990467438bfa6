"""One class for all stores: what autotune/storage/contract.py promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.errors import LogError
from autotune.storage import LogView, TrialStore, open_logs, read_log, sqlite_log
from autotune.storage.csv_log import CsvLog
from autotune.storage.sqlite_log import SqliteLog
from autotune.trial import CommParams, RunState, Standing, Trial, TrialState


@dataclass
class Store:
    """A store, and how to read what it wrote."""

    open: Callable[[], TrialStore]
    path: Path
    detailed: bool

    def read(self) -> LogView:
        return read_log(str(self.path))


KINDS = ["csv", "sqlite-wal", "sqlite-rollback", "logs-csv", "logs-sqlite", "logs-sqlite-only"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    csv, db = tmp_path / "log.csv", tmp_path / "log.db"
    local = "rollback" not in request.param
    monkeypatch.setattr(sqlite_log, "is_local", lambda folder: local)

    def logs(csv_path: Path | None) -> TrialStore:
        return open_logs(csv_path and str(csv_path), str(db), host="node1", pid=4242)

    return {
        "csv": Store(lambda: CsvLog(str(csv)), csv, False),
        "sqlite-wal": Store(lambda: SqliteLog(str(db)), db, True),
        "sqlite-rollback": Store(lambda: SqliteLog(str(db)), db, True),
        "logs-csv": Store(lambda: logs(csv), csv, True),
        "logs-sqlite": Store(lambda: logs(csv), db, True),
        "logs-sqlite-only": Store(lambda: logs(None), db, True),
    }[request.param]


class TestTrialStore:
    def test_entries_can_be_read_while_the_store_is_open(self, store, make_run, make_trial):
        log = store.open()
        log.begin_run(make_run())
        log.add_trial(make_trial(0))
        assert store.read().trials == (make_trial(0),)
        log.add_trial(make_trial(1))
        assert store.read().trials == (make_trial(0), make_trial(1))
        log.close()
        assert store.read().trials == (make_trial(0), make_trial(1))

    def test_a_run_without_an_end_is_unfinished_and_answers_with_what_is_not_in_doubt(
        self, store, make_run, make_trial
    ):
        log = store.open()
        log.begin_run(make_run())
        for trial in (make_trial(0, 5.0), make_trial(1, 9.0), make_trial(2, 9.0)):
            log.add_trial(trial)
        log.finish_run(RunState.UNFINISHED, None)
        log.close()
        view = store.read()
        assert not view.finished
        if store.detailed:
            assert view.best == make_trial(0, 5.0)
            assert view.standing == Standing(best=make_trial(1, 9.0))
        else:
            assert view.best == make_trial(1, 9.0)

    def test_a_done_run_ends_with_its_best_whatever_the_scores(self, store, make_run, make_trial):
        log = store.open()
        log.begin_run(make_run())
        log.add_trial(make_trial(0, 5.0))
        log.add_trial(make_trial(1, 9.0))
        log.finish_run(RunState.DONE, make_trial(0, 5.0))
        log.close()
        view = store.read()
        assert view.finished
        assert view.best == make_trial(0, 5.0)
        assert view.trials == (make_trial(0, 5.0), make_trial(1, 9.0))

    def test_the_end_tells_the_best_with_its_last_score_and_changes_no_trial(
        self, store, make_run, make_trial, make_gain
    ):
        log = store.open()
        log.begin_run(make_run())
        log.add_trial(make_trial(0, 5.0))
        log.add_trial(make_trial(1, 9.0, gain=make_gain(80)))
        log.set_best(Standing(best=make_trial(1, 9.0), gain=make_gain(80)))
        log.finish_run(RunState.DONE, make_trial(1, 6.5, gain=make_gain(30)))
        log.close()
        view = store.read()
        assert view.finished and view.best is not None and view.best.score == 6.5
        assert [trial.score for trial in view.trials] == [5.0, 9.0]
        if store.detailed:
            assert view.best == make_trial(1, 6.5, gain=make_gain(30))
            assert view.trials[1].gain == make_gain(80)
            assert view.standing is None

    @pytest.mark.parametrize("proven", [True, False])
    @pytest.mark.parametrize("end", [RunState.UNFINISHED, None])
    def test_an_unfinished_run_says_what_it_holds_for_the_best(
        self, store, make_run, make_trial, make_gain, proven, end
    ):
        best = make_trial(1, 9.0, gain=make_gain(70))
        standing = Standing(best=best, gain=make_gain(70), proven=proven)
        log = store.open()
        log.begin_run(make_run())
        log.add_trial(make_trial(0, 5.0))
        log.add_trial(make_trial(1, 9.0, gain=make_gain(80)))
        log.set_best(Standing(best=make_trial(0, 5.0)))
        log.set_best(standing)
        if end:
            log.finish_run(end, best)
        log.close()
        view = store.read()
        assert not view.finished
        if store.detailed:
            assert view.standing == standing
            assert view.best == (best if proven else make_trial(0, 5.0))

    def test_the_best_of_a_run_that_tried_nothing_is_recorded(self, store, make_run, make_trial):
        log = store.open()
        log.begin_run(make_run())
        log.finish_run(RunState.DONE, make_trial(0, 0.0))
        log.close()
        assert store.read().finished
        assert store.read().best == make_trial(0, 0.0)

    def test_a_setting_has_at_most_one_trial(self, store, make_run, make_trial):
        log = store.open()
        log.begin_run(make_run())
        log.add_trial(make_trial(0))
        with pytest.raises(LogError):
            log.add_trial(Trial(trial_id=1, params=CommParams(), score=3.0))
        log.close()
        assert store.read().trials == (make_trial(0),)

    def test_a_trial_whose_results_turn_out_to_be_wrong_is_rejected(
        self, store, make_run, make_trial
    ):
        log = store.open()
        log.begin_run(make_run())
        for number, score in enumerate((5.0, 9.0, 8.0)):
            log.add_trial(make_trial(number, score))
        log.reject_trial(make_trial(1, 9.0))
        log.add_trial(make_trial(3, 6.0))
        view = store.read()
        assert view.trials[1] == make_trial(1, 0.0, state=TrialState.REJECTED)
        assert [trial.score for trial in view.trials] == [5.0, 0.0, 8.0, 6.0]
        log.close()

    def test_a_result_that_turns_out_to_be_wrong_is_none(
        self, store, make_run, make_trial, certificate
    ):
        log = store.open()
        log.begin_run(make_run())
        log.add_trial(make_trial(0, 5.0))
        log.add_trial(make_trial(1, 9.0))
        log.add_certificate(certificate)
        log.finish_run(RunState.DONE, make_trial(1, 9.5))
        assert store.read().finished
        log.reject_trial(make_trial(1, 9.5))
        log.close()
        view = store.read()
        assert not view.finished and view.certificate is None
        assert view.best == make_trial(0, 5.0)
        assert view.trials[1] == make_trial(1, 0.0, state=TrialState.REJECTED)

    def test_a_trial_that_was_not_added_cannot_be_rejected(self, store, make_run, make_trial):
        log = store.open()
        log.begin_run(make_run())
        log.add_trial(make_trial(0))
        with pytest.raises(LogError, match="not added"):
            log.reject_trial(make_trial(1))
        log.close()
        assert store.read().trials == (make_trial(0),)

    def test_entries_before_the_run_are_refused(self, store, make_trial):
        log = store.open()
        with pytest.raises(LogError, match="begin_run"):
            log.add_trial(make_trial(0))
        log.close()

    def test_closing_twice_is_closing(self, store, make_run):
        log = store.open()
        log.begin_run(make_run())
        log.close()
        log.close()

    def test_values_come_back_exactly(self, store, make_run):
        values = [(3, 0.1, 0), (2**40 - 1, 1e-5, 1), (134217727, 18.5806, 2**20), (0, 0.0, 1024)]
        trials = tuple(
            Trial(
                trial_id=number,
                params=CommParams(
                    fusion_threshold_bytes=threshold,
                    cycle_time_ms=cycle,
                    cache_capacity=capacity,
                    hierarchical_allreduce=True,
                ),
                score=1 / 3 * 10.0 ** (20 * number - 20),
            )
            for number, (threshold, cycle, capacity) in enumerate(values)
        )
        log = store.open()
        log.begin_run(make_run(seed=2**127 - 1))
        for trial in trials:
            log.add_trial(trial)
        log.close()
        assert store.read().trials == trials

    def test_states_and_certificate_are_kept_where_there_is_sqlite(
        self, store, make_run, make_trial, make_sample, certificate
    ):
        log = store.open()
        log.begin_run(make_run())
        abandoned = make_trial(1, 3.0, state=TrialState.ABANDONED)
        log.add_sample(make_sample(0))
        log.add_trial(make_trial(0))
        log.add_trial(abandoned)
        log.add_certificate(certificate)
        log.close()
        view = store.read()
        if store.detailed:
            assert view.trials[1] == abandoned
            assert view.certificate == certificate
            assert view.run is not None and view.run.seed == 7
        else:
            assert len(view.trials) == 2
