from __future__ import annotations

import pytest

from autotune.budget import Account, charge_us
from autotune.protocol import StepRecord
from autotune.scoring import read


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
    opened.rebase(read([record(10.0)]))
    for _ in range(steps):
        opened.book(record(10.0), is_default=True)
    return opened


def test_default_steps_earn_the_allowance():
    assert account(100).allowance_us == pytest.approx(0.05 * 100 * 10_000)


def test_slow_settings_use_it_up():
    opened = account(100)
    for _ in range(6):
        opened.book(record(20.0, epoch=1), is_default=False)
    assert opened.lost_us == pytest.approx(60_000) and opened.allowance_us < 0


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


def test_a_budget_of_zero_allows_nothing():
    opened = Account(0.0)
    opened.rebase(read([record(10.0)]))
    opened.book(record(11.0, epoch=1), is_default=False)
    assert opened.allowance_us < 0
