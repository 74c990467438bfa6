"""The tuner in jobs that behave: results, what counts, how long it takes, ends and beginnings."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re

import pytest

from autotune.space import HOROVOD, PARAMETERS
from autotune.storage.contract import Replay, Resume
from autotune.trial import (
    Certificate,
    CommParams,
    RunState,
    Sample,
    SampleKind,
    Trial,
    TrialState,
)
from autotune.tuning.changes import Apply, Done, Line, Progress
from autotune.tuning.comparing.certify import ALPHA
from autotune.tuning.exploring.inert import without_operation
from autotune.tuning.messages import params_text
from autotune.tuning.steps.records import TunerSettings
from autotune.tuning.tuner import Phase, Tuner

ONE_HOST = {"hierarchical_allreduce": "one host", "hierarchical_allgather": "one host"}
SEEDS = 5
"""Jobs that differ in noise and proposals; each takes half a second."""

# ---- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("surface, seeds", [("bowl", SEEDS), ("flat", 3), ("best_at_default", 3)])
def test_never_ends_worse_than_the_default(finished, surface, seeds):
    gains = [finished(surface, seed).true_gain for seed in range(seeds)]
    assert min(gains) > -0.005


def test_finds_a_gain_of_a_third(finished):
    gains = sorted(finished("bowl", seed).true_gain for seed in range(SEEDS))
    assert gains[0] > 0.2 and gains[SEEDS // 2] > 0.29


def test_claims_what_is_true(finished):
    errors = []
    for seed in range(SEEDS):
        run = finished("bowl", seed)
        (certificate,) = run.of(Certificate)
        assert certificate.certified and run.done.certified
        errors.append(certificate.gain - run.true_gain)
    assert abs(sum(errors) / SEEDS) < 0.02


def test_few_steps_are_needed(finished):
    steps = sorted(finished("bowl", seed).steps for seed in range(SEEDS))
    assert steps[SEEDS // 2] <= 600


def test_equal_seeds_give_equal_runs(job, tuner, finished):
    again = job("bowl", seed=3)
    again.drive(tuner(3, max_samples=20))
    assert again.events == finished("bowl", 3).events
    assert again.trials != finished("bowl", 4).trials


def test_the_default_is_trial_0_and_is_read_again(finished):
    run = finished("bowl")
    assert run.trials[0].params == CommParams() and run.trials[0].trial_id == 0
    assert any(s.kind is SampleKind.REREAD and s.trial_id == 0 for s in run.samples)


@pytest.mark.parametrize("surface", ["bowl", "flat", "best_at_default"])
def test_no_setting_is_tried_twice(finished, surface):
    for seed in range(3):
        trials = finished(surface, seed).trials
        assert len(trials) == len({trial.params for trial in trials}) <= 20
        assert [trial.trial_id for trial in trials] == list(range(len(trials)))


@pytest.mark.parametrize("surface", ["bowl", "flat"])
def test_what_stays_in_force_is_a_trial_of_the_run(finished, surface):
    run = finished(surface, 2)
    best = run.finished.best
    assert run.finished.state is RunState.DONE
    assert best.params == run.trials[best.trial_id].params
    last = run.of(Apply)[-1]
    assert run.done.params == last.params == run.finished.best.params.as_dict()
    assert run.done.epoch == last.epoch


def test_the_end_comes_in_order(finished):
    kinds = [type(event).__name__ for event in finished("bowl").events[-3:]]
    assert kinds == ["Certificate", "RunFinished", "Done"]


def test_certificate_windows_are_fresh_and_in_pairs(finished):
    run = finished("bowl")
    certify = [s for s in run.samples if s.kind is SampleKind.CERTIFY]
    (certificate,) = run.of(Certificate)
    assert len(certify) == 2 * certificate.pairs
    for pair in range(certificate.pairs):
        assert {s.trial_id for s in certify if s.pair == pair} == {0, certificate.trial_id}


# ---- what counts --------------------------------------------------------------------------------


def test_evaluations_change_neither_scores_nor_the_result(job, tuner, finished):
    run, plain = job("bowl", seed=3, evaluate_every=37), finished("bowl", 3)
    run.drive(tuner(3))
    assert run.true_gain > 0.2 and run.done.certified
    assert run.trials[0].score == pytest.approx(plain.trials[0].score, rel=0.01)
    assert run.steps < 2 * plain.steps


def test_steps_of_another_kind_are_not_scored(job, tuner):
    run = job("bowl", noise=0.0)
    odd = {"signature": 99, "duration_us": 1.0, "payload_bytes": 10**9}
    run.spoil = lambda record: [record, dataclasses.replace(record, **odd)][: 1 + record.step % 2]
    run.drive(tuner())
    true = 24_150_000 / (1000 * run.step_ms(CommParams()))
    assert run.trials[0].score == pytest.approx(true, rel=1e-5)


@pytest.mark.parametrize(("spanning_us", "trials"), [(3e5, 9), (1e9, 2)])
def test_steps_that_span_a_change_are_not_scored(job, tuner, spanning_us, trials):
    """They count as time lost: at 1,000 s for each change the budget is soon spent."""
    run = job("bowl", noise=0.0)
    seen = [0]

    def spoil(record):
        changed, seen[0] = record.epoch != seen[0], record.epoch
        if changed:
            return [dataclasses.replace(record, epoch=-1, duration_us=spanning_us)]
        return [record]

    run.spoil = spoil
    run.drive(tuner(max_samples=9))
    assert len(run.trials) == trials and run.done is not None
    true = {trial.params: 24_150_000 / (1000 * run.step_ms(trial.params)) for trial in run.trials}
    for trial in run.trials:  # a gain is drawn towards 0 by its uncertainty, however small
        assert trial.score == pytest.approx(true[trial.params], rel=1e-3)


def test_samples_have_one_epoch_each(finished):
    run = finished("bowl")
    params_of = {0: CommParams().as_dict()} | {a.epoch: a.params for a in run.of(Apply)}
    trials = {trial.trial_id: trial.params.as_dict() for trial in run.trials}
    assert all(params_of[s.epoch] == trials[s.trial_id] for s in run.samples)


def test_unusable_records_crash_nothing(job, tuner):
    run = job("bowl")
    bad = [math.nan, math.inf, 0.0, -5.0]

    def spoil(record):
        return [record, dataclasses.replace(record, duration_us=bad[record.step % 4])]

    run.spoil = spoil
    run.drive(tuner())
    assert run.done is not None and run.true_gain > 0.1


def test_exactly_equal_scores_crash_nothing(job, tuner):
    run = job("flat", noise=0.0)
    run.drive(tuner())
    assert run.done is not None and run.done.params == CommParams().as_dict()


def test_a_bad_setting_is_abandoned_early(job, tuner):
    run = job(lambda p: 30.0 if p == CommParams() else 800.0, noise=0.0)
    run.drive(tuner(max_samples=4))
    bad = run.trials[1:]
    assert bad and all(trial.state is TrialState.ABANDONED and trial.score > 0 for trial in bad)
    spent = [s.steps for s in run.samples if s.trial_id > 0]
    assert max(spent) <= 2
    assert run.true_gain == 0


def test_a_disastrous_setting_is_taken_back_after_one_step(job, tuner):
    """The runtime does it by itself; the tuner, which hears of it later, agrees on the epoch."""
    run = job(lambda p: 30.0 if p == CommParams() else 3000.0, noise=0.0)
    run.drive(tuner(max_samples=4))
    taken_back = {apply.epoch + 1 for apply in run.of(Apply) if apply.limit_us is not None}
    assert taken_back and taken_back <= {apply.epoch for apply in run.of(Apply)}
    assert run.bad_steps <= len(run.trials) - 1
    assert run.done.params == CommParams().as_dict()


def test_no_other_change_uses_the_number_of_a_change_that_may_be_taken_back(finished):
    changes = finished("bowl").of(Apply)
    for first, second in itertools.pairwise(changes):
        if first.limit_us is not None and second.epoch == first.epoch + 1:
            assert second.params == first.incumbent


# ---- how long -----------------------------------------------------------------------------------


def test_max_samples_counts_the_default(job, tuner):
    run = job("bowl")
    run.drive(tuner(max_samples=5))
    assert len(run.trials) == 5 and run.done is not None


@pytest.mark.parametrize("most", [2, 3])
def test_very_few_allowed_samples_are_enough_to_finish(job, tuner, most):
    run = job("bowl")
    run.drive(tuner(max_samples=most))
    assert len(run.trials) == most and run.done is not None


def test_one_allowed_sample_is_the_default(job, tuner):
    run = job("bowl")
    run.drive(tuner(max_samples=1))
    assert len(run.trials) == 1 and run.done.params == CommParams().as_dict()


def test_single_steps_without_warmup_are_enough(job, tuner):
    run = job("bowl")
    run.drive(tuner(warmup_samples=0, steps_per_sample=1, max_samples=5))
    assert run.done is not None and run.steps < 300
    assert sum(s.kind is not SampleKind.CERTIFY for s in run.samples) < 30


def test_hidden_communication_ends_it_at_once(job, tuner):
    run = job("silent")
    run.drive(tuner())
    assert len(run.trials) == 1 and run.steps < 60
    assert "nothing to gain" in run.done.text and run.finished.best == run.trials[0]


# ---- nothing to tune ----------------------------------------------------------------------------


def test_explicit_settings_are_constant(job):
    fixed = {"cycle_time_ms": 2.5, "cache_capacity": 500}
    run = job("bowl")
    run.drive(Tuner(settings=TunerSettings(seed=0), seed=0, size=2, fixed=fixed))
    assert len(run.trials) > 4
    for trial in run.trials:
        assert trial.params.cycle_time_ms == 2.5 and trial.params.cache_capacity == 500
    assert any("HOROVOD_CYCLE_TIME" in line.text for line in run.of(Line))


def test_inert_parameters_are_not_explored_and_the_reason_is_said(finished):
    run = finished("bowl")
    assert not any(t.params.hierarchical_allreduce for t in run.trials)
    assert any("one host" in line.text for line in run.of(Line))


@pytest.mark.parametrize("size, fixed", [(1, {}), (2, {p.name: p.default for p in PARAMETERS})])
def test_nothing_to_tune_is_said_at_once(size, fixed):
    events = Tuner(settings=TunerSettings(), seed=0, size=size, fixed=fixed).open()
    (done,) = [event for event in events if isinstance(event, Done)]
    assert "nothing to tune" in done.text and done.epoch == 0 and not done.certified


# ---- ends and beginnings ------------------------------------------------------------------------


def test_a_killed_run_goes_on_and_repeats_nothing(job, tuner):
    first = job("bowl", seed=4)
    first.drive(tuner(4, max_samples=16), most_steps=140)
    assert first.done is None and len(first.trials) > 3
    second = job("bowl", seed=4)
    resumed = tuner(99, max_samples=16)
    found = Resume(trials=tuple(first.trials), samples=tuple(first.samples), seed=4)
    second.drive(resumed, found)
    assert resumed.seed == 4 and second.done is not None
    assert not {t.params for t in second.trials} & {t.params for t in first.trials}
    assert second.trials[0].trial_id == len(first.trials)
    assert second.finished.best.params in {t.params for t in first.trials + second.trials}
    assert second.true_gain > 0.15


def test_a_run_killed_after_its_last_trial_goes_straight_to_the_certificate(job, tuner, finished):
    first = finished("bowl", 4)
    second = job("bowl", seed=4)
    found = Resume(trials=tuple(first.trials), samples=tuple(first.samples), seed=4)
    second.drive(tuner(4, max_samples=len(first.trials)), found)
    assert second.trials == [] and second.done.certified


def test_a_run_killed_before_its_first_trial_starts_over(job, tuner):
    run = job("bowl")
    run.drive(tuner(), Resume(trials=(), samples=(), seed=4))
    assert run.trials[0].params == CommParams() and run.done is not None


def test_a_finished_run_is_replayed(job, tuner):
    best = Trial(trial_id=6, params=CommParams(cycle_time_ms=0.5), score=321.0)
    run = job("bowl")
    run.drive(tuner(), Replay(best=best, certificate=None))
    assert run.steps < 10 and run.trials == []
    assert run.done.params == best.params.as_dict() == run.of(Apply)[0].params
    assert run.done.epoch == 1 and "replayed" in run.done.text


def test_a_job_that_is_too_short_says_what_it_needed(job, tuner):
    short, run = tuner(), job("bowl")
    run.drive(short, most_steps=12)
    line, finished = short.finish()
    assert "saw 12 steps, needs about 23 more" in line.text
    assert finished.state is RunState.UNFINISHED and finished.best is None


@pytest.mark.parametrize("compute_ms", [0.3, 2.0, 50.0])
@pytest.mark.parametrize("warmup", [0, 2, None])
@pytest.mark.parametrize("steps", [4, 8, 30, 300])
def test_a_job_that_is_too_short_says_how_many_more_steps_are_enough(
    job, tuner, compute_ms, warmup, steps
):
    run = job(lambda p: 0.6 * compute_ms, compute_ms=compute_ms)
    short = tuner(warmup_samples=warmup)
    run.drive(short, most_steps=steps)
    if run.trials:
        return
    text = short.finish()[0].text
    if steps < 5:
        assert "saw 4 steps: 4 of 4 communicate, and a training step is recognised after 5" in text
        return
    more = int(re.search(r"needs (?:about|at least) (\d+) more", text)[1])
    run.drive(short, most_steps=run.steps + math.floor(0.8 * more) - 1)
    assert not run.trials
    is_known = "needs about" in text
    run.drive(short, most_steps=run.steps + math.ceil(0.4 * more) + 2 if is_known else 6000)
    assert run.trials


@pytest.mark.parametrize("compute_ms", [0.3, 50.0])
def test_how_long_it_takes_is_told_when_the_step_time_is_known(job, tuner, compute_ms):
    """Windows of steps shorter than 5 ms have more than ten."""
    first = tuner(max_samples=20)
    assert first.steps_to_done is None
    assert not any("more steps" in event.text for event in first.open())
    run = job(lambda p: 0.6 * compute_ms, compute_ms=compute_ms, noise=0.02)
    while first.steps_to_done is None:
        run.drive(first, most_steps=run.steps + 1)
    told, before = first.steps_to_done, run.steps
    run.drive(first, most_steps=50_000)
    (line,) = [line.text for line in run.of(Line) if "more steps" in line.text]
    assert "ms a training step" in line and f"within {told} more steps" in line
    assert run.done is not None and run.steps - before <= 1.1 * told


def test_where_nothing_can_be_gained_no_length_is_told(job, tuner):
    run = job("silent")
    run.drive(tuner())
    assert not any("more steps" in line.text for line in run.of(Line))


def test_a_job_that_ends_while_tuning_names_the_best_so_far(job, tuner):
    ended, run = tuner(), job("bowl")
    run.drive(ended, most_steps=150)
    line, finished = ended.finish()
    assert "unfinished" in line.text
    assert finished.state is RunState.UNFINISHED
    best = finished.best
    assert best == ended.standing.best
    assert best.params == run.trials[best.trial_id].params
    by_gain = run.trials[0].score * (1 + best.gain.estimate)  # one score and one gain, now
    assert best.trial_id > 0 and best.score == pytest.approx(by_gain, rel=1e-4)


def compared(job, tuner, *, pairs, **how):
    """Return a run, and its tuner, that ends with so many pairs of the comparison."""
    run, ended = job("bowl", **how), tuner(4)
    while sum(sample.kind is SampleKind.CERTIFY for sample in run.of(Sample)) < 2 * pairs:
        run.drive(ended, most_steps=run.steps + 1)
        assert run.done is None
    return run, ended


def test_what_is_proven_when_the_job_ends_is_its_result(job, tuner):
    whole = job("bowl", noise=0.15)
    whole.drive(tuner(4))
    (certificate,) = whole.of(Certificate)
    assert certificate.certified and certificate.pairs > 20  # the gain was to be known precisely
    _, ended = compared(job, tuner, pairs=certificate.pairs - 2, noise=0.15)
    *_, early, finished, done = ended.finish()
    assert early.certified and early.pairs == certificate.pairs - 2
    assert early.gain_low > 0 and early.trial_id == certificate.trial_id
    assert early.reason.endswith("when the job ended")
    assert finished.state is RunState.DONE and finished.best.trial_id == early.trial_id
    assert done.certified and early.reason in done.text
    assert ended.finish() == []


def test_what_is_not_proven_when_the_job_ends_says_in_how_many_pairs(job, tuner):
    _, ended = compared(job, tuner, pairs=3, noise=0.15)
    line, finished = ended.finish()
    assert "not proven in 3 pairs of windows" in line.text
    assert finished.state is RunState.UNFINISHED


def test_the_risk_of_all_comparisons_of_a_log_adds_up_to_no_more_than_alpha(job, tuner):
    """A comparison that a job's end cut off was a chance to be wrong, too."""
    trials, samples = (), ()
    for _ in range(3):
        run, ended = job("bowl", noise=0.15), tuner(4)
        found = Resume(trials=trials, samples=samples, seed=4)
        while sum(sample.pair is not None for sample in run.samples) < 6:
            run.drive(ended, found, most_steps=run.steps + 1)
        assert run.done is None
        trials, samples = (*trials, *run.trials), (*samples, *run.samples)
    assert Resume(trials=trials, samples=samples, seed=4).comparisons == 3
    last = job("bowl", noise=0.15)
    last.drive(tuner(4), Resume(trials=trials, samples=samples, seed=4))
    (certificate,) = last.of(Certificate)
    assert certificate.alpha == ALPHA / 2**4


