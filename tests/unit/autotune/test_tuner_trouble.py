"""The tuner in jobs that misbehave: wrong results, uneven steps, a changing machine; its price."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from autotune.events import Identified
from autotune.protocol import Apply, Check, Done, Line, Progress, Settings
from autotune.trial import Certificate, CommParams, SampleKind, TrialState
from autotune.tuner import Phase, Tuner

ONE_HOST = {"hierarchical_allreduce": "one host", "hierarchical_allgather": "one host"}

# ---- the prior ----------------------------------------------------------------------------------


def test_without_the_prior_a_gain_is_found_too(job, tuner):
    run = job("bowl", seed=1)
    run.drive(tuner(1, prior=False))
    assert run.done is not None and run.true_gain > 0.1


# ---- wrong results ------------------------------------------------------------------------------


def corrupt(job, tuner, is_wrong, *, seed: int = 0, late: int = 0):
    """Drive a job in which settings that ``is_wrong`` are fast, and verified as wrong."""
    run = job(lambda p: 5.0 if is_wrong(p) else 30.0, seed=seed)
    chosen = tuner(seed)
    observe = chosen.observe

    def observe_and_check(records):
        events = observe(records)
        (record,) = records
        if record.epoch not in seen and is_wrong(run.params) and run.steps >= late:
            seen.add(record.epoch)
            check = Check(epoch=record.epoch, name="grad.7", ok=False, worst_error=0.5)
            events += chosen.check(check)
        return events

    seen: set[int] = set()
    chosen.observe = observe_and_check
    run.drive(chosen)
    return run, chosen


@pytest.mark.parametrize("seed", range(3))
def test_a_setting_with_wrong_results_is_rejected_whatever_its_score(job, tuner, seed):
    """Case T15."""

    def is_wrong(params):
        return params.fusion_threshold_bytes >= 2**24 and params.cycle_time_ms < 0.9

    run, _ = corrupt(job, tuner, is_wrong, seed=seed)
    wrong = [trial for trial in run.trials if is_wrong(trial.params)]
    assert all(trial.state is TrialState.REJECTED and trial.score == 0 for trial in wrong)
    assert run.done is not None and not is_wrong(CommParams.from_dict(run.done.params))
    assert wrong and any("wrong result of 'grad.7'" in line.text for line in run.of(Line))


def test_an_incumbent_found_wrong_while_it_is_compared_is_not_kept(job, tuner):
    def is_wrong(params):
        return params != CommParams()

    ended, run = tuner(), job("bowl")
    run.drive(ended, most_steps=10)
    while ended.phase is not Phase.CERTIFY:
        run.drive(ended, most_steps=run.steps + 1)
    while run.params == CommParams():
        run.drive(ended, most_steps=run.steps + 1)
    events = ended.check(Check(epoch=run.epoch, name="g", ok=False, worst_error=1.0))
    (done,) = [event for event in events if isinstance(event, Done)]
    assert done.params == CommParams().as_dict() and not done.certified
    assert "wrong" in done.text


def test_a_result_found_wrong_after_the_end_gives_way_to_the_default(job, tuner):
    ended, run = tuner(), job("bowl")
    run.drive(ended)
    assert run.done.params != CommParams().as_dict()
    events = ended.check(Check(epoch=run.done.epoch, name="g", ok=False, worst_error=1.0))
    (done,) = [event for event in events if isinstance(event, Done)]
    assert done.params == CommParams().as_dict() and not done.certified


def test_right_results_and_a_wrong_default_change_nothing(job, tuner):
    ended, run = tuner(), job("bowl")
    run.drive(ended, most_steps=60)
    assert ended.check(Check(epoch=1, name="g", ok=True, worst_error=0.0)) == []
    (line,) = ended.check(Check(epoch=0, name="g", ok=False, worst_error=0.2))
    assert line.level == "error" and "the default" in line.text


# ---- steps that are not alike -------------------------------------------------------------------


def vary(run, *, told: bool):
    """Let the batch vary by a factor of two from step to step."""
    rng = np.random.default_rng(9)

    def spoil(record):
        samples = int(rng.integers(20, 41))
        times = {
            name: getattr(record, name) * samples / 30 for name in ("duration_us", "exposed_us")
        }
        return [dataclasses.replace(record, samples=samples if told else 0, **times)]

    run.spoil = spoil


@pytest.mark.parametrize("seed", range(2))
def test_samples_make_steps_of_varying_size_comparable(job, tuner, seed):
    run = job("bowl", seed=seed)
    vary(run, told=True)
    run.drive(tuner(seed))
    (certificate,) = run.of(Certificate)
    assert run.done.certified and run.true_gain > 0.2 and run.steps < 800
    assert certificate.gain == pytest.approx(run.true_gain, abs=0.1)


def test_steps_of_varying_size_without_samples_never_end_worse(job, tuner):
    run = job("best_at_default", seed=1)
    vary(run, told=False)
    run.drive(tuner(1))
    assert run.done is not None and run.true_gain > -0.005


def test_a_varying_payload_is_compared_in_pairs(job, tuner):
    run, rng = job("bowl", seed=2), np.random.default_rng(3)

    def spoil(record):
        size = float(rng.uniform(0.7, 1.3))
        return [
            dataclasses.replace(
                record,
                payload_bytes=int(record.payload_bytes * size),
                duration_us=record.duration_us * (0.5 + 0.5 * size),
            )
        ]

    run.spoil = spoil
    run.drive(tuner(2))
    rereads = [s for s in run.samples if s.kind is SampleKind.REREAD and s.trial_id == 0]
    assert len(rereads) >= 4 and run.done is not None and run.true_gain > 0.1


@pytest.mark.parametrize("seed", range(2))
def test_a_machine_that_slows_down_while_tuning_does_not_mislead(job, tuner, seed):
    run = job("bowl", seed=seed)

    def spoil(record):
        factor = 1.0 if record.step < 120 else 1.4
        return [
            dataclasses.replace(
                record,
                duration_us=record.duration_us * factor,
                exposed_us=record.exposed_us * factor,
            )
        ]

    run.spoil = spoil
    run.drive(tuner(seed))
    assert run.done is not None and run.true_gain > 0.05


# ---- the price ----------------------------------------------------------------------------------


def time_lost(run, steps: list[CommParams]) -> np.ndarray:
    """Return the time lost so far at each step, in steps of the default."""
    default = run.step_ms(CommParams())
    return np.cumsum([run.step_ms(params) / default - 1 for params in steps])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("surface", ["best_at_default", "cliffs"])
def test_the_budget_holds_at_any_moment(job, tuner, surface, seed):
    """5 % of the default's time, plus one step for each trial that was abandoned."""

    def cliffs(params):
        if params == CommParams():
            return 30.0
        return [60.0, 120.0, 400.0, 2000.0][hash(params) % 4]

    run = job(cliffs if surface == "cliffs" else surface, seed=seed)
    steps: list[CommParams] = []
    step = run.step
    run.step = lambda: (steps.append(run.params), step())[1]
    run.drive(tuner(seed))
    lost, default = time_lost(run, steps), run.step_ms(CommParams())
    free = np.zeros(len(steps))
    for apply in run.of(Apply):
        params = CommParams.from_dict(apply.params)
        first = next((k for k, p in enumerate(steps) if p == params), None)
        if first is not None and run.step_ms(params) > 1.15 * default:
            free[first:] += run.step_ms(params) / default - 1
    at = np.arange(1, len(steps) + 1)
    over = lost - free - 0.05 * np.maximum(at, 200)
    inexact = 0.005 * len(steps)  # the default's own reading has noise, too
    assert over[199:].max(initial=-1.0) <= inexact
    assert run.done is not None and "tuning" in run.done.text


