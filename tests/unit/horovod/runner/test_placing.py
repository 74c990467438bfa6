"""Without MPI ranks fill the slots of host after host, and know their place."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from horovod.runner.hosts import Hosts
from horovod.runner.placing import (
    THIS_HOST,
    HostRanks,
    allotted_hosts,
    other_hosts,
    place_ranks,
    rank_places,
)

HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("hosts", "size", "placed"),
    [
        ([], 3, {THIS_HOST: (0, 1, 2)}),
        ([("a", 2), ("me@b", 2)], 4, {"a": (0, 1), "me@b": (2, 3)}),
        ([("a", 2), ("b", 2)], 3, {"a": (0, 1), "b": (2,)}),
        ([("a", 4), ("b", 2)], 3, {"a": (0, 1, 2)}),
        ([("a", None), ("b", None)], 2, {"a": (0,), "b": (1,)}),
        ([("a", 1), ("b", 1), ("a", 1)], 3, {"a": (0, 2), "b": (1,)}),
        ([("localhost", 1), (f"me@{HERE}", 1), ("b", 1)], 3, {THIS_HOST: (0, 1), "b": (2,)}),
    ],
)
def test_ranks_fill_the_slots_in_order(
    hosts: Hosts, size: int, placed: dict[str, tuple[int, ...]]
) -> None:
    assert {host.name: host.ranks for host in place_ranks(hosts, size)} == placed


def test_more_ranks_than_slots_are_an_error_that_names_both() -> None:
    with pytest.raises(ValueError, match=r"-np 4: the hosts have room for 3 ranks \(a:2,b\)"):
        place_ranks([("a", 2), ("b", None)], 4)


def test_every_rank_knows_its_place_also_where_hosts_differ() -> None:
    hosts = [HostRanks(name="a", ranks=(0, 1)), HostRanks(name="b", ranks=(2,))]
    places = rank_places(hosts, 3)
    assert [list(places[rank].values()) for rank in range(3)] == [
        [0, 3, 0, 2, 0, 2],
        [1, 3, 1, 2, 0, 1],
        [2, 3, 0, 1, 1, 2],
    ]
    assert list(places[0]) == "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE".split()


def test_queues_say_where_ranks_run(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\n")
    slots = tmp_path / "slots"
    slots.write_text("a 2 all.q@a UNDEFINED\nb 1 all.q@b UNDEFINED\n")
    two_and_one = [("a", 2), ("b", 1)]
    for environ in (
        {"SLURM_JOB_NODELIST": "a,b", "SLURM_TASKS_PER_NODE": "2,1"},
        {"SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_CPUS_PER_NODE": "2,1"},
        {"LSB_MCPU_HOSTS": "a 2 b 1"},
        {"PBS_NODEFILE": str(nodes)},
        {"PE_HOSTFILE": str(slots)},
    ):
        assert allotted_hosts(environ) == two_and_one
    assert allotted_hosts({"SLURM_JOB_NODELIST": "n[1-2]"}) == [("n1", None), ("n2", None)]
    assert other_hosts({"SLURM_JOB_NODELIST": "n1"}) == [("n1", None)]
    assert other_hosts({"SLURM_JOB_NODELIST": HERE, "SLURM_TASKS_PER_NODE": "1"}) == []
    assert allotted_hosts({"PBS_NODEFILE": str(tmp_path / "nowhere")}) == []
