from __future__ import annotations

import dataclasses
import itertools
import math
import re

import pytest

from autotune.trial import CommParams
from autotune.tuning.changes import Apply, Done, Line
from autotune.tuning.comparing.certify import FEWEST_PAIRS, PairedTest
from autotune.tuning.comparing.replay_check import MOST_PAIRS, MOST_STARTS, ReplayCheck, ReplayTest
from autotune.tuning.steps.records import ResultCheck, TunerSettings
from simulated.job import SURFACES

GOOD = CommParams(fusion_threshold_bytes=2**20, cycle_time_ms=0.5)
BAD = CommParams(cycle_time_ms=50.0)
DEFAULT = CommParams()


def check_of(tuned: CommParams, *, seed: int = 0, fixed: dict | None = None) -> ReplayCheck:
    settings = TunerSettings(seed=seed, warmup_samples=1)
    return ReplayCheck(settings=settings, seed=seed, tuned=tuned.as_dict(), fixed=fixed or {})


@pytest.fixture
def checked(job):
    """``checked(GOOD, seed=1)``: a job that starts with a replayed setting, and its verdict."""

    def drive(tuned: CommParams, surface: str = "bowl", **options: object):
        run = job(surface, **options)
        run.params = tuned
        run.drive(check_of(tuned, seed=run.seed), most_steps=1000)
        return run

    return drive


@pytest.mark.parametrize("seed", range(5))
def test_a_setting_that_is_better_here_is_kept(checked, seed):
    run = checked(GOOD, seed=seed)
    assert run.done.params == GOOD.as_dict()
    assert run.done.epoch == sum(1 for _ in run.of(Apply))
    assert "kept" in run.done.text and "between +" in run.done.text


@pytest.mark.parametrize("seed", range(5))
def test_a_setting_that_is_worse_here_gives_way_to_the_default(checked, seed):
    run = checked(BAD, seed=seed)
    assert run.done.params == DEFAULT.as_dict()
    assert run.of(Apply)[-1].params == DEFAULT.as_dict()
    assert "worse here" in run.done.text and not run.done.certified


@pytest.mark.parametrize("tuned", [GOOD, BAD])
def test_the_verdict_is_told_once(checked, tuned):
    """The runtime prints the text of ``Done``; a line with the same would be a second one."""
    run = checked(tuned)
    assert not any("replayed settings" in line.text for line in run.of(Line))
    assert run.done.text.count("replayed settings") == 1


@pytest.mark.parametrize("tuned", [GOOD, BAD])
def test_a_check_is_short_and_says_before_how_long_it_takes(checked, tuned):
    run = checked(tuned)
    first, second = (line.text for line in run.of(Line))
    assert check_of(tuned).steps_to_done is None and f"{MOST_PAIRS} pairs of windows" in first
    promised = int(re.search(r"within about (\d+) more steps", second)[1])
    assert run.steps <= 1.1 * promised < 400


def test_the_job_starts_under_the_replayed_setting(checked):
    first = checked(GOOD).of(Apply)[0]
    assert first.params == DEFAULT.as_dict()
    assert first.incumbent == GOOD.as_dict()


def test_nothing_is_written_to_a_log(checked):
    run = checked(GOOD)
    assert run.trials == [] and run.samples == [] and run.finished is None


def test_explicit_settings_are_part_of_both_sides(job):
    tuned = GOOD.with_values({"cache_capacity": 7})
    run = job("bowl")
    run.params = tuned
    run.drive(check_of(tuned, fixed={"cache_capacity": 7}), most_steps=1000)
    assert all(apply.params["cache_capacity"] == 7 for apply in run.of(Apply))


def test_the_default_needs_no_check():
    (done,) = check_of(DEFAULT).open()
    assert isinstance(done, Done) and "nothing to compare" in done.text


def test_a_job_that_ends_before_the_verdict_says_so(job):
    check, run = check_of(GOOD), job("bowl")
    run.params = GOOD
    run.drive(check, most_steps=60)
    (line,) = check.finish()
    assert line.level == "warning" and "no verdict" in line.text and "60 steps" in line.text


