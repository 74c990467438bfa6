from __future__ import annotations

import numpy as np
import pytest

from autotune.tuning.budget import (
    ADVANCE_STEPS,
    PLANNED,
    STOP_RATIO,
    Account,
    charge_us,
    price_steps,
)
from autotune.tuning.steps.records import StepRecord


def record(ms: float, epoch: int = 0) -> StepRecord:
    return StepRecord(
        step=0,
        count=1,
        duration_us=1000 * ms,
        payload_bytes=1000,
        exposed_us=0.0,
        epoch=epoch,
        signature=1,
    )


def account(steps: int = 100) -> Account:
    opened = Account(0.05)
    opened.rebase(10_000)
    for _ in range(steps):
        opened.book(record(10.0), is_default=True)
    return opened


def test_default_steps_earn_the_allowance():
    assert account(400).allowance_us == pytest.approx(PLANNED * 0.05 * 400 * 10_000)


def test_a_young_job_may_spend_what_its_first_steps_will_earn():
    assert account(10).allowance_us == pytest.approx(PLANNED * 0.05 * ADVANCE_STEPS * 10_000)
    assert account(10).allowance_steps == account(ADVANCE_STEPS).allowance_steps


def test_slow_settings_use_it_up():
    opened = account(100)
    for _ in range(11):
        opened.book(record(20.0, epoch=1), is_default=False)
    assert opened.lost_us == pytest.approx(110_000) and opened.allowance_us < 0


def test_a_faster_setting_costs_nothing_and_a_slower_one_its_window():
    assert price_steps(np.array([0.5, 1.0]), 12).tolist() == [0.0, 0.0]
    assert price_steps(np.array([1.1]), 12)[0] == pytest.approx(1.2)


def test_a_hopeless_setting_is_priced_by_the_steps_until_it_is_abandoned():
    prices = price_steps(np.array([1.5, 2.5, 4.0, 10.0]), 12)
    assert np.all(prices < 0.6 * np.array([0.5, 1.5, 3.0, 9.0]) * 12)
    assert prices[-1] == pytest.approx(9.0) and STOP_RATIO < 10


def test_a_trial_never_makes_more_steps_than_its_window():
    assert price_steps(np.array([1.2]), 3)[0] == pytest.approx(0.6)


def test_fast_settings_pay_back():
    opened = account(100)
    for ms, epoch in [(20.0, 1)] * 6 + [(8.0, 2)] * 10:
        opened.book(record(ms, epoch), is_default=False)
    assert opened.lost_us == pytest.approx(40_000) and opened.allowance_us > 0


def test_an_evaluation_under_a_trial_is_not_charged():
    opened = account(100)
    for ms in (10.0, 11.0, 5000.0, 10.0):
        opened.book(record(ms, epoch=1), is_default=False)
    assert opened.lost_us < 5_000


def test_a_setting_that_is_always_slow_is_charged_in_full():
    assert charge_us([record(100.0)] * 5, 10_000) == pytest.approx(450_000)


def test_nothing_is_lost_before_the_default_was_read():
    opened = Account(0.05)
    opened.book(record(10.0, epoch=1), is_default=False)
    assert opened.lost_us == 0 and opened.allowance_us == 0


def test_the_share_lost_is_of_the_default_as_it_was_at_the_time():
    opened = account(100)
    for _ in range(10):
        opened.book(record(20.0, epoch=1), is_default=False)
    opened.rebase(10_000)
    opened.rebase(5_000)  # the machine has become faster
    for _ in range(100):
        opened.book(record(5.0, epoch=2), is_default=True)
    opened.book(record(10.0, epoch=3), is_default=False)
    lost_ms, whole_ms = 10 * 10 + 1 * 5, 110 * 10 + 101 * 5
    assert opened.lost_share == pytest.approx(lost_ms / whole_ms)


def test_steps_between_two_readings_of_the_default_are_charged_against_both():
    """The machine became slower while a setting that is as fast as the default was in force."""
    opened = account(100)
    for ms in (10.0, 10.0, 20.0, 20.0):
        opened.book(record(ms, epoch=1), is_default=False)
    assert opened.lost_us == pytest.approx(20_000)
    opened.rebase(20_000)
    assert opened.lost_us == pytest.approx(60_000 - 4 * 10_000 * 2**0.5)


def test_a_budget_of_zero_allows_nothing():
    opened = Account(0.0)
    opened.rebase(10_000)
    opened.book(record(11.0, epoch=1), is_default=False)
    assert opened.allowance_us < 0


def test_a_job_that_changes_keeps_its_account():
    """What was lost stays lost; steps under another step time are not compared with it."""
    opened = account(1000)
    for _ in range(10):
        opened.book(record(20.0, epoch=1), is_default=False)
    lost = opened.lost_us
    opened.settle()
    for _ in range(10):
        opened.book(record(1000.0, epoch=2), is_default=True)
    opened.rebase(1_000_000)
    assert opened.lost_us == pytest.approx(lost) == pytest.approx(100_000)
    whole_us = 1010 * 10_000 + 10 * 1_000_000
    assert opened.lost_share == pytest.approx(lost / whole_us)
    assert opened.steps == 1020
