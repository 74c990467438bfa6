from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from autotune.tuning.comparing.drift import DRIFTED_WINDOWS, WINDOW_STEPS, DriftDetector
from autotune.tuning.steps.records import StepRecord
from autotune.tuning.steps.scoring import Reading


def record(ms: float) -> StepRecord:
    return StepRecord(
        step=0,
        count=1,
        duration_us=1000 * ms,
        payload_bytes=1000,
        exposed_us=0.0,
        epoch=1,
        signature=1,
    )


def reading(ms: float, steps: int = 10) -> Reading:
    return Reading(
        steps=steps,
        duration_us=1000 * ms * steps,
        payload_bytes=1000 * steps,
        exposed_us=0.0,
        score=1.0 / ms,
        slow_steps=0,
    )


def steps_until_drift(times_ms, readings=()) -> int | None:
    watch = DriftDetector(readings)
    return next((k for k, ms in enumerate(times_ms) if watch.add(record(ms))), None)


def noisy(ms: float, count: int, seed: int = 0):
    return ms * np.exp(0.1 * np.random.default_rng(seed).standard_normal(count))


def test_noise_is_no_drift():
    assert steps_until_drift(noisy(100, 4000)) is None


@pytest.mark.parametrize("factor", [1.5, 0.6])
def test_a_lasting_change_is_found_soon(factor):
    before, after = noisy(100, 1000), noisy(100 * factor, 2000, seed=1)
    found = steps_until_drift([*before, *after])
    assert found is not None and 1000 < found <= 1000 + (DRIFTED_WINDOWS + 1) * 2 * WINDOW_STEPS


def test_a_passing_disturbance_is_no_drift():
    times = [*noisy(100, 1000), *noisy(300, 2 * WINDOW_STEPS), *noisy(100, 1000)]
    assert steps_until_drift(times) is None


def test_windows_that_go_up_and_down_are_no_drift():
    times = [*noisy(100, 1000), *np.tile(np.repeat([200.0, 50.0], WINDOW_STEPS), 10)]
    assert steps_until_drift(times) is None


@pytest.mark.parametrize("ms", [0.5, 4.2, 12.5, 100.0])
def test_a_lasting_change_is_noticed_within_200_steps_however_short_they_are(ms):
    for before in range(1000, 1032):  # wherever in a window it comes
        found = steps_until_drift([*noisy(ms / 2, before), *noisy(ms, 400, seed=1)])
        assert found is not None and before < found < before + 200


def test_windows_of_short_steps_are_half_a_second_long_where_their_number_allows():
    lasting = DRIFTED_WINDOWS * 25  # of 20 ms: 25 are half a second
    assert steps_until_drift([*[10.0] * 1600, *[20.0] * (lasting - 30)]) is None
    assert steps_until_drift([*[10.0] * 1600, *[20.0] * (lasting + 30)]) is not None


@pytest.mark.parametrize("after", [0, 60, 100, 160])
def test_a_change_right_after_tuning_is_seen_beside_what_tuning_has_read(after):
    read = [reading(ms) for ms in noisy(100, 7, seed=2)]
    found = steps_until_drift([*noisy(100, after), *noisy(300, 400, seed=1)], read)
    assert found is not None and after < found < after + 200


def test_a_setting_that_does_better_at_rest_than_in_tuning_is_no_drift():
    read = [reading(ms) for ms in noisy(100, 7, seed=2)]
    assert steps_until_drift(noisy(60, 2000), read) is None


def test_what_tuning_read_long_before_its_end_is_forgotten():
    read = [reading(ms) for ms in [*[300.0] * 8, *noisy(100, 16, seed=2)]]
    assert steps_until_drift(noisy(300, 400), read) is not None


@pytest.mark.parametrize("seed", range(5))
def test_a_machine_of_two_speeds_is_known_after_a_while(seed):
    """Nothing but noise of that machine in 20,000 steps."""
    rng, times, slow = np.random.default_rng(seed), [], False
    while len(times) < 20_000:
        steps = 1 + int(rng.exponential(1000 / 30))
        times += [54.0 if slow else 30.0] * steps
        slow = not slow
    assert steps_until_drift(times) is None


def test_what_was_checked_once_is_no_drift_any_more():
    watch, found = DriftDetector(), []
    for k in range(6000):
        if watch.add(record(100.0 if k % 2000 < 1000 else 150.0)):
            found.append(k)
            watch.learn()
    assert len(found) == 1


def test_links_have_changed_where_steps_wait_longer():
    def drifted(exposed_ms: float) -> DriftDetector:
        watch = DriftDetector()
        for k in range(1000):
            slow = k >= 500
            ms, exposed = (150.0, exposed_ms) if slow else (100.0, 20.0)
            if watch.add(dataclasses.replace(record(ms), exposed_us=1000 * exposed)):
                break
        return watch

    assert drifted(70.0).links_changed and drifted(2.0).links_changed
    assert not drifted(20.0).links_changed
