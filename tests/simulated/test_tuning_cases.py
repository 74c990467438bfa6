"""Cases of people whom a tuner made slower, misled or stopped: T1-T3, T9, T11, T16-T18.

T8 and T15 stand in test_tuner.py, T5 in test_user_cases.py.
"""

from __future__ import annotations

import json
import math

import pytest

from autotune.bayes import SearchSpace
from autotune.storage import open_logs, read_log
from autotune.storage.contract import RunInfo
from autotune.trial import CommParams, Fingerprint, Sample, Trial
from autotune.tuning.changes import Apply
from autotune.tuning.steps.records import TunerSettings
from autotune.tuning.tuner import Tuner


class TestT1:
    """After tuning, a small synchronous loop ran 4.8 times slower than untuned."""

    @pytest.mark.parametrize("seed", range(3))
    def test_a_loop_that_the_default_serves_best_is_not_slower_after_tuning(self, job, tuner, seed):
        def small_loop(params):  # waits for whole cycles, whatever the threshold
            return 0.3 + abs(math.log(params.cycle_time_ms / CommParams().cycle_time_ms))

        run = job(small_loop, seed=seed, compute_ms=5.0)
        run.drive(tuner(seed))
        assert run.done is not None and run.true_gain >= -0.05 / 1.05


class TestT2:
    """One point read 549, then 480: the best row is luck."""

    def test_with_ten_percent_noise_no_choice_is_worse_than_the_default(self, job, tuner):
        gains = []
        for seed in range(20):
            run = job("best_at_default", seed=seed, noise=0.1)
            run.drive(tuner(seed, max_samples=6))
            gains.append(run.true_gain)
        assert min(gains) > -0.005


class TestT3:
    """The default was outside of the search range, and so was what production pins."""

    def test_the_default_is_inside_and_first(self, finished):
        space = SearchSpace(CommParams())
        assert CommParams() in {space.decode(k) for k in range(space.size)}
        assert finished("bowl").trials[0].params == CommParams()

    def test_a_cycle_of_a_tenth_of_a_millisecond_is_reachable(self):
        space = SearchSpace(CommParams(), frozen={"hierarchical_allreduce"})
        assert min(space.decode(k).cycle_time_ms for k in range(space.size)) == 0.1


class TestT9:
    """The launcher exported options that nobody had set, which fixed every parameter."""

    def test_nothing_set_leaves_everything_free(self):
        tuner = Tuner(settings=TunerSettings(), seed=0, size=4)
        assert not any("stays at" in event.text for event in tuner.open())
        assert set(SearchSpace(CommParams()).names) >= {"cycle_time_ms", "fusion_threshold_bytes"}


class TestT11:
    """A best of "cache off" was reported but not in effect."""

    def test_what_is_in_force_at_the_end_is_the_last_line(self, finished, tmp_path):
        run = finished("bowl", 3)
        path = tmp_path / "log.csv"
        logs = open_logs(str(path), None, host="h", pid=1)
        fingerprint = Fingerprint(
            tensors=(), size=2, local_size=2, cross_size=1, versions={}, fixed={}
        )
        logs.start(RunInfo(fingerprint=fingerprint, host="h", pid=1, seed=3))
        for event in run.events:
            if isinstance(event, Sample):
                logs.add_sample(event)
            elif isinstance(event, Trial):
                logs.add_trial(event)
        logs.finish_run(run.finished.state, run.finished.best)
        logs.close()
        last = run.of(Apply)[-1]
        assert run.done.epoch == last.epoch
        assert read_log(str(path)).answer().params.as_dict() == last.params == run.done.params


class TestT16:
    """Reading a property on rank 0 hid a collective."""

    def test_asking_the_tuner_for_its_state_changes_nothing(self, job, tuner):
        asked, plain = tuner(1), tuner(1)
        runs = job("bowl", seed=1), job("bowl", seed=1)
        for chosen, run in zip((asked, plain), runs, strict=True):
            for steps in range(10, 200, 10):
                run.drive(chosen, most_steps=steps)
                if chosen is asked:
                    _ = (asked.phase, asked.trials, asked.steps_to_done, asked.seed)
        assert runs[0].events == runs[1].events


class TestT17:
    """Exactly equal scores crash the surrogate; NaN and infinite ones, too."""

    @pytest.mark.parametrize("value", [0.0, math.nan, math.inf, -1.0])
    def test_a_job_whose_durations_turn_bad_goes_on(self, job, tuner, value):
        run = job("bowl", noise=0.0, seed=2)
        step = run.step

        def sometimes_bad():
            record = step()
            bad = record.step % 3 == 0 and record.epoch > 0
            values = record.__dict__ | ({"duration_us": value} if bad else {})
            return type(record)(**values)

        run.step = sometimes_bad
        run.drive(tuner(2, max_samples=8))
        assert run.done is not None and run.true_gain > -0.005


class TestT18:
    """What scikit-optimize returns is neither JSON nor on the grid."""

    def test_everything_that_is_sent_and_logged_is_json(self, finished):
        run = finished("bowl", 2)
        for event in run.of(Apply):
            json.dumps(event.params)
        for trial in run.trials:
            json.dumps(trial.params.as_dict())
            assert trial.params.fusion_threshold_bytes % 1024 == 0

    def test_the_winner_is_not_simply_the_highest_reading(self, finished):
        runs = [finished(surface, seed) for surface in ("flat", "bowl") for seed in range(3)]
        highest = [max(run.trials, key=lambda trial: trial.score).trial_id for run in runs]
        assert highest != [run.finished.best.trial_id for run in runs]
