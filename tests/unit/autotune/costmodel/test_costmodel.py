"""The model of a step: what must hold whatever the constants are."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from autotune.costmodel import EngineCosts, Link, Machine, Workload, fit_link, matched, predict
from autotune.costmodel.collectives import allreduce_us, stage_sizes
from autotune.errors import InvalidSettingError
from autotune.trial import CommParams

SIZES = [4000 * (1 + 7 * k % 11) for k in range(161)]
WORKLOAD = Workload.spread(SIZES, compute_us=30_000)
ONE_HOST = Machine(hosts=1, local_size=2)
TWO_HOSTS = Machine(hosts=2, local_size=2, cross=Link.of(alpha_us=60, gbit_per_s=0.2))
SETTINGS = [
    CommParams(
        fusion_threshold_bytes=threshold,
        cycle_time_ms=cycle,
        cache_capacity=cache,
        hierarchical_allreduce=two_level,
    )
    for threshold, cycle, cache, two_level in itertools.product(
        (0, 2**16, 2**20, 2**29), (0.1, 1.0, 25.0), (0, 1024), (False, True)
    )
]


@pytest.mark.parametrize("machine", [ONE_HOST, TWO_HOSTS], ids=["one host", "two hosts"])
@pytest.mark.parametrize("params", SETTINGS, ids=lambda params: str(params)[10:])
def test_a_step_takes_at_least_its_computation_and_its_exposed_time(
    machine: Machine, params: CommParams
) -> None:
    result = predict(WORKLOAD, machine, params)
    assert result.step_us == pytest.approx(WORKLOAD.compute_us + result.exposed_us)
    assert 1 <= result.announcements <= result.operations <= len(SIZES)


@pytest.mark.parametrize("params", SETTINGS, ids=lambda params: str(params)[10:])
def test_slower_links_never_make_a_step_faster(params: CommParams) -> None:
    times = [predict(WORKLOAD, TWO_HOSTS.slowed(f), params).step_us for f in (0.1, 1, 10)]
    assert times == sorted(times)


@pytest.mark.parametrize("machine", [ONE_HOST, TWO_HOSTS], ids=["one host", "two hosts"])
def test_a_step_takes_at_least_what_its_bytes_need_on_the_link(machine: Machine) -> None:
    link = machine.local if machine.hosts == 1 else machine.cross
    least = WORKLOAD.payload_bytes * link.us_per_byte
    for params in SETTINGS:
        assert predict(WORKLOAD, machine, params).step_us >= least


def test_without_fusion_every_tensor_is_an_operation() -> None:
    assert predict(WORKLOAD, TWO_HOSTS, CommParams(fusion_threshold_bytes=0)).operations == 161


def test_a_threshold_above_the_payload_is_like_any_other_above_it() -> None:
    high, higher = (CommParams(fusion_threshold_bytes=n * 2**20) for n in (64, 512))
    assert predict(WORKLOAD, TWO_HOSTS, high) == predict(WORKLOAD, TWO_HOSTS, higher)


def test_a_long_cycle_announces_once_when_the_training_thread_waits() -> None:
    params = CommParams(cycle_time_ms=100, fusion_threshold_bytes=2**29)
    assert predict(WORKLOAD, TWO_HOSTS, params).announcements == 1


def test_a_cache_that_forgets_costs_negotiation() -> None:
    known, small = (CommParams(cache_capacity=n) for n in (161, 160))
    off = predict(WORKLOAD, TWO_HOSTS, CommParams(cache_capacity=0)).step_us
    assert predict(WORKLOAD, TWO_HOSTS, known).step_us < off
    assert predict(WORKLOAD, TWO_HOSTS, small).step_us == off


def test_equal_hosts_send_the_same_bytes_flat_and_in_two_levels_which_has_fewer_rounds() -> None:
    one, two = CommParams(), CommParams(hierarchical_allreduce=True)
    flat, staged = (predict(WORKLOAD, TWO_HOSTS, p).exposed_us for p in (one, two))
    assert 1.0 < flat / staged < 1.2
    cable = allreduce_us(TWO_HOSTS, 1e8, two_level=False) / TWO_HOSTS.cross.us_per_byte
    assert cable == pytest.approx(1e8, rel=0.05)  # 2 (H-1)/H of them, however many ranks
    assert predict(WORKLOAD, ONE_HOST, one) == predict(WORKLOAD, ONE_HOST, two)


def test_the_stages_of_ranks_are_those_of_the_engine() -> None:
    assert [stage_sizes(ranks) for ranks in (1, 2, 8, 9)] == [(), (2,), (8,), (3, 3)]
    table = {10: (2, 5), 11: (11,), 12: (3, 4), 13: (13,), 15: (3, 5), 16: (4, 4), 32: (4, 8)}
    assert {ranks: stage_sizes(ranks) for ranks in table} == table
    for ranks in range(2, 200):
        assert math.prod(stage_sizes(ranks)) == ranks


def test_more_ranks_on_a_host_make_an_allreduce_between_hosts_no_slower_by_its_bytes() -> None:
    times = [
        allreduce_us(dataclasses.replace(TWO_HOSTS, local_size=lanes), 1e8, two_level=False)
        for lanes in (1, 2, 4, 16)
    ]
    assert max(times) < 1.1 * min(times)


def test_a_latency_of_stages_grows_with_their_number_not_with_the_ranks() -> None:
    cable = Link(alpha_us=100, us_per_byte=1e-9)
    hosts = [Machine(hosts=n, local_size=1, cross=cable) for n in (2, 4, 16, 64, 256)]
    times = [allreduce_us(machine, 100, two_level=False) for machine in hosts]
    assert times == pytest.approx([100, 150, 300, 450, 600])


def test_gathered_tensors_feel_their_own_boolean_only() -> None:
    workload = dataclasses.replace(WORKLOAD, gathered=frozenset(range(161)))
    one, reduce, gather = (
        CommParams(),
        CommParams(hierarchical_allreduce=True),
        CommParams(hierarchical_allgather=True),
    )
    times = [predict(workload, TWO_HOSTS, p).step_us for p in (one, reduce, gather)]
    assert times[0] == times[1] > times[2]


def test_work_of_the_engine_that_takes_a_core_delays_the_computation() -> None:
    cable = TWO_HOSTS.slowed(0.1)  # communication does not outlast what is delayed
    busy = dataclasses.replace(cable, engine=EngineCosts(stolen=1.0, announce_us=500))
    idle = dataclasses.replace(busy, engine=dataclasses.replace(busy.engine, stolen=0.0))
    params = CommParams(cycle_time_ms=0.1)
    assert predict(WORKLOAD, busy, params).step_us > predict(WORKLOAD, idle, params).step_us


def test_a_link_is_recovered_from_its_times() -> None:
    link = fit_link([(size, 40 + 0.01 * size) for size in (1e3, 1e4, 1e6)])
    assert (link.alpha_us, link.us_per_byte) == pytest.approx((40, 0.01))


@pytest.mark.parametrize("factor", [0.05, 1.0, 20.0])
def test_matching_recovers_how_slow_the_links_are(factor: float) -> None:
    truth = TWO_HOSTS.slowed(factor)
    exposed = predict(WORKLOAD, truth, CommParams()).exposed_us
    found = matched(WORKLOAD, TWO_HOSTS, CommParams(), exposed)
    assert found.cross.us_per_byte == pytest.approx(truth.cross.us_per_byte, rel=0.05)


@pytest.mark.parametrize(
    ("sizes", "ready"), [((), ()), ((1, 2), (1.0,)), ((1, 2), (2.0, 1.0)), ((1,), (99.0,))]
)
def test_a_workload_that_makes_no_sense_is_refused(
    sizes: tuple[int, ...], ready: tuple[float, ...]
) -> None:
    with pytest.raises(InvalidSettingError, match="expected"):
        Workload(sizes=sizes, ready_us=ready, compute_us=10.0)
