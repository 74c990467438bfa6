"""The two hosts themselves, and jobs whose host or cable changes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.hosts import DEVICE, TwoHosts
from cluster.loop import BYTES_PER_STEP

LOOP = Path(__file__).with_name("loop.py")
FAR = """
from mpi4py import MPI
from horovod.common.mpi import MpiWorld
world = MpiWorld(MPI, MPI.COMM_WORLD.Dup(), ours=False)
print(world.rank, *(int(is_far) for is_far in world._far()))
"""


def steps(folder: Path) -> int:
    path = folder / "steps"
    return int(path.read_text()) if path.exists() else 0


def wait_for_steps(
    job: subprocess.Popen[str], folder: Path, count: int, limit_s: float = 40
) -> None:
    deadline = time.monotonic() + limit_s
    while steps(folder) < count:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline, f"{steps(folder)} of {count} steps in {limit_s} s"
        time.sleep(0.02)


def namespaces() -> str:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return done.stdout


def test_nothing_is_left_behind() -> None:
    with TwoHosts(rate_mbit=100) as hosts:
        sleeper = hosts.start_on_a(["sleep", "100"])
        assert all(host.namespace in namespaces() for host in hosts.hosts)
        folder = hosts.agent.parent
    assert sleeper.returncode is not None
    assert not any(host.namespace in namespaces() for host in hosts.hosts)
    assert not folder.exists()
    hosts.close()


def test_a_killed_job_is_not_in_the_way_of_the_next(hosts: TwoHosts) -> None:
    """Process numbers come again on a host: what a killed mpirun leaves must not meet the next."""
    with pytest.raises(subprocess.TimeoutExpired):
        hosts.run((1, 1), ["sleep", "60"], limit_s=3)
    done = hosts.run((1, 1), ["sleep", "0.5"], limit_s=30)  # of "true" PRRTE may miss the end
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["0 0 0 1", "1 0 0 1", "2 1 1 0"]),
        ({"OMPI_MCA_btl_tcp_eager_limit": "65536"}, ["0 0 0 0", "1 0 0 0", "2 0 0 0"]),
    ],
)
def test_mpi_is_given_long_messages_in_parts_between_hosts_and_nowhere_else(
    variables: dict[str, str], expected: list[str], hosts: TwoHosts
) -> None:
    done = hosts.run((2, 1), [sys.executable, "-c", FAR], limit_s=60, **variables)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == expected


def test_hosts_share_neither_names_nor_memory_nor_variables(hosts: TwoHosts) -> None:
    script = "import os, socket; print(socket.gethostname(), os.listdir('/dev/shm'), {})"
    script = script.format("os.environ.get('SOME_VARIABLE'), os.environ.get('HOROVOD_LOG_LEVEL')")
    words = [*hosts.mpirun((1, 1), {"HOROVOD_LOG_LEVEL": "debug"}), sys.executable, "-c", script]
    variables = {**hosts.launch_variables(), "SOME_VARIABLE": "here", "HOROVOD_LOG_LEVEL": "debug"}
    process = hosts.start_on_a(words, **variables)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    on_a, on_b = sorted(out.splitlines())
    assert on_a.startswith(hosts.a.name)
    assert on_b == f"{hosts.b.name} [] None debug"


def test_the_rate_holds_and_changes_while_a_job_runs(slow_hosts: TwoHosts, tmp_path: Path) -> None:
    """1 + 1 ranks exchange a tensor a step: at 200 Mbit/s at least 16 ms, at 20 ten times that."""
    job = slow_hosts.start((1, 1), [sys.executable, LOOP, tmp_path])
    wait_for_steps(job, tmp_path, 20)
    times = []
    for rate in (200, 20):
        slow_hosts.set_rate(rate)
        wait_for_steps(job, tmp_path, steps(tmp_path) + 3)  # what was on its way
        first, start = steps(tmp_path), time.monotonic()
        wait_for_steps(job, tmp_path, first + 15)
        times.append((time.monotonic() - start) / (steps(tmp_path) - first))
    fastest_s = BYTES_PER_STEP * 8 / 200e6
    assert 0.9 * fastest_s < times[0] < 4 * fastest_s
    assert 9 * fastest_s < times[1]


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_dies_ends_the_job_on_both_hosts(
    hosts: TwoHosts, tmp_path: Path, rank: int
) -> None:
    process = hosts.start((2, 2), [sys.executable, LOOP, tmp_path, str(rank)])
    process.communicate(timeout=60)
    assert process.returncode != 0
    deadline = time.monotonic() + 5
    while any(hosts.processes(host) for host in hosts.hosts):
        assert time.monotonic() < deadline, "processes of the job are left"
        time.sleep(0.05)


@pytest.mark.parametrize("milliseconds", [2, 6, 10])
def test_a_rank_that_dies_within_a_transfer_is_named(
    hosts: TwoHosts, tmp_path: Path, milliseconds: int
) -> None:
    """MPI ends such a job by itself where it sees the connection end first; it knows no rank."""
    words = [sys.executable, LOOP, tmp_path, "1", str(milliseconds)]
    process = hosts.start((1, 1), words)
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert re.search(r"\brank 1\b", out + err), out + err


def test_a_host_that_is_lost_is_named_on_every_rank_within_30_seconds(tmp_path: Path) -> None:
    with TwoHosts() as hosts:
        job = hosts.start((2, 2), [sys.executable, LOOP, tmp_path])
        wait_for_steps(job, tmp_path, 20)
        hosts.set_cable(up=False)
        cut = time.monotonic()
        files = [tmp_path / f"error-{rank}" for rank in range(4)]
        while not all(file.exists() for file in files):
            assert time.monotonic() - cut < 32, f"no error: {[f for f in files if not f.exists()]}"
            time.sleep(0.1)
    for rank, file in enumerate(files):
        when, text = file.read_text().split(" ", 1)
        assert float(when) - cut < 30
        gone = "2, 3 on host-b" if rank < 2 else "0 on host-a"
        assert f"the host of rank {gone} " in text
        assert "(seen on rank" in text


def test_the_cable_has_one_end_on_each_host(hosts: TwoHosts) -> None:
    for host in hosts.hosts:
        done = subprocess.run(
            ["ip", "-n", host.namespace, "-brief", "address", "show", "dev", DEVICE],
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"{host.address}/24" in done.stdout
