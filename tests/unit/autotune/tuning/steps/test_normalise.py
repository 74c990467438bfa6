from __future__ import annotations

import pytest

from autotune.tuning.steps.normalise import Normaliser
from autotune.tuning.steps.records import StepRecord


def record(ms: float, samples: int, *, count: int = 1, payload: int = 1000) -> StepRecord:
    return StepRecord(
        step=0,
        count=count,
        duration_us=1000 * ms,
        payload_bytes=payload,
        exposed_us=100 * ms,
        epoch=0,
        signature=1,
        samples=samples,
    )


def test_without_samples_nothing_changes():
    assert Normaliser().normalised(record(10, 0)) == record(10, 0)


def test_steps_of_equal_speed_become_equal():
    normaliser = Normaliser()
    first = normaliser.normalised(record(10, 32))
    second = normaliser.normalised(record(20, 64))
    assert second.duration_us == pytest.approx(first.duration_us * 48 / 32)
    for _ in range(5):
        normaliser.normalised(record(10, 32))
    times = [normaliser.normalised(record(ms, 2 * ms)).duration_us for ms in (5, 10, 40)]
    assert times == pytest.approx([times[0]] * 3)


def test_the_score_is_proportional_to_samples_per_second():
    normaliser = Normaliser()
    for _ in range(5):
        normaliser.normalised(record(10, 100))
    slow, fast = (normaliser.normalised(record(10, n)) for n in (50, 100))
    assert fast.payload_bytes / fast.duration_us == pytest.approx(
        2 * slow.payload_bytes / slow.duration_us
    )
    assert slow.payload_bytes == fast.payload_bytes == 1000


def test_merged_steps_count_with_all_their_samples():
    normaliser = Normaliser()
    for _ in range(5):
        normaliser.normalised(record(10, 32))
    one = normaliser.normalised(record(20, 64, count=2, payload=2000))
    assert one.duration_us == pytest.approx(20_000) and one.payload_bytes == 2000