def test_nothing_more_is_said_after_the_end(job, tuner):
    ended, run = tuner(), job("bowl")
    run.drive(ended)
    assert ended.phase is Phase.DONE
    assert ended.finish() == [] and ended.observe([run.step()]) == []


def test_progress_says_gains_over_the_default_with_an_interval(finished):
    run = finished("bowl")
    progress = [event.text for event in run.of(Progress) if "trial" in event.text]
    assert len(progress) == len(run.trials)
    assert "bytes/us, higher is better" in progress[0]
    for number, (text, trial) in enumerate(zip(progress, run.trials, strict=True), start=1):
        assert f"trial {trial.trial_id} ({number} of at most 20): " in text
        if trial.trial_id:
            assert re.search(r"[+-][0-9.]+ % \(90 %: [+-][0-9.]+ to [+-][0-9.]+\)", text)
            assert "score" not in text
        if "best so far" in text and "the default" not in text.split("best so far")[1]:
            assert text.endswith("not certified yet")


def test_what_is_compared_is_said_with_all_that_is_known_of_it(finished):
    """Some are read again after the last trial: it may be another one than that line's best."""
    for seed in range(SEEDS):
        run = finished("bowl", seed)
        (said,) = (event.text for event in run.of(Line) if "autotune: compares" in event.text)
        (certificate,) = run.of(Certificate)
        own = [one for one in run.samples if one.trial_id == certificate.trial_id]
        readings = sum(one.pair is None for one in own)
        tuned = [one.name for one in PARAMETERS if one.name not in ONE_HOST]
        assert f"compares {params_text(run.trials[certificate.trial_id].params, tuned)}" in said
        gain = r"\S+ % \(90 %: \S+ to \S+\)"
        assert re.search(rf"; known so far: {gain}, by {readings} readings? of it$", said), said


