"""The simulated tree of negotiation: its formula, what was measured, and what a tree is for."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tree
from tree import Costs, Job, formula_us, simulated_us

COSTS = Costs(decide=10.0, near_read=0.2, near_send=0.1, far_read=0.6, far_send=2.0, latency=25.0)


def full(fan: int, levels: int) -> int:
    """Return the hosts of a tree in which every level is full."""
    return sum(fan**level for level in range(levels + 1))


@pytest.mark.parametrize(("fan", "levels"), [(2, 1), (2, 5), (3, 3), (8, 3), (16, 2)])
def test_the_formula_is_the_simulation_where_every_level_is_full(fan: int, levels: int) -> None:
    job = Job(hosts=full(fan, levels), host_ranks=4, fan=fan)
    assert job.levels == levels
    assert simulated_us(job, COSTS) == pytest.approx(formula_us(job, COSTS), rel=0.01)


@pytest.mark.parametrize("fan", [None, 2, 5, 16, 1000])
@pytest.mark.parametrize("hosts", [1, 2, 7, 100, 300])
def test_no_order_of_announcements_takes_longer_than_the_formula_and_ranks_that_come_late(
    fan: int | None, hosts: int
) -> None:
    job = Job(hosts=hosts, host_ranks=4, fan=fan)
    random = np.random.default_rng(hosts)
    # Ranks of a leader may come together with the messages of other leaders, on every level.
    most = formula_us(job, COSTS) + job.levels * (job.host_ranks - 1) * COSTS.near_read
    for spread_us in (0.0, 1.0, 30.0, 1000.0):
        ready = random.uniform(0, spread_us, (hosts, job.host_ranks))
        assert COSTS.decide < simulated_us(job, COSTS, ready) <= most + 1e-6


def test_every_leader_reports_to_one_that_is_nearer_to_the_top() -> None:
    job = Job(hosts=101, host_ranks=1, fan=7)
    parents = {child: leader for leader in range(job.hosts) for child in job.children(leader)}
    assert sorted(parents) == list(range(1, job.hosts))
    assert all(parent < child for child, parent in parents.items())


def test_the_last_rank_decides_however_early_the_others_were() -> None:
    job = Job(hosts=9, host_ranks=2, fan=2)
    ready = np.zeros((9, 2))
    ready[8, 1] = 1e6
    alone = simulated_us(job, COSTS, ready)
    # Nobody else is read after it: a message a level up, and all of them down.
    hops = job.levels * (COSTS.far_send + COSTS.latency + COSTS.far_read)
    assert COSTS.decide + hops < alone < simulated_us(job, COSTS)


def test_formula_and_simulation_are_what_was_measured_of_stars() -> None:
    stored = json.loads(tree.STORED.read_text())
    costs = tree.costs_of(stored)
    near = tree.points_of(stored["near"], *tree.PARTS)
    far = tree.points_of(stored["far"], *tree.PARTS)
    assert max(near) == max(far) == 256
    without_cable = Costs(**{**vars(costs), "latency": 0.0})
    for ranks in (4, 16, 32):
        played = simulated_us(Job(hosts=1, host_ranks=ranks), costs)
        assert played == pytest.approx(near[ranks], rel=0.1)
    for ranks in (4, 16, 32, 64, 256):  # the other end of a message is not in what was measured
        played = simulated_us(Job(hosts=ranks, host_ranks=1), without_cable) - costs.far
        assert played == pytest.approx(far[ranks], rel=0.25)
    real = tree.processes()
    theirs = tree.costs_of_processes(costs, real)
    for ranks, time in real.items():
        played = simulated_us(Job(hosts=1, host_ranks=ranks), theirs)
        assert played == pytest.approx(time, rel=0.25)


def test_what_the_bench_prints_is_read() -> None:
    text = (
        "ranks     (say)      #      read      #      send      #  coordinator      #   (us, x)\n"
        "    2      0.12    0.0      0.08    1.0      0.16    0.0        11.89    0.0\n"
        "   16      1.29    0.0      0.86    0.0      2.03    0.0        16.68    0.0\n"
    )
    assert tree.read_bench(text) == [
        ("2", "read", 0.08),
        ("2", "send", 0.16),
        ("16", "read", 0.86),
        ("16", "send", 2.03),
    ]


def test_a_tree_reaches_16384_ranks_in_the_time_in_which_a_star_reaches_some_hundred() -> None:
    costs = tree.costs_of(json.loads(tree.STORED.read_text()))
    tall = simulated_us(Job(hosts=2048, host_ranks=8, fan=16), costs)
    assert tall < formula_us(Job(hosts=2048, host_ranks=8, fan=16), costs) < 500
    assert simulated_us(Job(hosts=2048, host_ranks=8), costs) > 50 * tall


@pytest.mark.parametrize("hosts", [1, 2, 7, 40])
def test_any_tree_is_played_as_the_star_and_trees_over_hosts_are(hosts: int) -> None:
    of_rank = [rank // 4 for rank in range(4 * hosts)]
    star = [-1, *[0] * (4 * hosts - 1)]
    job = Job(hosts=hosts, host_ranks=4)
    # The engine answers the ranks of its own host first; the model of stars does so last.
    first = 4 * COSTS.near_send
    assert tree.played_us(star, of_rank, COSTS) == pytest.approx(
        simulated_us(job, COSTS), abs=first
    )
    for fan in (2, 5):
        over_hosts = [-1, *([0] * 3)]
        for leader in range(1, hosts):
            over_hosts += [4 * ((leader - 1) // fan), *([4 * leader] * 3)]
        played = tree.played_us(over_hosts, of_rank, COSTS)
        job = Job(hosts=hosts, host_ranks=4, fan=fan)
        assert played == pytest.approx(simulated_us(job, COSTS), rel=0.1)


def test_the_engines_tree_keeps_64_ranks_of_a_host_below_a_star_of_32() -> None:
    stored = json.loads(tree.STORED.read_text())
    real = tree.processes()
    costs = tree.costs_of_processes(tree.costs_of(stored), real)
    parents = tree._engine.control_parents([0] * 64)
    assert parents.count(0) == 8
    assert tree.played_us(parents, [0] * 64, costs) < real[32]
    assert tree._engine.control_parents([0] * 32) == [-1, *[0] * 31]


def test_the_engines_fan_out_is_about_the_best_of_those_that_can_be_forced() -> None:
    stored = json.loads(tree.STORED.read_text())
    costs = tree.costs_of_processes(tree.costs_of(stored), tree.processes())
    for ranks in (48, 64, 128):
        hosts = [0] * ranks
        own = tree.played_us(tree._engine.control_parents(hosts), hosts, costs)
        forced = (tree._engine.control_parents(hosts, fan) for fan in range(2, ranks))
        assert own < 1.15 * min(tree.played_us(parents, hosts, costs) for parents in forced)
