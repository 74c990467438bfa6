"""Builds the ``mpirun`` command line as a list of words (no shell), for each family of MPI.

The family comes from what ``mpirun --version`` prints:

===========  ===============================  ==================  ==============================
family       binding, more ranks than cores   other hosts get      ssh, interfaces
===========  ===============================  ==================  ==============================
Open MPI 5   --bind-to none,                  -x NAME             --prtemca plm_ssh_args,
             --map-by :OVERSUBSCRIBE                              prte_if_include
Open MPI 4   --bind-to none, --oversubscribe  -x NAME             --mca plm_rsh_args,
                                                                  oob_tcp_if_include
MPICH        -bind-to none                    all variables       ~/.ssh/config, -iface
Intel MPI    -genv I_MPI_PIN 0                all variables       ~/.ssh/config, -iface
===========  ===============================  ==================  ==============================

Output files are no matter of mpirun's: ``rank_process`` writes them.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
PASSED_PREFIXES = (
    "HOROVOD_",
    "AUTOTUNE_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "NCCL_",
    "CUDA_",
    "TORCH_",
    "PYTHON",
)
NEVER_PASSED = re.compile(r"SECRET|TOKEN|PASSWORD|CREDENTIAL|_KEY$", re.IGNORECASE)
ROOT_VARIABLES = (
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
)
PLACE_IN_ANOTHER_JOB = re.compile(
    r"OMPI_(?!MCA_|ALLOW_)|PMIX_(?!MCA_)|PMI2?_|PRTE_(?!MCA_|ALLOW_)|HYDI_|MPI_LOCAL"
    r"|TORCHELASTIC_|(LOCAL_|GROUP_)?RANK$|HOROVOD_GLOO_RENDEZVOUS_"
    r"|HOROVOD_ELASTIC(_WORKER)?$"
)
_OTHER_AGENT = re.compile(
    r"plm_(ssh|rsh)_agent|^HYDRA_LAUNCHER|^I_MPI_HYDRA_BOOTSTRAP|^--?(launcher|bootstrap)"
)
"""Variables and options by which MPI starts processes on other hosts without ssh."""
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
    INTEL_MPI = "Intel MPI"


class UnknownMpiError(RuntimeError):
    """``mpirun --version`` prints nothing that this table knows."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to start.

    Attributes:
        size: Number of ranks.
        command: Program and arguments.
        hosts: ([user@]name, slots or None) in order; empty: this host, or what a resource manager
            allots.
        network_interfaces: Interfaces that MPI may use; empty: all.
        ssh_port: Port of ssh on the other hosts, or None.
        ssh_identity_file: Key for ssh to the other hosts; "" for ssh's own choice.
        tcp: MPI uses TCP, whatever else the network can.
        binding_args: Words instead of "bind to none", or None.
        mpi_args: More words for mpirun.
    """

    size: int
    command: Sequence[str]
    hosts: Sequence[tuple[str, int | None]] = ()
    network_interfaces: Sequence[str] = ()
    ssh_port: int | None = None
    ssh_identity_file: str = ""
    tcp: bool = False
    binding_args: Sequence[str] | None = None
    mpi_args: Sequence[str] = ()


def identify(version_text: str) -> Family:
    """Return the family of the ``mpirun`` that prints ``version_text``.

    Raises:
        UnknownMpiError: None that is known.
    """
    if match := re.search(r"Open MPI\)?\s*v?(\d+)\.", version_text):
        return Family.OPEN_MPI_4 if int(match[1]) < 5 else Family.OPEN_MPI_5
    if re.search(r"PRR?TE", version_text):  # the run-time of Open MPI from 5 on, by its own number
        return Family.OPEN_MPI_5
    if re.search(r"OpenRTE|ORTE", version_text):  # until 4
        return Family.OPEN_MPI_4
    if "Intel(R) MPI" in version_text:
        return Family.INTEL_MPI
    if re.search(r"HYDRA|MPICH", version_text):
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

    Raises:
        ValueError: An option that this family has no words for, or no way to another host.
    """
    hosts, user = split_users(job.hosts)
    job = replace(job, hosts=hosts)
    check_way_to_hosts(job, environ)
    own = ["-n", str(job.size)]
    if family in (Family.OPEN_MPI_4, Family.OPEN_MPI_5):
        # The user's words come first: Open MPI 5.0.11 crashes on "-v" behind "--bind-to none".
        own += _open_mpi(family, job, user, environ, cores)
        return [str(program), *job.mpi_args, *own, *job.command]
    own += _hydra(family, job, user, environ, cores)
    return [str(program), *own, *job.mpi_args, *job.command]


def split_users(
    hosts: Sequence[tuple[str, int | None]],
) -> tuple[list[tuple[str, int | None]], str]:
    """Return ``hosts`` without their users, and the user for ssh ("" for ssh's own choice).

    Raises:
        ValueError: Users differ: one command line of ssh serves all hosts.
    """
    split = [(name.rpartition("@"), slots) for name, slots in hosts]
    users = {user for (user, _, name), _ in split if not is_here(name)}
    if len(users) > 1:
        raise ValueError(
            f"-H: expected one user for all other hosts, got {sorted(users)}; put each host's "
            "'User' under 'Host' in ~/.ssh/config and leave it out here"
        )
    return [(name, slots) for (_, _, name), slots in split], "".join(users)


