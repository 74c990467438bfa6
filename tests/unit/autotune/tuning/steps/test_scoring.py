from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.tuning.steps.records import StepRecord
from autotune.tuning.steps.scoring import (
    Window,
    headroom,
    is_hopeless,
    is_stationary,
    is_usable,
    pool,
    read,
    slow_mask,
)


def record(ms: float = 10.0, *, count: int = 1, epoch: int = 0, exposed: float = 0.5, **more):
    return StepRecord(
        step=0,
        count=count,
        duration_us=1000 * ms * count,
        payload_bytes=1_000_000 * count,
        exposed_us=1000 * ms * count * exposed,
        epoch=epoch,
        signature=1,
    ).__class__(
        **{
            "step": 0,
            "count": count,
            "duration_us": 1000 * ms * count,
            "payload_bytes": 1_000_000 * count,
            "exposed_us": 1000 * ms * count * exposed,
            "epoch": epoch,
            "signature": 1,
            **more,
        }
    )


def steps(*times_ms: float) -> list[StepRecord]:
    return [record(ms) for ms in times_ms]


NOISE = [10.3, 9.8, 10.1, 9.5, 10.4, 9.9, 10.0, 10.6, 9.7, 9.7]
DEFAULT = read(steps(*NOISE))


def test_score_is_payload_over_time():
    assert read(steps(10, 10, 10)).score == pytest.approx(100.0)


def test_one_very_long_step_does_not_change_the_score():
    plain, spoilt = read(steps(*NOISE)), read(steps(*NOISE[:-1], 5000))
    assert spoilt.score == pytest.approx(plain.score, rel=0.005)
    assert (plain.slow_steps, spoilt.slow_steps) == (0, 0)  # a pause is no doing of the setting


def test_two_hiccups_in_a_short_window_do_not_change_the_score():
    plain, spoilt = (
        read(steps(*[10.0, 10.2, 9.8] * 2)),
        read(steps(10.0, 31.0, 10.2, 9.8, 29.0, 10.0)),
    )
    assert spoilt.score == pytest.approx(plain.score, rel=0.02) and spoilt.slow_steps == 2


def test_what_slow_steps_add_is_known():
    reading = read(steps(*[10.0] * 9, 60.0))
    assert reading.slow_steps == 1 and reading.slow_us == pytest.approx(60_000)
    assert reading.slow_excess == pytest.approx(0.5)
    assert DEFAULT.slow_excess == 0


def test_slow_steps_that_are_a_habit_count():
    habit = [10, 20, 10] * 4
    assert read(steps(*habit)).score == pytest.approx(1000 / (sum(habit) / 12), rel=1e-9)


def test_ordinary_noise_drops_nothing_on_average():
    rng = np.random.default_rng(0)
    windows = 10 * (1 + 0.05 * rng.standard_normal((500, 10)))
    dropped = sum(slow_mask(window).sum() for window in windows)
    assert dropped < 0.002 * windows.size


def test_score_of_merged_steps_is_that_of_single_ones():
    assert read([record(10, count=5)] * 2).score == read([record(10)] * 10).score


def test_an_empty_window_scores_zero():
    assert read([]).score == 0 and read([]).step_us == math.inf


@pytest.mark.parametrize(
    "spoilt",
    [
        {"duration_us": math.nan},
        {"duration_us": math.inf},
        {"duration_us": 0.0},
        {"duration_us": -1.0},
        {"payload_bytes": 0},
        {"epoch": -1},
        {"count": 0},
    ],
)
def test_records_that_cannot_be_scored_are_not_usable(spoilt):
    assert is_usable(record())
    assert not is_usable(record(**{"count": 1, "epoch": 0, **spoilt}))


def test_headroom_is_the_gain_of_hiding_all_communication():
    assert headroom(read([record(exposed=0.5)])) == pytest.approx(1.0)
    assert headroom(read([record(exposed=0.0)])) == 0
    assert headroom(read([record(exposed=1.0)])) == math.inf


def test_pooled_readings_weigh_by_time():
    both = pool([read(steps(10, 10)), read(steps(20, 20))])
    assert both.score == pytest.approx(4_000_000 / 60_000) and both.steps == 4


def test_falling_step_times_are_not_stationary():
    assert not is_stationary([100, 50, 30])
    assert not is_stationary([100, 98])
    assert is_stationary([100, 50, 30, 30, 30.2])
    assert is_stationary([10.0, 10.2, 9.9])


def hopeless(records: list[StepRecord], rival_ms: float = 10.0) -> bool:
    return is_hopeless(records, default=DEFAULT, rival_us=1000 * rival_ms)


def test_two_slow_steps_prove_a_setting_hopeless_but_one_hiccup_does_not():
    assert hopeless(steps(25, 25))
    assert not hopeless([record(30, exposed=0.2)])
    assert not hopeless(steps(10, 30))
    assert not hopeless(steps(10, 30, 10))


def test_one_step_that_waits_for_communication_proves_it_at_once():
    assert hopeless([record(60, exposed=0.95)])
    assert not hopeless([record(500, exposed=0.01)])


def test_more_steps_prove_smaller_differences():
    assert not hopeless(steps(11.5, 11.5))
    assert hopeless(steps(*[11.5] * 8))
    assert not hopeless(steps(*[10.2] * 10))


def test_who_is_the_rival_decides():
    assert hopeless(steps(*NOISE), rival_ms=7)
    assert not hopeless(steps(*NOISE), rival_ms=9.9)


def test_noise_alone_hardly_ever_abandons_a_setting_that_is_as_good_as_its_rival():
    rng, abandoned = np.random.default_rng(0), 0
    default = read(steps(*(10 * (1 + 0.05 * rng.standard_normal(40)))))
    for _ in range(300):
        times = 10 * (1 + 0.05 * rng.standard_normal(10)) * np.where(rng.random(10) < 0.005, 3, 1)
        records = steps(*times)
        abandoned += any(
            is_hopeless(records[:k], default=default, rival_us=10_000) for k in range(1, 11)
        )
    assert abandoned / 300 < 0.02


def test_spread_is_that_of_single_steps_and_gives_the_noise_of_a_window():
    rng = np.random.default_rng(0)
    reading = read(steps(*(10 * (1 + 0.05 * rng.standard_normal(400)))))
    assert reading.spread == pytest.approx(0.05, rel=0.1)
    assert reading.noise == pytest.approx(0.05 * math.sqrt(1.86 / 400), rel=0.1)


def test_window_throws_the_settling_steps_away():
    window = Window(epoch=3, steps=5, settle=2)
    for ms in (99, 99, 10, 10, 10, 10, 10):
        assert not window.is_full
        window.add(record(ms, epoch=3))
    assert window.is_full and window.reading().step_us == pytest.approx(10_000)


def test_window_ignores_other_epochs():
    window = Window(epoch=3, steps=1, settle=0)
    window.add(record(10, epoch=2))
    window.add(record(10, epoch=-1))
    assert window.records == []


def test_window_lasts_at_least_50_ms():
    window = Window(epoch=0, steps=10, settle=0)
    for _ in range(49):
        window.add(record(1.0))
    assert not window.is_full
    window.add(record(1.0))
    assert window.is_full


def test_one_long_step_does_not_fill_a_window():
    window = Window(epoch=0, steps=2, settle=0)
    for ms in (1.0, 900.0, 1.0):
        window.add(record(ms))
    assert not window.is_full
