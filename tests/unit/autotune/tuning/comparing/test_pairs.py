"""The driver of paired windows: orders, edges, and what a changing machine does to a pair."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autotune.trial import CommParams, Trial
from autotune.tuning.comparing.certify import PairedTest
from autotune.tuning.comparing.pairs import PairedWindows
from autotune.tuning.inforce import InForce
from autotune.tuning.steps.brackets import Noise
from autotune.tuning.steps.records import StepRecord
from autotune.tuning.steps.scoring import SETTLE_STEPS

DEFAULT = Trial(trial_id=0, params=CommParams(), score=1.0)
OTHER = Trial(trial_id=3, params=CommParams(cycle_time_ms=2), score=1.0)


class Endless(PairedTest):
    """Never decides."""

    def decision(self) -> bool | None:
        return None


def drive(seed: int, *, windows: int, gain: float = 0.0, speed=lambda step: 1.0, cv: float = 0.0):
    """Read ``windows`` windows of 5 steps; return the test and (trial_id, steps) of each."""
    in_force, test = InForce(DEFAULT.params), Endless()
    rng = np.random.default_rng(99)
    pairs = PairedWindows(
        DEFAULT,
        OTHER,
        test=test,
        in_force=in_force,
        safe=DEFAULT.params,
        noise=Noise(),
        rng=np.random.default_rng(seed),
        steps=5,
    )
    pairs.next_window()
    step, made, seen = 0, 0, []
    while len(seen) < windows:
        ms = (20.0 if in_force.params == DEFAULT.params else 20.0 / (1 + gain)) * speed(step)
        record = StepRecord(
            step=step,
            count=1,
            duration_us=1000 * ms * (1 + cv * rng.standard_normal()),
            payload_bytes=1000,
            exposed_us=0.0,
            epoch=in_force.epoch,
            signature=1,
        )
        step, made = step + 1, made + 1
        arm = pairs.arm
        if pairs.read(record) is not None:
            seen.append((arm.trial_id, made))
            made = 0
            pairs.next_window()
    return test, seen


def test_orders_are_random_and_reproducible():
    arms = [arm for arm, _ in drive(0, windows=24)[1]]
    assert arms == [arm for arm, _ in drive(0, windows=24)[1]]
    pairs = list(zip(arms[::2], arms[1::2], strict=True))
    assert all({first, second} == {0, 3} for first, second in pairs)
    assert 0 < arms[::2].count(0) < 12


def test_only_a_change_of_the_setting_has_to_settle():
    _, seen = drive(1, windows=20)
    for (before, _), (arm, steps) in itertools.pairwise(seen):
        assert steps == (5 if arm == before else 5 + SETTLE_STEPS)


def test_a_pair_gives_the_gain():
    test, _ = drive(2, windows=40, gain=0.25, cv=0.02)
    assert np.expm1(np.mean(test.log_ratios)) == pytest.approx(0.25, abs=0.02)


def test_a_jump_of_the_speed_inside_a_window_does_not_count():
    """Steps 33 to 36 of each 40 are in a window: the speed changes there, nowhere else."""
    test, _ = drive(3, windows=60, gain=0.1, speed=lambda step: 1.8 if step % 97 > 48 else 1.0)
    off = np.abs(np.array(test.log_ratios) - np.log(1.1)) > 0.05
    whole, _ = drive(3, windows=60, gain=0.1)
    assert np.median(test.log_ratios) == pytest.approx(np.median(whole.log_ratios))
    assert off.mean() < 0.35
