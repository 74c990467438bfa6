"""Verdicts on results that come late, when another setting is in force or another run has begun."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.trial import CommParams
from autotune.tuning.changes import Apply, Done, Line
from autotune.tuning.comparing.replay_check import ReplayCheck
from autotune.tuning.events import Rejection
from autotune.tuning.exploring.attempt import NextTrial
from autotune.tuning.steps.records import ResultCheck, TunerSettings
from autotune.tuning.tuner import Phase

GOOD = CommParams(fusion_threshold_bytes=2**20, cycle_time_ms=0.5)


def wrong(epoch: int) -> ResultCheck:
    return ResultCheck(epoch=epoch, name="g", ok=False, worst_error=1.0)


def test_a_setting_found_wrong_after_the_training_step_changed_is_never_tried_again(job, tuner):
    run, tuned = job(lambda p: 30.0 if p == CommParams() else 20.0, noise=0.0), tuner(max_samples=4)
    while not any(apply.limit_us for apply in run.of(Apply)):
        run.drive(tuned, most_steps=run.steps + 1)
    tried = run.of(Apply)[-1]
    run.drive(tuned, most_steps=run.steps + 2)
    run.spoil = lambda record: [dataclasses.replace(record, signature=99)]
    while tuned.phase is not Phase.WARMUP:
        run.drive(tuned, most_steps=run.steps + 1)
    tuned.check(wrong(tried.epoch))
    before = len(run.events)
    run.drive(tuned)
    assert run.done is not None
    later = [event for event in run.events[before:] if isinstance(event, Apply)]
    assert later and all(apply.params != tried.params for apply in later)


def test_a_result_found_wrong_while_the_default_is_compared_with_it_is_given_up(job, tuner):
    run, tuned = job("bowl", seed=1), tuner(1)
    run.drive(tuned)
    done = run.done
    until = run.steps + 400
    while run.steps < until:
        run.advance(tuned)
    run.compute_ms *= 4
    while run.params.as_dict() == done.params and run.steps < until + 600:
        run.advance(tuned)
    assert run.params == CommParams() and tuned.phase is Phase.DONE
    events = tuned.check(wrong(done.epoch))
    assert any(isinstance(event, Done) and not event.certified for event in events)
    until = run.steps + 300
    before = len(run.events)
    while run.steps < until:
        run.advance(tuned)
    later = [event for event in run.events[before:] if isinstance(event, Apply)]
    assert all(apply.params != done.params for apply in later)


@pytest.mark.parametrize("under", ["default", "tuned"])
def test_a_replay_check_knows_which_setting_a_verdict_is_about(job, under):
    check = ReplayCheck(
        settings=TunerSettings(seed=0, warmup_samples=1), seed=0, tuned=GOOD.as_dict(), fixed={}
    )
    run = job("bowl")
    run.params = GOOD
    run.drive(check, most_steps=1)
    while run.params != CommParams():
        run.advance(check)
    of_default, here = run.epoch, CommParams() if under == "default" else GOOD
    while run.params != here:
        run.advance(check)
    about_other = 0 if under == "default" else of_default
    events = check.check(wrong(about_other))
    is_given_up = any(isinstance(event, Done) for event in events)
    assert is_given_up == (under == "default")


def test_a_setting_found_wrong_while_its_next_reading_waits_is_not_read_again(job, tuner):
    run, tuned = job("bowl", seed=1), tuner(1)
    run.drive(tuned, most_steps=10)
    while len(run.trials) < 4:
        run.drive(tuned, most_steps=run.steps + 1)
    trial = run.trials[-1]
    explore = tuned._run._explore
    explore._next = NextTrial(params=trial.params, trial=trial)  # the budget does not suffice yet
    epoch = next(a.epoch for a in run.of(Apply) if a.params == trial.params.as_dict())
    run.events += tuned.check(wrong(epoch))
    before = len(run.events)
    run.drive(tuned)
    assert run.done is not None
    later = [event for event in run.events[before:] if isinstance(event, Apply)]
    assert all(apply.params != trial.params.as_dict() for apply in later)


def test_a_finished_trial_found_wrong_is_rejected_in_the_log(job, tuner):
    run, tuned = job("bowl", seed=1), tuner(1)
    while len(run.trials) < 4:
        run.drive(tuned, most_steps=run.steps + 1)
    trial = run.trials[2]
    epoch = next(a.epoch for a in run.of(Apply) if a.params == trial.params.as_dict())
    events = tuned.check(wrong(epoch)) + tuned.check(wrong(epoch))
    assert [e for e in events if isinstance(e, Rejection)] == [Rejection(trial=trial.rejected)]
    assert tuned.trials[2] == trial.rejected


def test_a_result_found_wrong_is_rejected_in_the_log(job, tuner):
    run, tuned = job("bowl", seed=1), tuner(1)
    run.drive(tuned)
    kept = run.finished.best
    assert kept.params != CommParams()
    events = tuned.check(wrong(run.done.epoch))
    assert [e for e in events if isinstance(e, Rejection)] == [Rejection(trial=kept.rejected)]


def test_a_setting_that_does_not_suit_the_job_is_rejected_with_its_reason(job, tuner):
    run, tuned = job("bowl", seed=1), tuner(1)
    run.drive(tuned)
    kept = run.finished.best
    reason = "no GPU memory for a fusion buffer of 512 MiB, 64 MiB are used"
    check = ResultCheck(epoch=run.done.epoch, name="g", ok=False, worst_error=-1, reason=reason)
    events = tuned.check(check)
    assert [e for e in events if isinstance(e, Rejection)] == [Rejection(trial=kept.rejected)]
    line = next(e for e in events if isinstance(e, Line) and reason in e.text)
    assert line.level == "warning" and "wrong" not in line.text


def test_a_default_that_does_not_suit_the_job_goes_on(job, tuner):
    tuned, run = tuner(), job("bowl")
    run.drive(tuned, most_steps=10)
    check = ResultCheck(epoch=0, name="g", ok=False, worst_error=-1, reason="no GPU memory")
    (line,) = tuned.check(check)
    assert line.level == "warning" and line.text.endswith("no GPU memory: the job goes on so")