def test_scores_of_one_run_are_gains_over_one_default(finished):
    """So they compare with each other whatever the machine's speed did."""
    for seed in range(3):
        first, *others = finished("bowl", seed).trials
        for trial in others:
            assert trial.score == pytest.approx(first.score * (1 + trial.gain.estimate), rel=1e-5)
            assert trial.gain.low <= trial.gain.estimate <= trial.gain.high


def test_the_last_score_is_what_the_pairs_say_without_the_readings_that_chose_it(finished):
    run = finished("bowl")
    (certificate,) = run.of(Certificate)
    best, default = run.finished.best, run.trials[0].score
    assert best.score == pytest.approx(default * (1 + certificate.gain), rel=1e-5)
    ratios: dict[int, dict[int, float]] = {}
    for sample in run.samples:
        if sample.pair is not None:
            ratios.setdefault(sample.pair, {})[sample.trial_id] = sample.score
    pairs = [pair[best.trial_id] / pair[0] for pair in ratios.values()]
    assert len(pairs) == certificate.pairs
    assert min(pairs) < best.score / default < max(pairs)
    assert best.score != run.trials[best.trial_id].score


def test_the_last_score_of_the_default_is_that_of_its_trial(finished):
    run = finished("best_at_default")
    assert run.finished.best.trial_id == 0
    assert run.finished.best.score == run.trials[0].score


