"""What the tuner does when the training step becomes known, changes, or never appears."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

from autotune.storage.contract import Fresh
from autotune.trial import CommParams, RunState
from autotune.tuning.changes import Apply, Done, Line, Progress
from autotune.tuning.events import Identified, RunFinished
from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.tuner import MOST_RETUNES, Phase, Tuner

FIRST, SECOND = 7, 8


def signed(job, signatures):
    """Let the job's steps have these signatures, in order."""
    numbers = iter(signatures)
    job.spoil = lambda record: [dataclasses.replace(record, signature=next(numbers))]
    return job


def texts(job, kind=Line) -> list[str]:
    return [event.text for event in job.of(kind)]


def test_a_step_that_takes_over_before_the_first_sample_is_only_switched_to(job, tuner):
    run, tuned = job("bowl", noise=0.0), tuner(max_samples=1)
    signed(run, itertools.chain([FIRST] * 8, itertools.repeat(SECOND)))
    run.drive(tuned, most_steps=300)
    assert [event.signature for event in run.of(Identified)] == [FIRST, SECOND]
    assert not any(event.retune for event in run.of(Identified))
    assert not any("tunes again" in text for text in texts(run))
    assert run.trials and run.done is not None


def test_what_an_optimizer_ends_is_tuned_whatever_was_found_before(job, tuner):
    """U19."""
    run, tuned = job("bowl", noise=0.0), tuner()

    def spoil(record: StepRecord) -> list[StepRecord]:
        is_first = record.step <= 100
        signature = FIRST if is_first else SECOND
        return [dataclasses.replace(record, signature=signature, is_explicit=not is_first)]

    run.spoil = spoil
    run.drive(tuned, most_steps=10)
    assert not run.of(Identified)
    run.drive(tuned, most_steps=100)
    assert [event.signature for event in run.of(Identified)] == [FIRST]
    run.drive(tuned, most_steps=107)
    assert [event.signature for event in run.of(Identified)] == [FIRST, SECOND]


def test_a_step_that_takes_over_while_tuning_begins_anew_under_the_default(job, tuner):
    run, tuned = job("bowl"), tuner(max_samples=6)
    signed(run, itertools.chain([FIRST] * 160, itertools.repeat(SECOND)))
    run.drive(tuned, most_steps=160)
    assert tuned.phase in (Phase.EXPLORE, Phase.CERTIFY) and run.trials
    run.drive(tuned, most_steps=280)
    (finished,) = run.of(RunFinished)
    assert finished.state is RunState.UNFINISHED
    again = run.of(Identified)[-1]
    assert (again.signature, again.retune) == (SECOND, False)
    between = run.events[run.events.index(finished) : run.events.index(again)]
    changes = [event for event in between if isinstance(event, Apply)]
    assert all(CommParams.from_dict(one.params) == CommParams() for one in changes)
    assert sum("another one than the one tuned for: tunes again" in t for t in texts(run)) == 1
    run.drive(tuned)
    assert run.done is not None and run.true_gain > -0.005


def test_a_step_that_takes_over_after_the_end_is_tuned_for(job, tuner):
    run, tuned = job("bowl"), tuner(max_samples=4)
    run.drive(tuned)
    end = run.steps
    signed(run, itertools.repeat(SECOND))
    while run.steps < end + 250:
        run.advance(tuned)
    again = run.of(Identified)[-1]
    assert (again.signature, again.retune) == (SECOND, True)
    assert sum("tunes again" in text for text in texts(run)) == 1


def test_a_job_whose_training_step_changes_all_the_time_stays_under_the_default(job, tuner):
    run, tuned = job("bowl"), tuner(max_samples=20)
    signed(run, itertools.cycle([FIRST] * 160 + [SECOND] * 160))
    while run.steps < 160 * (MOST_RETUNES + 4):
        run.advance(tuned)
    assert len(run.of(Identified)) <= MOST_RETUNES + 2
    if run.of(Done):
        assert CommParams.from_dict(run.of(Apply)[-1].params) == CommParams()


def test_a_pair_of_steps_is_scored_as_one(job, tuner):
    """U20."""
    run, tuned = job("bowl", noise=0.0), tuner(max_samples=1)
    signed(run, itertools.cycle([FIRST, SECOND]))
    run.drive(tuned, most_steps=200)
    (identified,) = run.of(Identified)
    assert sorted(identified.parts) == [FIRST, SECOND]
    assert run.samples[0].duration_us / run.samples[0].steps > 1900 * run.step_ms(CommParams())


