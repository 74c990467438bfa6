from __future__ import annotations

from itertools import pairwise

import pytest

from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.steps.scoring import Window
from autotune.tuning.steps.warmup import (
    MOST_WINDOWS,
    Warmup,
    steps_to_first_sample,
    window_steps,
)


def record(ms: float = 10.0, *, signature: int = 1, payload: int = 1000, count: int = 1):
    return StepRecord(
        step=0,
        count=count,
        duration_us=1000 * ms * count,
        payload_bytes=payload,
        exposed_us=0.0,
        epoch=0,
        signature=signature,
    )


def windows_until_warm(times, settings: TunerSettings) -> int:
    warmup = Warmup(settings)
    for number, ms in enumerate(times):
        if warmup.is_over:
            return number // 10
        warmup.add(record(ms))
    raise AssertionError("never warm")


def test_a_steady_job_is_warm_after_three_windows():
    assert windows_until_warm([10.0] * 100, TunerSettings()) == 3


def test_warmup_lasts_until_steps_stop_getting_faster():
    falling = [100.0] * 10 + [60.0] * 10 + [35.0] * 10 + [20.0] * 10 + [10.0] * 100
    assert windows_until_warm(falling, TunerSettings()) >= 6


def test_warmup_is_capped():
    falling = [1000 * 0.9 ** (k / 10) for k in range(400)]
    assert windows_until_warm(falling, TunerSettings()) == MOST_WINDOWS


def test_the_user_decides_how_many_windows_are_thrown_away():
    assert windows_until_warm([10.0] * 100, TunerSettings(warmup_samples=5)) == 5
    assert Warmup(TunerSettings(warmup_samples=0)).is_over


def test_steps_to_the_first_sample_follow_the_settings():
    assert steps_to_first_sample(TunerSettings(warmup_samples=0, steps_per_sample=1)) == 6
    assert steps_to_first_sample(TunerSettings()) == 35


@pytest.mark.parametrize("ms", [0.3, 5.0, 80.0])
def test_a_window_has_as_many_steps_as_are_expected(ms):
    window, expected = Window(epoch=0, steps=10, settle=0), window_steps(TunerSettings(), 1000 * ms)
    for _ in range(expected - 1):
        window.add(record(ms))
    assert not window.is_full
    window.add(record(ms))
    assert window.is_full


def test_without_a_step_time_the_fewest_steps_are_expected():
    assert window_steps(TunerSettings(), None) == 10
    assert window_steps(TunerSettings(steps_per_sample=3), None) == 3


@pytest.mark.parametrize("wanted", [None, 0, 2])
def test_what_is_left_of_the_warmup_is_known_at_any_moment(wanted):
    warmup = Warmup(TunerSettings(warmup_samples=wanted))
    assert warmup.step_us is None
    left = []
    while not warmup.is_over:
        warmup.add(record(1.0))
        left.append(warmup.steps_left)
    assert left == list(range(len(left) - 1, -1, -1)) and warmup.steps_left == 0


def test_a_long_warmup_says_how_much_of_it_is_left_less_and_less_often():
    warmup = Warmup(TunerSettings(warmup_samples=100))
    told = []
    for number in range(999):
        warmup.add(record(100.0))
        if warmup.has_news():
            told.append((number + 1) / 10)  # seconds
    assert told[:3] == [1.0, 3.0, 7.0]
    assert max(b - a for a, b in pairwise(told)) <= 60


def test_a_short_warmup_says_nothing():
    warmup = Warmup(TunerSettings())
    while not warmup.is_over:
        warmup.add(record(10.0))
        assert not warmup.has_news()
