"""The same script by every launcher: equal weights; and what each says when it cannot work.

There is no Slurm and no Kubernetes here: processes get the variables that those set.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import horovod
from e2e.commands import WEIGHTS_JOB, Commands, wait_until
from e2e.processes import alive, free_port

TORCHRUN = Path(sys.executable).with_name("torchrun")
FOREVER = "1000000000"


def slurm(rank: int, size: int) -> dict[str, str]:
    """Return what srun sets for a task of a step on one node (Slurm 22.05)."""
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": str(size),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": str(size),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_STEP_NODELIST": "localhost",
    }


def torchs(rank: int, size: int, port: int) -> dict[str, str]:
    """Return what launchers for torch set, and the Kubernetes example does."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }


def start_ranks(
    commands: Commands, variables: Callable[[int], dict[str, str]], *words: str
) -> list[subprocess.Popen[str]]:
    """Start two processes as a launcher does that only sets ``variables``."""
    words = (sys.executable, str(WEIGHTS_JOB), str(commands.folder), *words)
    return [commands.start(*words, **variables(rank)) for rank in (0, 1)]


def finish(process: subprocess.Popen[str], limit_s: float = 60) -> str:
    _, err = process.communicate(timeout=limit_s)
    assert process.returncode == 0, err
    return err


def check(ranks: list[dict[str, Any]], by_mpirun: list[dict[str, Any]]) -> None:
    """Check that the ranks did without MPI what MPI's do."""
    assert [rank["mpi"] for rank in by_mpirun] == [[True, True]] * 2
    assert [rank["mpi"] for rank in ranks] == [[False, False]] * 2
    assert [rank["gloo"] for rank in ranks] == [[True, True]] * 2
    assert [rank["place"] for rank in ranks] == [rank["place"] for rank in by_mpirun]
    assert [rank["place"] for rank in ranks] == [[0, 2, 0, 2, 1], [1, 2, 1, 2, 1]]
    assert ranks[0]["weights"] == ranks[1]["weights"] == by_mpirun[0]["weights"]


def test_horovodrun_without_mpi(commands: Commands, by_mpirun: list[dict[str, Any]]) -> None:
    words = ["-np", "2", "-H", "localhost:2", "--network-interface", "lo", "--start-timeout=50"]
    result = commands.run(
        *("horovodrun", "--gloo", *words, "--gloo-timeout-seconds", "50"),
        *(sys.executable, WEIGHTS_JOB, commands.folder),
    )
    assert (result.returncode, result.stderr) == (0, "")
    check(commands.ranks(2), by_mpirun)


def test_torchrun_beside_the_scripts_own_torch_distributed(
    commands: Commands, by_mpirun: list[dict[str, Any]]
) -> None:
    result = commands.run(
        *(TORCHRUN, "--standalone", "--nproc-per-node", "2", WEIGHTS_JOB, commands.folder),
        WITH_TORCH_DISTRIBUTED="1",
    )
    assert result.returncode == 0, result.stderr
    check(commands.ranks(2), by_mpirun)
    assert [rank["torch_total"] for rank in commands.ranks(2)] == [2.0, 2.0]


def test_torchruns_ranks_meet_anew_when_it_restarts_them(commands: Commands) -> None:
    """By the static rendezvous, which agents on several hosts use where they are given a place."""
    code = (
        "import os, sys, torch, horovod.torch as hvd; hvd.init()\n"
        "total = hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist()\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os._exit(3)\n"
        "os.write(1, f'{hvd.rank()} {total}\\n'.encode())\n"
    )
    script = commands.folder / "restarted.py"
    script.write_text(code)
    place = ["--master-addr", "localhost", "--master-port", str(free_port())]
    words = ["--nproc-per-node", "2", "--max-restarts", "1"]
    result = commands.run(TORCHRUN, *place, *words, script)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split("\n"))[1:] == ["0 [2.0, 2.0, 2.0]", "1 [2.0, 2.0, 2.0]"]


def test_srun_without_mpi(commands: Commands, by_mpirun: list[dict[str, Any]]) -> None:
    for process in start_ranks(commands, lambda rank: slurm(rank, 2)):
        finish(process)
    check(commands.ranks(2), by_mpirun)


@pytest.mark.parametrize("pmi", [["PMI_RANK", "PMI_SIZE"], ["PMIX_RANK"]], ids=["pmi2", "pmix"])
def test_ranks_of_srun_that_mpi_does_not_see_do_without_it_and_say_so(
    commands: Commands, by_mpirun: list[dict[str, Any]], pmi: list[str]
) -> None:
    """Of another MPI's PMI, or a PMIx that this one cannot talk to: each is alone in its MPI."""

    def variables(rank: int) -> dict[str, str]:
        return {**slurm(rank, 2), **dict(zip(pmi, (str(rank), "2"), strict=False))}

    said = "".join(finish(process) for process in start_ranks(commands, variables))
    assert said.count("MPI sees 1 of the 2 ranks that srun has started") == 1
    ranks = commands.ranks(2)
    assert [rank["mpi"][0] for rank in ranks] == [False, False]
    assert [rank["place"] for rank in ranks] == [rank["place"] for rank in by_mpirun]
    assert ranks[0]["weights"] == ranks[1]["weights"] == by_mpirun[0]["weights"]