def test_lost_time_is_earned_back_before_the_next_trial(job, tuner):
    run = job("best_at_default", seed=1)
    steps: list[CommParams] = []
    step = run.step
    run.step = lambda: (steps.append(run.params), step())[1]
    run.drive(tuner(1, budget=0.01), most_steps=20_000)
    assert any("HOROVOD_AUTOTUNE_BUDGET" in p.text for p in run.of(Progress))
    assert time_lost(run, steps)[-1] <= 0.015 * len(steps) and len(run.trials) > 3


def test_a_budget_of_nothing_still_ends(job, tuner):
    run = job("best_at_default", seed=2)
    run.drive(tuner(2, budget=0.0), most_steps=20_000)
    assert run.done is not None and run.true_gain > -0.005


def test_the_price_of_tuning_is_told_at_the_end(finished):
    assert "of the time" in finished("best_at_default", 1).done.text
    assert "tuning saved" in finished("bowl", 1).done.text


# ---- isolation ----------------------------------------------------------------------------------


def test_steps_disturbed_by_planning_are_counted_and_not_scored(job):
    run = job("bowl", seed=1)
    crowded = Tuner(settings=Settings(seed=1), seed=1, size=2, inert=ONE_HOST, crowded=True)
    work, waiting = crowded.work, []

    def slow_work():
        plan = work()
        if plan is not None:
            waiting.append([3, plan()])
        return None

    crowded.work = slow_work
    observe = crowded.observe

    def observe_late(records):
        events = observe(records)
        if waiting:
            waiting[0][0] -= 1
            if waiting[0][0] <= 0:
                events += crowded.accept(waiting.pop(0)[1])
        return events

    crowded.observe = observe_late
    run.drive(crowded)
    assert run.done is not None and "that it disturbed were not scored" in run.done.text
    assert run.true_gain > 0.2