def test_a_job_without_a_training_step_hears_why_while_it_runs(job, tuner):
    run, tuned = job("bowl"), tuner()
    signed(run, itertools.count(100))
    run.drive(tuned, most_steps=400)
    (line,) = [event for event in run.of(Line) if "not tuned so far" in event.text]
    assert line.level == "warning"
    assert "no training step is recognised: of the last 20 steps at most 1 run" in line.text
    assert "no training step is recognised" in tuned.finish()[0].text


def test_a_job_in_which_no_step_ends_hears_why_in_its_first_minute(tuner):
    tuned = tuner()
    tuned.open()
    said = [event.text for _ in range(60) for event in tuned.wait(1.0)]
    assert len(said) == 1 and "nothing was communicated" in said[0]
    talking = tuner()
    talking.open()
    said = [event.text for _ in range(61) for event in talking.wait(1.0, communicates=True)]
    assert len(said) == 1 and "the collectives that were run do not repeat" in said[0]


def test_a_long_warmup_says_what_it_waits_for_with_steps_left(job, tuner):
    """U9."""
    run, tuned = job("bowl"), tuner(warmup_samples=500)
    run.drive(tuned, most_steps=1)
    assert re.search(r"needs at least 50\d\d training steps", texts(run)[-1])
    run.drive(tuned, most_steps=1500)
    told = texts(run, Progress)
    assert 4 <= len(told) <= 12
    assert all("500 samples are thrown away (HOROVOD_AUTOTUNE_WARMUP_SAMPLES)" in t for t in told)
    left = [int(text.split("about ")[1].split()[0]) for text in told]
    assert left == sorted(left, reverse=True) and 3000 < left[-1] < left[0] < 5015


def test_a_job_that_hardly_trained_hears_how_often(job, tuner):
    """U11."""
    run, tuned = job("bowl"), tuner()
    signed(run, itertools.chain([FIRST] * 6, itertools.count(100)))
    run.drive(tuned, most_steps=300)
    (line,) = [event for event in run.of(Line) if "not tuned so far" in event.text]
    assert re.search(r"only 6 of 20\d steps run the same collectives", line.text)
    assert ", 6 of them training steps" in tuned.finish()[0].text


def test_a_plan_that_an_earlier_run_asked_for_is_not_taken_for_one_of_this_run(job, tuner):
    run, tuned = job("bowl", noise=0.0), tuner()
    signatures = iter((FIRST, SECOND, 9))
    asked, work = [], tuned.work

    def hold() -> None:
        if (wanted := work()) is not None:
            asked.append(wanted)

    tuned.work = hold
    for count in (1, 2, 3):
        signed(run, itertools.repeat(next(signatures)))
        while len(asked) < count and run.steps < 1000:
            run.advance(tuned)
        if count == 2:
            tuned.accept(asked[0]())
    assert len(run.of(Identified)) == 3
    trials = len(run.trials)
    tuned.accept(asked[1]())
    until = run.steps + 100
    while run.steps < until:
        run.advance(tuned)
    assert run.params == CommParams() and len(run.trials) == trials


def test_what_one_training_step_does_not_use_another_one_may(tuner):
    tuned = Tuner(settings=TunerSettings(), seed=0, size=4)
    lines = [e.text for k in (1, 2) for e in tuned.begin([("allreduce", 8)], Fresh())]
    assert len([text for text in lines if "hierarchical_allgather is not explored" in text]) == 1
    assert "hierarchical_allgather" not in tuned._space.names
    tuned.begin([("allreduce", 8), ("allgather", 8)], Fresh())
    assert "hierarchical_allgather" in tuned._space.names


@pytest.mark.parametrize("loop", [30, 40, 60])
def test_a_loop_and_the_training_after_it_may_arrive_in_one_batch(job, tuner, loop):
    """The driver answers what it hears last; a run of the loop would never be read."""
    run, chosen = job("bowl"), tuner(warmup_samples=0, steps_per_sample=1, max_samples=1)
    run._take(chosen, chosen.open(), Fresh())
    found = {"signature": 99, "is_explicit": False}
    loop_steps = [dataclasses.replace(run.step(), **found) for _ in range(loop)]
    training = [run.step() for _ in range(10)]
    run._take(chosen, chosen.observe([*loop_steps, *training]), Fresh())
    assert len(run.of(Identified)) == 1
    for _ in range(100):
        run._take(chosen, chosen.observe([run.step()]), Fresh())
    assert run.trials and run.done is not None
