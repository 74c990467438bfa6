from __future__ import annotations

import pytest

from autotune.certify import FEWEST_PAIRS, PairedTest
from autotune.guard import MOST_PAIRS, ReplayCheck, ReplayTest
from autotune.protocol import Apply, Done, Line, Settings
from autotune.trial import CommParams

GOOD = CommParams(fusion_threshold_bytes=2**20, cycle_time_ms=0.5)
BAD = CommParams(cycle_time_ms=50.0)
DEFAULT = CommParams()


def check_of(tuned: CommParams, *, seed: int = 0, fixed: dict | None = None) -> ReplayCheck:
    settings = Settings(seed=seed, warmup_samples=1)
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
    assert "worse here" in run.done.text
    assert [line for line in run.of(Line) if line.level == "warning"]


@pytest.mark.parametrize("tuned", [GOOD, BAD])
def test_a_check_is_short_and_says_before_how_long_it_takes(checked, tuned):
    run = checked(tuned)
    promised = check_of(tuned).steps_to_done
    assert f"about {promised} steps" in run.of(Line)[0].text
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


def pairs(test: PairedTest, ratios: list[float]) -> bool | None:
    for ratio in ratios:
        test.add(default=1.0, incumbent=ratio)
    return test.decision()


def test_equal_settings_are_kept_at_the_last_look():
    assert pairs(ReplayTest(), [1.0] * MOST_PAIRS) is True


def test_a_doubtful_loss_is_a_loss_at_the_last_look():
    ratios = [0.9, 1.08] * MOST_PAIRS
    assert pairs(ReplayTest(), ratios[:FEWEST_PAIRS]) is None
    assert pairs(ReplayTest(), ratios[:MOST_PAIRS]) is False


def test_an_excess_of_slow_steps_is_worse():
    test = ReplayTest()
    for _ in range(FEWEST_PAIRS):
        test.add(default=1.0, incumbent=1.2, slow=(0, 3))
    assert test.decision() is False