# ---- after the end ------------------------------------------------------------------------------


def look_after(run, tuned, surface, steps: int) -> None:
    """Go on training for a while, then for ``steps`` steps on another machine."""
    for count, here in ((600, run.surface), (steps, surface)):
        run.surface, until = here, run.steps + count
        while run.steps < until:
            run.advance(tuned)


def test_after_the_end_noise_starts_nothing(job, tuner):
    run, tuned = job("bowl", seed=1), tuner(1)
    run.drive(tuned)
    events = len(run.events)
    look_after(run, tuned, run.surface, 1000)
    assert len(run.events) == events


def test_a_result_that_a_changed_machine_makes_worse_is_replaced(job, tuner):
    run, tuned = job("bowl", seed=1), tuner(1)
    run.drive(tuned)
    kept = CommParams.from_dict(run.done.params)
    assert kept != CommParams()
    look_after(run, tuned, lambda p: 100.0 if p == kept else 40.0, 2000)
    assert run.params == CommParams() and tuned.phase is Phase.DONE
    identified = run.of(Identified)
    assert [event.retune for event in identified] == [False, True]


def test_a_default_that_was_best_is_tuned_again_on_a_changed_machine(job, tuner):
    run, tuned = job("best_at_default", seed=1), tuner(1)
    run.drive(tuned)
    assert run.done.params == CommParams().as_dict()
    bowl = job("bowl").surface
    look_after(run, tuned, lambda p: 2.0 * bowl(p), 2500)
    assert run.of(Identified)[-1].retune and run.step_ms(run.params) < run.step_ms(CommParams())
    certificates = run.of(Certificate)
    assert sum(certificate.alpha for certificate in certificates) < 0.01


def test_a_result_that_still_holds_is_kept_when_the_machine_changes(job, tuner):
    run, tuned = job("bowl", seed=1), tuner(1)
    run.drive(tuned)
    kept = CommParams.from_dict(run.done.params)
    bowl = run.surface
    look_after(run, tuned, lambda p: 2.0 * bowl(p), 1500)
    assert run.params == kept and len(run.of(Identified)) == 1
