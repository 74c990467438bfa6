"""Elastic jobs between hosts: one that vanishes is noticed, and the others go on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cluster.elastic import OnHosts, sockets
from cluster.hosts import TwoHosts
from e2e.elastic.running import Running

pytestmark = pytest.mark.timeout(300)


def test_a_host_behind_a_cut_cable_is_lost_and_the_others_go_on(tmp_path: Path) -> None:
    with TwoHosts() as hosts:
        flags = ["-np", "3", "--min-np", "1", "-H", f"{hosts.a.name}:2,{hosts.b.name}:1"]
        place = OnHosts(hosts, tmp_path)
        job = Running(place, flags, pid_of=place.pid_of, kind="torch")
        job.wait_for_step(10, size=3)
        assert {line["host"] for line in job.lines("round")} == {hosts.a.name, hosts.b.name}
        hosts.set_cable(up=False)
        cut_at = time.time()
        again = job.wait_for_step(11, size=2)
        print(f"training again {again['time'] - cut_at:.1f} s after the cable was cut")
        assert again["host"] == hosts.a.name
        job.stop()
        code, err = job.result()
        assert code == 0, err
        job.check_weights(2)
        assert "the connection to it has ended" in err
        assert [sockets(host) for host in hosts.hosts] == [[], []]


def test_a_second_host_joins_over_ssh_and_takes_over(tmp_path: Path) -> None:
    with TwoHosts() as hosts:
        a, b = hosts.a.name, hosts.b.name
        place = OnHosts(hosts, tmp_path)
        job = Running(
            place, ["-np", "1", "--min-np", "1"], hosts=f"{a}:1", pid_of=place.pid_of, kind="torch"
        )
        job.wait_for_step(5, size=1)
        job.set_hosts(f"{a}:1,{b}:1")
        job.wait_for_step(10, size=2)
        job.set_hosts(f"{b}:1")
        last = job.wait_for_step(job.lines("step")[-1]["step"] + 8, size=1)
        assert last["host"] == b
        job.stop()
        code, err = job.result()
        assert code == 0, err
        job.check_weights(1)
        assert [sockets(host) for host in hosts.hosts] == [[], []]
