"""Two hosts without MPI: horovodrun over ssh, torchrun on each host, srun's variables.

There is no sshd and no Slurm here: a program called ssh is the hosts' launch agent, which passes no
variables on, and processes get the variables that srun sets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.hosts import BIN, DEVICE, PATH, Host, TwoHosts

RANK = """
import json, os, socket, sys, torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.full((300000,), 1.0 + hvd.rank()), op=hvd.Sum)
answer = {"rank": hvd.rank(), "host": socket.gethostname(), "sum": total.unique().tolist()}
answer["place"] = [hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank()]
answer |= {"mpi": "mpi4py" in sys.modules, "mpi_enabled": hvd.mpi_enabled()}
os.write(1, (json.dumps(answer) + "\\n").encode())
"""
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do case "$1" in -o|-p|-i) shift 2 ;; *) shift ;; esac; done
exec AGENT "$@"
"""


def ranks_in(output: str) -> list[dict[str, object]]:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return sorted(map(json.loads, lines), key=lambda rank: rank["rank"])


def check(hosts: TwoHosts, output: str, per_host: int) -> None:
    """Check the answers of ``per_host`` ranks on each host."""
    size = 2 * per_host
    ranks = ranks_in(output)
    assert [rank["rank"] for rank in ranks] == list(range(size))
    names = [host.name for host in hosts.hosts for _ in range(per_host)]
    assert [rank["host"] for rank in ranks] == names
    assert [rank["sum"] for rank in ranks] == [[size * (size + 1) / 2]] * size
    assert [rank["place"] for rank in ranks] == [
        [size, rank % per_host, per_host, rank // per_host] for rank in range(size)
    ]
    assert not any(rank["mpi"] or rank["mpi_enabled"] for rank in ranks)


def start(host: Host, words: list[str | Path], **environ: str) -> subprocess.Popen[str]:
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return subprocess.Popen(
        host.inside([str(word) for word in words]),
        env={**kept, "PATH": PATH, "OMP_NUM_THREADS": "1", **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outputs(processes: list[subprocess.Popen[str]]) -> str:
    """Return what the processes print; all of them end well."""
    try:
        answers = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    assert codes == [0] * len(codes), [err for _, err in answers]
    return "".join(out for out, _ in answers)


@pytest.mark.parametrize("interface", [[], ["--network-interface", DEVICE]])
def test_horovodrun_reaches_the_other_host_by_ssh(
    hosts: TwoHosts, tmp_path: Path, interface: list[str]
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.replace("AGENT", str(hosts.agent)))
    ssh.chmod(0o755)
    words = [BIN / "horovodrun", "--gloo", "-np", "4", "-H", hosts.places((2, 2)), *interface]
    path = os.pathsep.join([str(tmp_path), PATH])
    process = start(hosts.a, [*words, sys.executable, "-c", RANK], PATH=path)
    check(hosts, outputs([process]), per_host=2)


def test_srun_starts_a_task_on_each_host(hosts: TwoHosts) -> None:
    names = ",".join(host.name for host in hosts.hosts)
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": names}
    step |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    processes = [
        start(host, [sys.executable, "-c", RANK], **step, SLURM_PROCID=str(rank), SLURM_LOCALID="0")
        for rank, host in enumerate(hosts.hosts)
    ]
    check(hosts, outputs(processes), per_host=1)


def test_torchrun_starts_ranks_on_each_host(hosts: TwoHosts, tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    words = [BIN / "torchrun", "--nnodes", "2", "--nproc-per-node", "2"]
    words += ["--master-addr", hosts.a.address, "--master-port", "29500"]
    processes = [
        start(host, [*words, "--node-rank", str(number), script], GLOO_SOCKET_IFNAME=DEVICE)
        for number, host in enumerate(hosts.hosts)
    ]
    check(hosts, outputs(processes), per_host=2)
