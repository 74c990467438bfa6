"""Builds the ``mpirun`` command line as a list of words (no shell), for each family of MPI.

The family comes from what ``mpirun --version`` prints:

=============  ==========================================  ==============================
family         binding, more ranks than cores               variables for other hosts
=============  ==========================================  ==============================
Open MPI 5     --bind-to none, --map-by :OVERSUBSCRIBE       -x NAME
Open MPI 4     --bind-to none, --oversubscribe               -x NAME
MPICH, Intel   -bind-to none, nothing needed                 all are passed
=============  ==========================================  ==============================
"""

from __future__ import annotations

import enum
import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PASSED_NAMES = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "TZ",
    "LANG",
)
PASSED_PREFIXES = ("HOROVOD_", "OMP_", "MKL_", "OPENBLAS_", "NCCL_", "CUDA_", "TORCH_", "PYTHON")
NEVER_PASSED = re.compile(r"SECRET|TOKEN|PASSWORD|CREDENTIAL|_KEY$", re.IGNORECASE)
ROOT_VARIABLES = (
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
)
RESOURCE_MANAGERS = (
    "SLURM_JOB_ID",
    "PBS_NODEFILE",
    "LSB_MCPU_HOSTS",
    "PE_HOSTFILE",
    "COBALT_JOBID",
)


class Family(enum.StrEnum):
    """MPI implementations whose ``mpirun`` takes the same options."""

    OPEN_MPI_5 = "Open MPI 5"
    OPEN_MPI_4 = "Open MPI 4"
    MPICH = "MPICH"


class UnknownMpiError(RuntimeError):
    """``mpirun --version`` prints nothing that this table knows."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to start.

    Attributes:
        size: Number of ranks.
        command: Program and arguments.
        hosts: (name, slots or None) in order; empty: this host, or what a resource manager allots.
        output_dir: Folder for one output file per rank; "" for none.
        network_interfaces: Interfaces that MPI may use; empty: all.
        ssh_port: Port of ssh on the other hosts, or None.
        binding_args: Words instead of "bind to none", or None.
        mpi_args: More words for mpirun.
    """

    size: int
    command: Sequence[str]
    hosts: Sequence[tuple[str, int | None]] = ()
    output_dir: str = ""
    network_interfaces: Sequence[str] = ()
    ssh_port: int | None = None
    binding_args: Sequence[str] | None = None
    mpi_args: Sequence[str] = ()


def identify(version_text: str) -> Family:
    """Return the family of the ``mpirun`` that prints ``version_text``.

    Raises:
        UnknownMpiError: None that is known.
    """
    match = re.search(r"(?:Open MPI\)|OpenRTE\)|PRTE[^\n]*)\s*(\d+)\.", version_text)
    if match:
        return Family.OPEN_MPI_4 if int(match[1]) < 5 else Family.OPEN_MPI_5
    if re.search(r"HYDRA|MPICH|Intel\(R\) MPI", version_text):
        return Family.MPICH
    first = (version_text.strip().splitlines() or ["nothing"])[0]
    raise UnknownMpiError(
        f"mpirun --version prints {first!r}: expected Open MPI, MPICH or Intel MPI; start the job "
        "with your own mpirun (no launcher of ours is needed)"
    )


def ask_family(program: Path) -> Family:
    """Return the family of ``program``. **Local.**

    Raises:
        UnknownMpiError: It does not run, or prints nothing that is known.
    """
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=60
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnknownMpiError(f"{program} --version: {error}") from error
    return identify(answer)


def command_line(
    program: Path, family: Family, job: Job, environ: Mapping[str, str], cores: int
) -> list[str]:
    """Return the words that start ``job``.

    Args:
        program: The ``mpirun``.
        family: Its family.
        job: What to start.
        environ: The job's environment (``job_environment``).
        cores: Cores that this host gives to the job.
    """
    build = _hydra if family is Family.MPICH else _open_mpi
    words = [str(program), "-n", str(job.size), *build(family, job, environ, cores)]
    return [*words, *job.mpi_args, *job.command]


def _open_mpi(family: Family, job: Job, environ: Mapping[str, str], cores: int) -> list[str]:
    new = family is Family.OPEN_MPI_5
    words = ["--host", _host_list(job)] if job.hosts else []
    words += ["--bind-to", "none"] if job.binding_args is None else list(job.binding_args)
    if needs_oversubscribe(job, environ, cores):
        words += ["--map-by", ":OVERSUBSCRIBE"] if new else ["--oversubscribe"]
    if job.output_dir:
        words += ["--output", f"dir={job.output_dir}"] if new else _old_output(job)
    if job.network_interfaces:
        names = ",".join(job.network_interfaces)
        words += ["--mca", "btl_tcp_if_include", names]
        words += ["--prtemca", "prte_if_include", names] if new else _old_interfaces(names)
    if job.ssh_port is not None:
        name = ["--prtemca", "plm_ssh_args"] if new else ["--mca", "plm_rsh_args"]
        words += [*name, f"-p {job.ssh_port}"]
    if is_remote(job):
        words += [word for name in passed_variables(environ) for word in ("-x", name)]
    return words


def _old_output(job: Job) -> list[str]:
    return ["--output-filename", job.output_dir]


def _old_interfaces(names: str) -> list[str]:
    return ["--mca", "oob_tcp_if_include", names]


def _hydra(family: Family, job: Job, environ: Mapping[str, str], cores: int) -> list[str]:
    words = ["-hosts", _host_list(job)] if job.hosts else []
    words += ["-bind-to", "none"] if job.binding_args is None else list(job.binding_args)
    if job.output_dir:
        words += ["-outfile-pattern", f"{job.output_dir}/rank.%r.stdout"]
        words += ["-errfile-pattern", f"{job.output_dir}/rank.%r.stderr"]
    if job.network_interfaces:
        words += ["-iface", job.network_interfaces[0]]
    return words


def _host_list(job: Job) -> str:
    return ",".join(name if slots is None else f"{name}:{slots}" for name, slots in job.hosts)


def needs_oversubscribe(job: Job, environ: Mapping[str, str], cores: int) -> bool:
    """Return whether Open MPI would refuse ``job`` for want of cores on this host.

    Hosts given with their slots, and allocations of a resource manager, decide for themselves.
    """
    if job.hosts or any(name in environ for name in RESOURCE_MANAGERS):
        return False
    return job.size > cores


def is_remote(job: Job) -> bool:
    """Return whether ``job`` uses another host than this one."""
    here = {"localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()}
    return any(name not in here for name, _ in job.hosts)


def passed_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that ranks on other hosts need, sorted; nothing that looks secret."""
    return sorted(
        name
        for name in environ
        if (name in PASSED_NAMES or name.startswith(PASSED_PREFIXES))
        and not NEVER_PASSED.search(name)
    )


def launcher_environment(environ: Mapping[str, str], uid: int) -> dict[str, str]:
    """Return ``environ`` with root's permission to run, for root only."""
    return {**environ, **({name: "1" for name in ROOT_VARIABLES} if uid == 0 else {})}


def physical_cores(sys_cpu: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the number of cores (not hardware threads) that this process may use. **Local.**"""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = sys_cpu / f"cpu{cpu}" / "topology"
        try:
            names = ("physical_package_id", "core_id")
            cores.add(tuple((topology / name).read_text().strip() for name in names))
        except OSError:
            cores.add((str(cpu),))
    return len(cores)
