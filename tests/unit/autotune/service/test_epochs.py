"""The runtime's half of the epochs: old changes, changes on trial, the end of the tuner."""

from __future__ import annotations

import pytest

from autotune.service.epochs import Change, EpochLedger
from autotune.tuning.changes import Apply, Done
from autotune.tuning.steps.records import StepRecord

START, TRIED, SAFE = {"cache_capacity": 1}, {"cache_capacity": 2}, {"cache_capacity": 3}


def step(epoch: int, *, exposed_us: float, count: int = 1) -> StepRecord:
    return StepRecord(
        step=0,
        count=count,
        duration_us=2 * exposed_us,
        payload_bytes=1,
        exposed_us=exposed_us,
        epoch=epoch,
        signature=1,
    )


@pytest.fixture
def ledger() -> EpochLedger:
    return EpochLedger(START)


def on_trial(epoch: int) -> Apply:
    return Apply(epoch=epoch, params=TRIED, incumbent=SAFE, limit_us=100.0)


def test_changes_are_made_once_and_old_ones_never(ledger):
    change = Apply(epoch=2, params=TRIED)
    assert ledger.take(change) == Change(epoch=2, params=TRIED)
    assert ledger.take(change) is None
    assert ledger.take(Apply(epoch=1, params=START)) is None
    assert ledger.epoch == 2


def test_a_setting_on_trial_is_taken_back_once_by_a_step_of_its_own_that_waits_too_long(ledger):
    ledger.take(on_trial(1))
    assert ledger.observe([step(0, exposed_us=900.0), step(1, exposed_us=90.0)]) is None
    assert ledger.observe([step(1, exposed_us=180.0, count=2)]) is None
    slow = [step(1, exposed_us=90.0), step(1, exposed_us=101.0)]
    assert ledger.observe(slow) == Change(epoch=2, params=SAFE)
    assert ledger.observe(slow) is None


def test_the_service_that_takes_back_what_was_taken_back_is_ignored(ledger):
    ledger.take(on_trial(1))
    ledger.observe([step(1, exposed_us=101.0)])
    assert ledger.take(Apply(epoch=2, params=SAFE, incumbent=SAFE)) is None
    assert ledger.take(on_trial(3)) == Change(epoch=3, params=TRIED)


def test_an_old_message_does_not_lift_the_limit_of_the_latest_change(ledger):
    ledger.take(on_trial(2))
    ledger.take(Apply(epoch=1, params=START))
    assert ledger.observe([step(2, exposed_us=101.0)]) == Change(epoch=3, params=SAFE)


def test_a_later_change_ends_the_limit_of_the_one_before(ledger):
    ledger.take(on_trial(1))
    ledger.take(Apply(epoch=2, params=SAFE))
    assert ledger.observe([step(1, exposed_us=101.0)]) is None


def test_without_the_tuner_training_goes_on_with_what_is_safe(ledger):
    assert ledger.without_tuner() is None
    ledger.take(Apply(epoch=1, params=TRIED))
    assert ledger.without_tuner() == Change(epoch=2, params=START)
    ledger.take(on_trial(3))
    assert ledger.without_tuner() == Change(epoch=4, params=SAFE)
    assert ledger.observe([step(3, exposed_us=101.0)]) is None


def test_it_is_final_when_the_result_is_the_latest_change(ledger):
    assert not ledger.is_final
    ledger.take(Apply(epoch=1, params=TRIED))
    ledger.take(Done(epoch=1, params=TRIED, certified=True, text=""))
    assert ledger.is_final and ledger.safe == TRIED
    ledger.take(Apply(epoch=2, params=START))
    assert not ledger.is_final
