"""A setting between two windows of the default: what speed does to the machine cancels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.tuning.exploring.explore import WORTH_REPEATING
from autotune.tuning.steps.brackets import Bracket, Noise, jump, stretches, without_slow
from autotune.tuning.steps.records import StepRecord


def records(times_ms) -> list[StepRecord]:
    return [
        StepRecord(
            step=k,
            count=1,
            duration_us=1000 * float(ms),
            payload_bytes=1000,
            exposed_us=0.0,
            epoch=0,
            signature=1,
        )
        for k, ms in enumerate(times_ms)
    ]


def noise_of(sigma: float, seed: int = 0) -> Noise:
    noise, rng = Noise(), np.random.default_rng(seed)
    for _ in range(6):
        noise.add(records(20 * np.exp(sigma * rng.standard_normal(12))))
    return noise


def reading(speed, *, gain: float = 0.2, sigma: float = 0.0, seed: int = 0, noise=None):
    """Read a bracket of 8 + 10 + 8 steps; ``speed(step)`` makes every step slower."""
    rng = np.random.default_rng(seed)
    base = np.array([20.0] * 8 + [20.0 / (1 + gain)] * 10 + [20.0] * 8)
    times = base * np.array([speed(k) for k in range(26)])
    made = records(times * np.exp(sigma * rng.standard_normal(26)))
    noise = noise_of(max(sigma, 0.01)) if noise is None else noise
    bracket = Bracket(made[:8], made[8:18], noise=noise, most=10)
    return bracket, bracket.closed(made[18:])


def test_without_a_change_of_speed_it_is_the_gain():
    _, found = reading(lambda k: 1.0)
    assert found.mean == pytest.approx(math.log(1.2))


@pytest.mark.parametrize("slope", [0.004, -0.004])
def test_a_steady_trend_cancels(slope):
    bracket, found = reading(lambda k: math.exp(slope * k))
    assert found.mean == pytest.approx(math.log(1.2), abs=1e-4)
    assert abs(bracket.half().mean - math.log(1.2)) > 0.03


@pytest.mark.parametrize("at", [3, 12, 13, 22])
def test_a_jump_inside_a_window_does_not_count(at):
    _, found = reading(lambda k: 1.8 if k >= at else 1.0)
    assert found.mean == pytest.approx(math.log(1.2), abs=0.01)


@pytest.mark.parametrize("at", [8, 18])
def test_a_jump_at_an_edge_is_covered_by_the_variance(at):
    _, calm = reading(lambda k: 1.0)
    _, found = reading(lambda k: 1.8 if k >= at else 1.0)
    assert found.variance > WORTH_REPEATING**2 * calm.variance  # it is taken again
    assert abs(found.mean - math.log(1.2)) < 1.7 * math.sqrt(found.variance)


def test_the_variance_is_that_of_the_readings():
    """500 brackets without a change of speed: errors over their standard deviations."""
    noise = noise_of(0.05)
    errors = []
    for seed in range(500):
        _, found = reading(lambda k: 1.0, sigma=0.05, seed=seed, noise=noise)
        errors.append((found.mean - math.log(1.2)) / math.sqrt(found.variance))
    assert 0.6 < np.std(errors) < 1.0  # independent steps: the allowance for correlation is unused


def test_wandering_speed_makes_readings_less_certain():
    calm, wild = noise_of(0.02), noise_of(0.02)
    rng = np.random.default_rng(5)
    for seed in range(20):
        reading(lambda k: 1.0, sigma=0.02, seed=seed, noise=calm)
        walk = np.exp(np.cumsum(0.05 * rng.standard_normal(26)))
        reading(lambda k, walk=walk: walk[k], sigma=0.02, seed=seed, noise=wild)
    assert calm.wander < 0.02**2 < wild.wander


def test_single_slow_steps_are_no_stretch():
    times = [20.0] * 9 + [60.0] + [20.0] * 2
    assert len(without_slow(records(times))) == 11
    assert len(stretches(without_slow(records(times)), 0.02)) == 1


def test_noise_is_no_jump():
    rng = np.random.default_rng(3)
    found = [jump(0.05 * rng.standard_normal(12), 0.05) for _ in range(2000)]
    assert sum(k is not None for k in found) <= 20


def test_two_jumps_make_three_stretches():
    times = [20.0] * 6 + [36.0] * 5 + [20.0] * 6
    assert [len(part) for part in stretches(records(times), 0.01)] == [6, 5, 6]
