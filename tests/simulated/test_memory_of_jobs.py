"""A job that begins with what an earlier one learned, rightly or wrongly."""

from __future__ import annotations

import pytest

from autotune.storage.contract import Fresh, Remembered
from autotune.trial import Certificate, CommParams, Gain, Trial
from autotune.tuning.changes import Apply, Line


def remembered(run, *, best: CommParams | None = None) -> Fresh:
    """What a finished job learned; with another ``best``, as if that had gained most."""
    trials = [
        Trial(
            trial_id=k,
            params=trial.params,
            score=trial.score,
            gain=Gain(estimate=1.2, low=1.1, high=1.3) if trial.params == best else trial.gain,
        )
        for k, trial in enumerate(run.trials)
    ]
    kept = CommParams.from_dict(run.done.params) if best is None else best
    memory = Remembered(
        path="old.db",
        run_id=1,
        similarity=0.9,
        why="the same tensors on 4 ranks instead of 2",
        trials=tuple(trials),
        best=kept,
    )
    return Fresh(memory=(memory,))


@pytest.mark.parametrize("seed", range(3))
def test_a_job_like_an_earlier_one_needs_few_trials(job, tuner, finished, seed):
    earlier = finished("bowl", seed)
    run = job("bowl", seed=20 + seed)
    run.drive(tuner(20 + seed, max_samples=20), remembered(earlier))
    texts = [line.text for line in run.of(Line)]
    assert any("4 ranks instead of 2" in text for text in texts)
    assert len(run.trials) <= 5 and run.steps < 300
    assert run.trials[1].params == CommParams.from_dict(earlier.done.params)
    assert run.done.certified and run.true_gain > 0.5


def test_a_misleading_memory_is_dropped_and_said_so(job, tuner, finished):
    earlier = finished("bowl", 1)
    worst = min(earlier.trials[1:], key=lambda trial: trial.gain.estimate).params
    run = job("bowl", seed=31)
    run.drive(tuner(31, max_samples=20), remembered(earlier, best=worst))
    assert run.trials[1].params == worst
    assert any("does not hold here" in line.text for line in run.of(Line))
    assert len(run.trials) > 5 and run.true_gain > 0.4


def test_a_memory_that_promises_what_is_not_there_ends_at_the_default(job, tuner, finished):
    run = job("best_at_default", seed=3)
    run.drive(tuner(3, max_samples=12), remembered(finished("bowl", 0)))
    assert run.true_gain >= 0 and not any(c.certified for c in run.of(Certificate))


def test_an_earlier_job_that_kept_the_default_is_mentioned_and_changes_nothing(
    job, tuner, finished
):
    """Here another setting may be better, so nothing is left out for its sake."""
    memory = remembered(finished("best_at_default"))
    begun = []
    for start in (memory, Fresh()):
        run = job("bowl", seed=41)
        run.drive(tuner(41), start, most_steps=150)
        begun.append(run)
    kept = [line.text for line in begun[0].of(Line) if "ended with the default" in line.text]
    assert len(kept) == 1 and "4 ranks instead of 2" in kept[0]
    assert begun[0].trials == begun[1].trials and len(begun[0].trials) > 2


def test_what_is_remembered_was_not_tried_here(job, tuner, finished):
    """Its settings may be proposed, and none of them is in the log before it was."""
    run = job("bowl", seed=40)
    run.drive(tuner(40, max_samples=20), remembered(finished("bowl", 2)), most_steps=30)
    assert len(run.trials) == 1 and run.trials[0].params == CommParams()
    assert {CommParams.from_dict(a.params) for a in run.of(Apply)} <= {
        CommParams(),
        CommParams.from_dict(finished("bowl", 2).done.params),
    }