def test_variables_as_in_the_kubernetes_example(
    commands: Commands, by_mpirun: list[dict[str, Any]]
) -> None:
    port = free_port()
    key = {"HOROVOD_SECRET_KEY": "0123456789abcdef", "WITH_TORCH_DISTRIBUTED": "1"}
    for process in start_ranks(commands, lambda rank: {**torchs(rank, 2, port), **key}):
        finish(process)
    check(commands.ranks(2), by_mpirun)


def test_a_machine_without_an_mpi_says_once_that_it_does_without(
    commands: Commands, by_mpirun: list[dict[str, Any]]
) -> None:
    (commands.folder / "empty").touch()
    none = {"MPI4PY_LIBMPI": str(commands.folder / "empty")}
    words = ["-np", "2", sys.executable, WEIGHTS_JOB, commands.folder]
    result = commands.run("horovodrun", *words, **none)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("\n") == 1
    assert "the ranks start without MPI, as with --gloo" in result.stderr
    check(commands.ranks(2), by_mpirun)
    refused = commands.run("horovodrun", "--mpi", *words, **none)
    assert refused.returncode == 1
    assert "--mpi" in refused.stderr and "no MPI library can be used here" in refused.stderr


def test_a_rank_that_is_killed_ends_the_job_without_mpi(commands: Commands) -> None:
    words = ["--gloo", "-np", "2", sys.executable, WEIGHTS_JOB, commands.folder, FOREVER]
    process = commands.start("horovodrun", *words)
    files = [commands.folder / f"pid-{rank}" for rank in (0, 1)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    pids = [int(file.read_text()) for file in files]
    os.kill(pids[1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert re.search(r"rank 1 on \S+ was the first to fail: ended by signal 9 \(SIGKILL\)", err)
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)


def test_where_nobody_watches_a_killed_rank_makes_the_other_raise(commands: Commands) -> None:
    port = free_port()
    ranks = start_ranks(commands, lambda rank: torchs(rank, 2, port), FOREVER)
    files = [commands.folder / f"pid-{rank}" for rank in (0, 1)]
    wait_until(lambda: all(file.exists() for file in files))
    ranks[1].kill()
    _, err = ranks[0].communicate(timeout=60)
    assert ranks[0].returncode not in (0, -signal.SIGKILL)
    assert "rank 1" in err


def test_an_interface_that_does_not_exist_is_an_error_of_launcher_and_ranks(
    commands: Commands,
) -> None:
    words = ["--gloo", "-np", "2", "--network-interface", "nix0", "true"]
    result = commands.run("horovodrun", *words)
    assert result.returncode == 2
    assert "--network-interfaces nix0: this host has no such interface" in result.stderr
    port = free_port()
    wrong = {"HOROVOD_GLOO_IFACE": "nix0"}
    for process in start_ranks(commands, lambda rank: {**torchs(rank, 2, port), **wrong}):
        _, err = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "nix0" in err.strip().splitlines()[-1]


def test_variables_that_disagree_are_one_sentence(commands: Commands) -> None:
    stale = {"RANK": "0", "WORLD_SIZE": "1"}
    code = "import horovod.torch as hvd; hvd.init(); print(hvd.size())"
    words = [sys.executable, "-c", code]
    step = {**slurm(1, 2), **stale}
    result = commands.run(*words, **step)
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert "RANK=0, WORLD_SIZE=1" in last and "SLURM_PROCID=1" in last and "disagree" in last
    shown = [sys.executable, "-c", "import os; print(os.environ.get('RANK'))"]
    for way in ("--mpi", "--gloo"):  # our launcher knows that it has not set it
        result = commands.run("horovodrun", way, "-np", "2", *shown, **stale)
        assert (result.returncode, result.stdout.count("None")) == (0, 2), result.stderr


def results(scale: float) -> tuple[int, list[float]]:
    import torch

    import horovod.torch as hvd

    hvd.init()
    total = hvd.allreduce(torch.full((2,), scale * (1 + hvd.rank())), op=hvd.Sum).tolist()
    assert not hvd.mpi_enabled()
    return hvd.rank(), total


def test_horovod_run_without_mpi_returns_results_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of Ignite's fixture."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = horovod.run(results, args=(2.0,), num_proc=2, use_gloo=True, hosts=None)
    assert found == [(0, [6.0, 6.0]), (1, [6.0, 6.0])]
