"""The tuner in jobs that misbehave: wrong results, uneven steps, a changing machine; its price."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.gaussian_process import _gpr

from autotune.trial import Certificate, CommParams, SampleKind, TrialState
from autotune.tuning.changes import Apply, Done, Line, Progress
from autotune.tuning.events import Identified
from autotune.tuning.exploring.search import Search
from autotune.tuning.messages import reason_text
from autotune.tuning.steps.records import ResultCheck, TunerSettings
from autotune.tuning.tuner import Phase, Tuner
from simulated.job import SURFACES

ONE_HOST = {"hierarchical_allreduce": "one host", "hierarchical_allgather": "one host"}

# ---- the trend ----------------------------------------------------------------------------------


def test_without_the_trend_a_gain_is_found_too(job, tuner):
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
            check = ResultCheck(epoch=record.epoch, name="grad.7", ok=False, worst_error=0.5)
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
    events = ended.check(ResultCheck(epoch=run.epoch, name="g", ok=False, worst_error=1.0))
    (done,) = [event for event in events if isinstance(event, Done)]
    assert done.params == CommParams().as_dict() and not done.certified
    assert "wrong" in done.text


def test_a_result_found_wrong_after_the_end_gives_way_to_the_default(job, tuner):
    ended, run = tuner(), job("bowl")
    run.drive(ended)
    assert run.done.params != CommParams().as_dict()
    events = ended.check(ResultCheck(epoch=run.done.epoch, name="g", ok=False, worst_error=1.0))
    (done,) = [event for event in events if isinstance(event, Done)]
    assert done.params == CommParams().as_dict() and not done.certified


def test_right_results_and_a_wrong_default_change_nothing(job, tuner):
    ended, run = tuner(), job("bowl")
    run.drive(ended, most_steps=60)
    assert ended.check(ResultCheck(epoch=1, name="g", ok=True, worst_error=0.0)) == []
    (line,) = ended.check(ResultCheck(epoch=0, name="g", ok=False, worst_error=0.2))
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


def speed_up(run, factor: float, *, when) -> None:
    """From the moment that ``when()`` on, every step takes ``factor`` of its time."""
    step, changed = run.step, []

    def faster():
        record = step()
        if not changed and not when():
            return record
        changed.append(True)
        times = {name: factor * getattr(record, name) for name in ("duration_us", "exposed_us")}
        return dataclasses.replace(record, **times)

    run.step = faster


def test_a_machine_that_becomes_faster_is_no_saving_of_a_default_that_stays(job, tuner):
    run = job("best_at_default", seed=1)
    speed_up(run, 0.5, when=lambda: len(run.trials) > 2)
    run.drive(tuner(1))
    assert run.done.params == CommParams().as_dict() and "saved" not in run.done.text


def test_certificate_windows_are_charged_against_the_default_beside_them(job, tuner):
    chosen, run = tuner(1), job("bowl", seed=1)
    speed_up(run, 0.3, when=lambda: chosen.phase is Phase.CERTIFY)
    lost_ms, whole_ms, step = [], [], run.step

    def watched():
        factor = 0.3 if chosen.phase is Phase.CERTIFY else 1.0
        whole_ms.append(factor * run.step_ms(CommParams()))
        lost_ms.append(factor * run.step_ms(run.params) - whole_ms[-1])
        return step()

    run.step = watched
    run.drive(chosen)
    assert run.done.certified
    saved = float(re.search(r"tuning saved ([0-9.]+)%", run.done.text)[1]) / 100
    assert saved == pytest.approx(-sum(lost_ms) / sum(whole_ms), abs=0.05)


@pytest.mark.parametrize(
    ("lost", "certified", "told"),
    [
        (0.02, False, "tuning lost 2.0% of the time"),
        (0.02, True, "tuning lost 2.0% of the time"),
        (-0.05, True, "tuning saved 5.0% of the time"),
        (-0.05, False, None),
        (-0.40, True, None),  # more than a gain of 20 % can bring
        (0.0001, False, None),
        (0.0, False, None),
    ],
)
def test_the_price_never_contradicts_the_certificate(lost, certified, told):
    certificate = Certificate(
        trial_id=1,
        pairs=8,
        gain=0.1 if certified else -0.05,
        gain_low=0.05,
        gain_high=0.2,
        alpha=0.01,
        certified=certified,
        reason="why",
    )
    account = SimpleNamespace(lost_share=lost, steps=700)
    text = reason_text(certificate, account, disturbed=0)
    assert text == (f"why; {told} of 700 steps" if told else "why")


# ---- isolation ----------------------------------------------------------------------------------


def oversubscribed_tuner(run, *, slowdown: float = 1.0) -> Tuner:
    """Return a tuner whose plans take three steps, each ``slowdown`` times as long as it was."""
    settings = TunerSettings(seed=1)
    filled = Tuner(settings=settings, seed=1, size=2, inert=ONE_HOST, oversubscribed=True)
    work, waiting, step = filled.work, [], run.step

    def slow_step():
        record, factor = step(), slowdown if waiting else 1.0
        return dataclasses.replace(
            record,
            duration_us=factor * record.duration_us,
            exposed_us=factor * record.exposed_us,
        )

    def slow_work():
        plan = work()
        if plan is not None:
            waiting.append([3, plan()])
        return None

    observe = filled.observe

    def observe_late(records):
        events = observe(records)
        if waiting:
            waiting[0][0] -= 1
            if waiting[0][0] <= 0:
                events += filled.accept(waiting.pop(0)[1])
        return events

    filled.observe, filled.work, run.step = observe_late, slow_work, slow_step
    return filled


def test_steps_disturbed_by_planning_are_counted_and_not_scored(job):
    run = job("bowl", seed=1)
    run.drive(oversubscribed_tuner(run))
    assert run.done is not None and "that it disturbed were not scored" in run.done.text
    assert run.true_gain > 0.2


@pytest.mark.parametrize("slowdown", [3.0, 20.0])
def test_steps_disturbed_by_planning_end_no_trial(job, slowdown):
    """At 20 the runtime takes the trial back by itself: it is made again later."""
    run = job(lambda p: 30.0 if p == CommParams() else 25.0, seed=1, noise=0.0)
    run.drive(oversubscribed_tuner(run, slowdown=slowdown))
    assert run.done is not None and len(run.trials) > 3
    assert all(sample.steps > 0 for sample in run.samples)
    assert {trial.state for trial in run.trials[1:]} == {TrialState.COMPLETE}
    tried = [apply.params for apply in run.of(Apply) if apply.limit_us is not None]
    once = [params for k, params in enumerate(tried) if params not in tried[:k]]
    assert len(once) == len(run.trials) - 1 and len(tried) <= 2 * len(once)


def test_a_trial_that_waits_for_its_turn_is_rejected_where_its_results_are_wrong(job):
    run = job("bowl", seed=1)
    filled = oversubscribed_tuner(run, slowdown=20.0)
    run.drive(filled, most_steps=40)
    while (limited := next((a for a in run.of(Apply) if a.limit_us), None)) is None:
        run.drive(filled, most_steps=run.steps + 1)
    while run.epoch <= limited.epoch:  # until the runtime has taken it back
        run.drive(filled, most_steps=run.steps + 1)
    run.events += filled.check(
        ResultCheck(epoch=limited.epoch, name="g", ok=False, worst_error=1.0)
    )
    run.drive(filled)
    assert [trial.params.as_dict() for trial in run.trials].count(limited.params) == 1
    wrong = next(trial for trial in run.trials if trial.params.as_dict() == limited.params)
    assert wrong.state is TrialState.REJECTED
    assert all(sample.steps > 0 for sample in run.samples)
    assert run.done is not None


def test_wrong_results_known_before_the_first_step_is_are_no_sample(job, tuner):
    chosen, run = tuner(), job("bowl")
    run.drive(chosen, most_steps=40)
    while not any(apply.limit_us for apply in run.of(Apply)):
        run.drive(chosen, most_steps=run.steps + 1)
    epoch = run.of(Apply)[-1].epoch
    run.events += chosen.check(ResultCheck(epoch=epoch, name="g", ok=False, worst_error=1.0))
    assert run.trials[-1].state is TrialState.REJECTED
    assert all(sample.steps > 0 for sample in run.samples)


def test_a_trial_that_the_runtime_took_back_for_a_step_of_another_kind_is_made_again(job, tuner):
    run = job(lambda p: 30.0 if p == CommParams() else 25.0, noise=0.0)
    step, seen = run.step, {0}

    def first_step_of_an_epoch_is_an_evaluation():
        record = step()
        if record.epoch in seen or len(seen) > 3:
            return record
        seen.add(record.epoch)
        return dataclasses.replace(record, signature=99, exposed_us=1e9)

    run.step = first_step_of_an_epoch_is_an_evaluation
    run.drive(tuner())
    assert run.done is not None and len(run.trials) > 3
    assert all(sample.steps > 0 for sample in run.samples)


@pytest.mark.parametrize(("place", "times"), [("a plan", 40), ("the last choice", 12)])
def test_a_surrogate_that_cannot_be_factorised_ends_nothing_and_is_said_once(
    job, tuner, monkeypatch, place, times
):
    """Also where no plan follows that could say it: the tuner chooses by a surrogate of its own."""
    chosen, run = tuner(1), job("bowl", seed=1)
    failures, within, cholesky = [], [], _gpr.cholesky
    work, choose = chosen.work, Search.choose

    def marked(call, name):
        def called(*arguments):
            within.append(name)
            try:
                return call(*arguments)
            finally:
                within.pop()

        return called

    def failing(*arguments, **options):
        if within[-1:] == [place] and len(run.trials) >= 6 and len(failures) < times:
            failures.append(place)
            raise np.linalg.LinAlgError("not positive definite")
        return cholesky(*arguments, **options)

    def watched():
        plan = work()
        return None if plan is None else marked(plan, "a plan")

    monkeypatch.setattr(_gpr, "cholesky", failing)
    monkeypatch.setattr(Search, "choose", marked(choose, "the last choice"))
    chosen.work = watched
    run.drive(chosen)
    assert failures and run.done is not None and run.true_gain >= 0
    (said,) = [line for line in run.of(Line) if "worse than usual" in line.text]
    assert said.level == "warning" and "the surrogate" in said.text


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
    """Twice the computation, the same communication: compared, and kept."""
    run, tuned = job("bowl", seed=1), tuner(1)
    run.drive(tuned)
    kept = CommParams.from_dict(run.done.params)
    run.compute_ms *= 2
    look_after(run, tuned, run.surface, 0)
    run.compute_ms *= 2
    look_after(run, tuned, run.surface, 1500)
    assert run.params == kept and len(run.of(Identified)) == 1
    assert any("compares the result with the default" in line.text for line in run.of(Line))


def test_links_that_become_slower_are_noticed_soon_and_tuned_for(job, tuner):
    """Communication takes three times as long, and is best elsewhere."""
    run, tuned = job("bowl", seed=1), tuner(1)
    run.drive(tuned)
    first = len(run.trials)
    look_after(run, tuned, run.surface, 0)
    begin = run.steps
    slow = lambda p: 3.0 * SURFACES["bowl"](p, octave=-2.0)  # noqa: E731
    run.surface = slow
    while len(run.of(Identified)) == 1 and run.steps < begin + 1000:
        run.advance(tuned)
    assert run.steps - begin <= 200
    look_after(run, tuned, slow, 2000)
    assert tuned.phase is Phase.DONE and len(run.trials) > first
    best = min(slow(CommParams(fusion_threshold_bytes=2**k, cycle_time_ms=0.5)) for k in (18, 19))
    assert run.step_ms(run.params) < 1.1 * (run.compute_ms + best)


@pytest.mark.parametrize(
    ("surface", "after"), [("bowl", 0), ("bowl", 60), ("bowl", 100), ("best_at_default", 0)]
)
def test_links_that_become_slower_right_after_the_end_are_noticed_as_soon(
    job, tuner, surface, after
):
    run, tuned = job(surface, seed=1), tuner(1)
    run.drive(tuned)
    for _ in range(after):
        run.advance(tuned)
    begin = run.steps
    run.surface = lambda params: 5.0 * SURFACES[surface](params)
    while len(run.of(Identified)) == 1 and run.steps < begin + 1000:
        run.advance(tuned)
    assert run.steps - begin <= 200


def test_a_default_that_is_in_force_is_not_compared_with_itself(job, tuner):
    """Case U15."""
    run, tuned = job("best_at_default", seed=1), tuner(1)
    run.drive(tuned)
    assert run.done.params == CommParams().as_dict()
    look_after(run, tuned, lambda p: 3.0 * SURFACES["best_at_default"](p), 600)
    texts = [line.text for line in run.of(Line)]
    assert any("while the default was in force" in text for text in texts)
    assert not any("compares the result" in text for text in texts)


def test_links_that_change_when_tuning_again_is_used_up_have_the_result_compared(
    job, tuner, monkeypatch
):
    monkeypatch.setattr("autotune.tuning.tuner.MOST_RETUNES", 0)
    run, tuned = job("bowl", seed=1), tuner(1)
    run.drive(tuned)
    kept = CommParams.from_dict(run.done.params)
    look_after(run, tuned, lambda p: 100.0 if p == kept else 40.0, 1000)
    assert run.params == CommParams() and len(run.of(Identified)) == 1


@pytest.mark.parametrize(("noise", "seed"), [(0.05, 1), (0.2, 6)])
def test_without_the_tuner_training_never_goes_on_with_what_is_in_doubt(job, tuner, noise, seed):
    """Also while the certificate's pairs are read; the noisy one is in doubt until then."""
    run, tuned = job("bowl", seed=seed, noise=noise), tuner(seed, max_samples=6)
    seen = 0
    while run.done is None and run.steps < 6000:
        run.drive(tuned, most_steps=run.steps + 1)
        standing = tuned.standing
        safe = [CommParams().as_dict()]
        if standing is not None and standing.proven:
            safe.append(standing.best.params.as_dict())
        fresh, seen = run.of(Apply)[seen:], len(run.of(Apply))
        if tuned.phase is not Phase.DONE:
            assert all(apply.incumbent in safe for apply in fresh)
    assert run.done is not None and seen > 10


def test_a_job_that_is_tuned_again_has_one_budget(job, tuner):
    """What the first tuning has lost, and the steps that it was allowed for, count in the next."""
    run, tuned = job("bowl", seed=1), tuner(1)
    run.drive(tuned)
    first = run.steps
    look_after(run, tuned, run.surface, 0)
    look_after(run, tuned, lambda p: 3.0 * SURFACES["bowl"](p, octave=-2.0), 1500)
    texts = [done.text for done in run.of(Done)]
    counts = [int(n) for text in texts for n in re.findall(r"of the time of (\d+) steps", text)]
    assert len(counts) == 2 and counts[1] > first > counts[0] / 2