def test_start_says_how_many_steps_are_needed(tuner):
    texts = [event.text for event in tuner().open()]
    assert any("training steps" in t and "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE" in t for t in texts)


def test_apply_names_the_best_setting_known(finished):
    run = finished("bowl")
    known = {None} | {str(trial.params.as_dict()) for trial in run.trials}
    for event in run.of(Apply):
        assert (event.incumbent and str(event.incumbent)) in known


def test_a_late_plan_costs_no_steps_under_a_bad_setting(job, tuner):
    late, run = tuner(), job("best_at_default", noise=0.0)
    work, calls = late.work, []

    def slow_work():
        calls.append(work())
        return calls[-1] if len(calls) < 60 else None  # from then on, nothing comes back

    late.work = slow_work
    run.drive(late, most_steps=200)
    assert len(run.trials) >= 2 and run.done is None
    assert run.params == CommParams()


@pytest.mark.parametrize("seed", [2, 6])
def test_a_lucky_incumbent_does_not_keep_the_tuner_waiting(job, tuner, seed):
    """With 20 % noise a setting that is slower than the default may lead for a while."""
    run = job("best_at_default", seed=seed, noise=0.2)
    run.drive(tuner(seed))
    assert run.done is not None and run.true_gain > -0.005


@pytest.mark.parametrize(
    ("used", "reasons"),
    [
        ({"allreduce", "allgather"}, {}),
        ({"allreduce"}, {"hierarchical_allgather": "has no allgather"}),
        ({"cuda allreduce"}, {"hierarchical_allgather": "has no allgather"}),
        (
            {"cuda allreduce", "cuda allgather"},  # NCCL's own, whatever the setting
            {"hierarchical_allgather": "has no allgather of tensors in host memory"},
        ),
        ({"cuda allgather", "allgather"}, {"hierarchical_allreduce": "has no allreduce"}),
    ],
)
def test_what_no_operation_of_a_step_heeds_is_known(used, reasons):
    told = without_operation([(name, 8) for name in sorted(used)], (), HOROVOD)
    assert told.keys() == reasons.keys()
    assert all(told[name].endswith(reasons[name]) for name in told)
    assert without_operation([(name, 8) for name in used], set(reasons), HOROVOD) == {}