@pytest.mark.parametrize("compute_ms", [0.3, 50.0])
@pytest.mark.parametrize("steps", [3, 60, 2000])
def test_a_job_that_ends_before_the_verdict_says_how_many_more_steps_are_enough(
    job, compute_ms, steps
):
    """Windows of steps shorter than 5 ms have more than ten."""
    check = check_of(GOOD)
    run = job(lambda p: 0.6 * compute_ms, compute_ms=compute_ms)
    run.params = GOOD
    run.drive(check, most_steps=steps)
    if run.done is not None:
        return
    text = check.finish()[0].text
    assert ("more steps" in text) == (steps > 3)
    more = int(re.search(r"up to about (\d+) more", text)[1]) if steps > 3 else 6000
    run.drive(check, most_steps=run.steps + math.ceil(1.1 * more))
    assert run.done is not None


def test_wrong_results_end_it_with_an_error(job):
    check, run = check_of(GOOD), job("bowl")
    run.params = GOOD
    run.drive(check, most_steps=4)
    line, change = [
        event
        for event in check.check(ResultCheck(epoch=0, name="g", ok=False, worst_error=1.0))
        if not isinstance(event, Done) or run.events.append(event)
    ][::-1]
    assert line.level == "error" and line.text.startswith("autotune: wrong result of 'g'")
    assert change.params == run.done.params == DEFAULT.as_dict()
    assert not run.done.certified and "wrong result of" not in run.done.text


def pairs(test: PairedTest, ratios: list[float]) -> bool | None:
    for ratio in ratios:
        test.add(math.log(ratio))
    return test.decision()


def test_equal_settings_are_kept_at_the_last_look():
    test = ReplayTest()
    assert pairs(test, [1.0] * MOST_PAIRS) is True
    assert "are kept: not slower on average, and neither is proven faster" in test.verdict(True)


def test_a_doubtful_loss_is_a_loss_at_the_last_look():
    ratios = [0.9, 1.08] * MOST_PAIRS
    assert pairs(ReplayTest(), ratios[:FEWEST_PAIRS]) is None
    test = ReplayTest()
    assert pairs(test, ratios[:MOST_PAIRS]) is False
    text = test.verdict(False)
    assert "give way to the default: slower on average, and neither is proven faster" in text
    assert "worse here" not in text and "(gain -2.1% over the default, between -" in text


def test_an_excess_of_slow_steps_is_worse():
    test = ReplayTest()
    for _ in range(FEWEST_PAIRS):
        test.add(math.log(1.2), slow=(0, 3), excess=(0.0, 0.25))
    assert test.decision() is False
    assert "more slow steps here (18 against 0): the default takes their place" in test.verdict(
        False
    )


def test_a_check_starts_over_where_the_training_step_becomes_another_one(job):
    """In the first kind of step the setting is worse, in the second it is better."""
    run, check = job("bowl", seed=1), check_of(GOOD)
    run.params = GOOD
    run.surface = lambda p: 40.0 if p == GOOD else 30.0
    run.drive(check, most_steps=100)
    assert run.done is None and check._test.pairs > 0
    run.surface = SURFACES["bowl"]
    run.spoil = lambda record: [dataclasses.replace(record, signature=99)]
    run.drive(check, most_steps=1500)
    assert run.done.params == GOOD.as_dict() and run.done.certified
    assert sum("starts over" in line.text for line in run.of(Line)) == 1


def test_a_check_of_steps_that_change_all_the_time_ends_under_the_replayed_setting(job):
    run, check = job("bowl", seed=1), check_of(GOOD)
    run.params = GOOD
    kinds = itertools.cycle([11] * 60 + [12] * 60)
    run.spoil = lambda record: [dataclasses.replace(record, signature=next(kinds))]
    run.drive(check, most_steps=60 * (MOST_STARTS + 4))
    assert "changes too often" in run.done.text and run.params == GOOD