def _open_mpi(
    family: Family, job: Job, user: str, environ: Mapping[str, str], cores: int
) -> list[str]:
    new = family is Family.OPEN_MPI_5
    words = ["--host", _host_list(job)] if job.hosts else []
    words += ["--bind-to", "none"] if job.binding_args is None else list(job.binding_args)
    if needs_oversubscribe(job, environ, cores):
        words += ["--map-by", ":OVERSUBSCRIBE"] if new else ["--oversubscribe"]
    if job.tcp:
        words += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
    if job.network_interfaces:
        names = ",".join(job.network_interfaces)
        words += ["--mca", "btl_tcp_if_include", names]
        words += ["--prtemca", "prte_if_include"] if new else ["--mca", "oob_tcp_if_include"]
        words += [names]
    if ssh := ssh_words(job, user):
        words += ["--prtemca", "plm_ssh_args"] if new else ["--mca", "plm_rsh_args"]
        words += [" ".join(ssh)]
    if is_remote(job):
        words += [word for name in passed_variables(environ) for word in ("-x", name)]
    return words


def ssh_words(job: Job, user: str = "") -> list[str]:
    """Return the options of ssh to the other hosts; ``user`` is "" for ssh's own choice."""
    login = ["-l", user] if user else []
    port = [] if job.ssh_port is None else ["-p", str(job.ssh_port)]
    key = ["-i", job.ssh_identity_file] if job.ssh_identity_file else []
    return [*login, *port, *key]


def _hydra(
    family: Family, job: Job, user: str, environ: Mapping[str, str], cores: int
) -> list[str]:
    """Return the words for MPICH and Intel MPI.

    Raises:
        ValueError: An option that this family has no words for.
    """
    if ssh_words(job, user):
        raise ValueError(
            f"-p, -i, -H USER@HOST: {family} takes the port, the key and the user of ssh from "
            "~/.ssh/config only: put 'Port', 'IdentityFile' and 'User' under 'Host' there"
        )
    intel = family is Family.INTEL_MPI
    words = (_intel_hosts(job) if intel else ["-hosts", _host_list(job)]) if job.hosts else []
    if job.binding_args is not None:
        words += job.binding_args
    else:
        words += ["-genv", "I_MPI_PIN", "0"] if intel else ["-bind-to", "none"]
    if job.tcp:
        name = ("FI_PROVIDER", "tcp") if intel else ("MPIR_CVAR_NOLOCAL", "1")
        words += ["-genv", *name]
    if job.network_interfaces:
        words += ["-iface", job.network_interfaces[0]]
    return words


def _intel_hosts(job: Job) -> list[str]:
    names = ",".join(name for name, _ in job.hosts)
    slots = {slots for _, slots in job.hosts}
    if len(slots) > 1:
        raise ValueError(
            "-H, --hostfile: with Intel MPI all hosts must have the same number of slots; else use "
            "--mpi-args '-machinefile FILE' with lines HOST:SLOTS"
        )
    each = slots.pop()
    return ["-hosts", names] if each is None else ["-hosts", names, "-ppn", str(each)]


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
    return not all(is_here(name.rpartition("@")[2]) for name, _ in job.hosts)


def check_way_to_hosts(job: Job, environ: Mapping[str, str]) -> None:
    """Check that other hosts can be reached: by ssh, unless something else is named. **Local.**

    Raises:
        ValueError: There is no ssh.
    """
    away = next((name for name, _ in job.hosts if not is_here(name)), None)
    names = [*environ, *job.mpi_args]
    other_way = any(name in environ for name in RESOURCE_MANAGERS) or any(
        _OTHER_AGENT.search(name) for name in names
    )
    if away is None or other_way:
        return
    path = environ.get("PATH")
    if not any(shutil.which(program, path=path) for program in ("ssh", "rsh")):
        raise ValueError(
            f"host {away} is reached by ssh, which is not installed here (not on PATH): install an "
            "OpenSSH client, or start from a job of your queue"
        )


def is_here(host: str) -> bool:
    """Return whether ``host`` is a name of this one. **Local.**"""
    name = socket.gethostname()
    return host in {"localhost", "127.0.0.1", "::1", name, name.split(".")[0], socket.getfqdn()}


def passed_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that ranks on other hosts need, sorted; nothing that looks secret."""
    return sorted(
        name
        for name in environ
        if (name in PASSED_NAMES or name.startswith(PASSED_PREFIXES))
        and not NEVER_PASSED.search(name)
    )


def launcher_environment(environ: Mapping[str, str], uid: int) -> dict[str, str]:
    """Return the environment of mpirun.

    Root gets the permission to run.
    """
    roots = {name: "1" for name in ROOT_VARIABLES} if uid == 0 else {}
    return {**outside_of_jobs(environ), **roots}


def outside_of_jobs(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` without what tells a process its place in a job.

    A notebook whose kernel is a job of one rank can start another job.
    """
    return {name: text for name, text in environ.items() if not PLACE_IN_ANOTHER_JOB.match(name)}


def equal_hosts(job: Job) -> int:
    """Return how many hosts run equally many ranks, 0 where that is not known beforehand."""
    slots = {number for _, number in job.hosts}
    count = len({name for name, _ in job.hosts})
    filled = len(slots) == 1 and count == len(job.hosts) and count * (slots.pop() or 0) == job.size
    return count if filled else 0


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
