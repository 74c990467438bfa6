from __future__ import annotations

import numpy as np
import pytest

from autotune.costmodel import Link, Machine, Workload, predict
from autotune.trial import CommParams
from autotune.tuning.exploring.trend import LATENCY_FACTORS, PhysicsTrend
from autotune.tuning.steps.scoring import Reading

DEFAULT = CommParams()
SIZES = [150_000] * 40
COMPUTE_US = 20_000.0


def reading_of(machine: Machine, sizes=SIZES) -> Reading:
    workload = Workload.spread(sizes, compute_us=COMPUTE_US)
    told = predict(workload, machine, DEFAULT)
    return Reading(
        steps=10,
        duration_us=10 * told.step_us,
        payload_bytes=10 * sum(sizes),
        exposed_us=10 * told.exposed_us,
        score=1.0,
        slow_steps=0,
    )


def trend_of(machine: Machine, sizes=SIZES, *, operations=None) -> PhysicsTrend:
    return PhysicsTrend(
        operations or [("allreduce", size) for size in sizes],
        DEFAULT,
        reading_of(machine, sizes),
        size=machine.size,
        hosts=machine.hosts,
    )


SLOW = Machine(hosts=2, local_size=2, cross=Link.of(alpha_us=100, gbit_per_s=1))


def test_the_default_is_expected_to_be_as_fast_as_it_was_read():
    expected = np.exp(-trend_of(SLOW)(DEFAULT))
    assert expected == pytest.approx([reading_of(SLOW).step_us] * len(LATENCY_FACTORS), rel=0.02)


def test_on_a_machine_like_the_model_the_order_of_settings_is_right():
    trend, workload = trend_of(SLOW), Workload.spread(SIZES, compute_us=COMPUTE_US)
    settings = [
        DEFAULT.with_values({"fusion_threshold_bytes": size, "cycle_time_ms": ms})
        for size in (0, 2**20, 2**24)
        for ms in (0.5, 5.0)
    ]
    true = [-np.log(predict(workload, SLOW, one).step_us) for one in settings]
    told = [trend(one)[:2] for one in settings]
    assert np.corrcoef(true, np.mean(told, axis=1))[0, 1] > 0.9


def test_rivals_disagree_on_settings_with_many_messages():
    many = DEFAULT.with_values({"fusion_threshold_bytes": 0})
    few = DEFAULT.with_values({"fusion_threshold_bytes": 2**26})
    trend = trend_of(SLOW, [50_000] * 40)
    assert np.ptp(trend(many) - trend(few)) > 0.02


def test_hidden_communication_and_gathers_crash_nothing():
    fast = Machine(hosts=1, local_size=4, local=Link.of(alpha_us=1, gbit_per_s=2000))
    operations = [("allgather", 1000), ("broadcast", 0), *[("allreduce", 8)] * 3]
    values = trend_of(fast, operations=operations)(DEFAULT)
    assert values.shape == (len(LATENCY_FACTORS),) and np.all(np.isfinite(values))
