"""From a job to sentences: V1 to V4 of the users' cases."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from e2e.commands import WITH_TESTS, Commands, wait_until

LATE = """
import time, numpy
from e2e import on_arrays as hvd
hvd.init()
for step in range(20):
    if hvd.rank() == 1:
        time.sleep(0.05)
    hvd.allreduce_(numpy.ones(1000), "x")
"""

STEPS = 60
MANY_TENSORS = """
import sys, time, numpy
from e2e import on_arrays as hvd
from horovod.common.reduce_ops import Max
from horovod.tuning import autotuning
hvd.init()
tensors = [numpy.ones(100) for _ in range(161)]
start = time.monotonic()
for step in range(int(sys.argv[2])):
    hvd.wait([hvd.start(one, f"t.{n}", Max) for n, one in enumerate(tensors)], tensors)
    autotuning.step()
if hvd.rank() == 0:
    open(sys.argv[1], "w").write(str(time.monotonic() - start))
hvd.shutdown()
"""

OVER_TCP = """
import os, numpy
from e2e import on_arrays as hvd
from horovod.common import arrays
os.environ["HOROVOD_HOSTNAME"] = "host-" + os.environ["HOROVOD_RANK"]
hvd.init()
for step in range(10):
    hvd.allreduce_(numpy.ones(1000), "x")
    arrays.allgather(numpy.ones(1000), "y")
    arrays.broadcast_all([numpy.ones(1000)], 0, ["z"])
"""


def analysed(commands: Commands, path: Path) -> dict:
    result = commands.run("autotune", "timeline", path, "--format", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_slow_rank_is_named(commands: Commands) -> None:
    path = commands.folder / "t.json"
    script = [sys.executable, "-c", LATE]
    job = commands.run("horovodrun", "-np", "2", "--timeline-filename", path, *script, **WITH_TESTS)
    assert job.returncode == 0, job.stderr
    content = analysed(commands, path)
    late = {finding["key"]: finding["text"] for finding in content["findings"]}["late_rank"]
    assert late.startswith("Rank 1 is the slow one")
    assert content["late_ranks"]["1"]["late_us"] > 15 * 50_000
    assert content["whole"] and content["odd_events"] == 0


def test_a_killed_job_leaves_a_valid_timeline(commands: Commands) -> None:
    path = commands.folder / "t.json"
    words = ["mpirun", "-np", "2", "--bind-to", "none", *commands.arrays_job(100_000)]
    process = commands.start(*words, HOROVOD_TIMELINE=str(path))
    wait_until(lambda: path.exists() and path.stat().st_size > 1_000_000)
    os.kill(int((commands.folder / "pid-0").read_text()), signal.SIGKILL)
    process.wait(20)
    assert len(json.loads(path.read_text())) > 1000
    assert analysed(commands, path)["late_ranks"]


def test_a_folder_that_is_missing_costs_one_line_only(commands: Commands) -> None:
    job = commands.run(*commands.arrays_job(3), HOROVOD_TIMELINE="/no/such/folder/t.json")
    assert job.returncode == 0
    assert job.stderr.count("/no/such/folder/t.json") == 1


def test_a_timeline_costs_no_multiple_of_the_jobs_time(commands: Commands) -> None:
    """161 tensors a step; the fault that users reported was a factor of 200."""
    path = commands.folder / "t.json"
    seconds = {}
    for name, environ in (("off", {}), ("on", {"HOROVOD_TIMELINE": str(path)})):
        script = ["-c", MANY_TENSORS, commands.folder / name, str(STEPS)]
        job = commands.run(
            "horovodrun", "-np", "2", sys.executable, *script, **environ, **WITH_TESTS
        )
        assert job.returncode == 0, job.stderr
        seconds[name] = float((commands.folder / name).read_text())
    content = analysed(commands, path)
    assert content["whole"] and content["odd_events"] == content["dropped_events"] == 0
    assert content["steps"]["count"] >= STEPS
    assert {tensor["count"] for tensor in content["tensors"].values()} == {STEPS}
    assert len(content["tensors"]) == 161
    assert seconds["on"] < 5 * seconds["off"] + 1


def test_a_job_without_mpi_says_what_moves_its_data(commands: Commands) -> None:
    """Ranks of one host share memory; these are told that they are on two."""
    path = commands.folder / "t.json"
    words = ["-np", "2", "--timeline-filename", path, sys.executable, "-c", OVER_TCP]
    job = commands.run("horovodrun", "--gloo", *words, **WITH_TESTS)
    assert job.returncode == 0, job.stderr
    names = {event.get("name", "") for event in json.loads(path.read_text())}
    assert {"TCP_ALLREDUCE", "TCP_ALLGATHER", "TCP_BCAST"} <= names
    assert [name for name in names if name.startswith(("MPI_", "SHM_"))] == []
    content = analysed(commands, path)
    assert content["whole"] and content["odd_events"] == 0
    assert {tensor["count"] for tensor in content["tensors"].values()} == {10}
