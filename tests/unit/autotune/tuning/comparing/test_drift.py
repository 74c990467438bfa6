from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from autotune.tuning.comparing.drift import DRIFTED_WINDOWS, WINDOW_STEPS, DriftDetector
from autotune.tuning.steps.records import StepRecord


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


def steps_until_drift(times_ms) -> int | None:
    watch = DriftDetector()
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


def test_short_steps_are_watched_in_windows_of_half_a_second():
    lasting = DRIFTED_WINDOWS * 500 // 2
    assert steps_until_drift([*[0.5] * 40_000, *[2.0] * (lasting - 300)]) is None
    assert steps_until_drift([*[0.5] * 40_000, *[2.0] * (lasting + 300)]) is not None


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