def test_two_level_operations_are_explored_only_where_a_step_uses_them(job):
    """Case T8: the training steps of the simulated job reduce, but gather nothing."""
    run = job("bowl", seed=0)
    run.drive(Tuner(settings=TunerSettings(seed=0), seed=0, size=4))  # several hosts: nothing inert
    assert not any(trial.params.hierarchical_allgather for trial in run.trials)
    assert any(trial.params.hierarchical_allreduce for trial in run.trials)
    told = [line.text for line in run.of(Line)]
    assert sum("hierarchical_allgather is not explored" in text for text in told) == 1


@pytest.mark.parametrize("warmup_samples", [0, 1])
def test_a_resumed_run_that_has_only_read_the_default_goes_on(job, tuner, warmup_samples):
    start = Resume(
        trials=(Trial(trial_id=0, params=CommParams(), score=300.0),), samples=(), seed=7
    )
    run = job("bowl")
    run.drive(tuner(warmup_samples=warmup_samples), start)
    (certificate,) = run.of(Certificate)
    assert run.done.certified and certificate.pairs
    assert not any("inf" in line.text for line in run.of(Line))


@pytest.mark.parametrize("warmup_samples", [None, 0])
def test_a_resumed_run_without_headroom_ends(job, tuner, warmup_samples):
    start = Resume(
        trials=(Trial(trial_id=0, params=CommParams(), score=300.0),), samples=(), seed=7
    )
    run = job("silent")
    run.drive(tuner(warmup_samples=warmup_samples), start)
    assert not run.trials and "nothing to gain" in run.done.text


def test_the_best_so_far_is_a_finished_trial_also_while_another_one_is_read(job, tuner):
    """A setting whose bracket is open may look better: it is not in the log yet."""
    chosen, run = tuner(3, max_samples=12), job("bowl", seed=3)
    while chosen.phase is not Phase.CERTIFY and run.steps < 2000:
        run.drive(chosen, most_steps=run.steps + 1)
        if len(run.trials) > 4:
            gains = {t.params: t.gain.estimate for t in run.trials[1:] if t.gain is not None}
            assert max(gains.values()) > 0.1
            assert chosen.standing.best.params in [trial.params for trial in run.trials[1:]]
    assert len(run.trials) > 5
