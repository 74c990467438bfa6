"""What a queue says about the job: how many ranks it has room for, and who starts them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from horovod.runner.hosts import Hosts

_INTERACTIVE_STEP = "4294967290"
"""The step in which salloc's own shell runs (SLURM_INTERACTIVE_STEP in slurm.h)."""


def find_ranks(hosts: Hosts, environ: Mapping[str, str]) -> int | None:
    """Return the number of ranks for a command line without ``-np``, or None where nothing says it.

    The hosts' slots come first, then what Slurm, LSF, PBS or Grid Engine has allotted. **Local.**
    """
    if hosts:
        slots = [number for _, number in hosts]
        return sum(number or 0 for number in slots) if all(slots) else None
    for name in ("SLURM_NTASKS", "LSB_DJOB_NUMPROC", "NSLOTS"):
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    lsf = environ.get("LSB_MCPU_HOSTS", "").split()[1::2]
    if lsf and all(number.isdecimal() for number in lsf):
        return sum(map(int, lsf))
    return _lines(environ.get("PBS_NODEFILE", ""))


def _lines(file: str) -> int | None:
    try:
        return len(Path(file).read_text(encoding="utf-8").split()) or None
    except (OSError, ValueError):
        return None


def why_misplaced(environ: Mapping[str, str]) -> str:
    """Return why this process must not launch a job, "" where it may. **Local.**

    It must not be one of several that a parallel launcher started (``srun -n 4 horovodrun ...``):
    each would start a whole job.
    """
    if environ.get("SLURM_STEP_ID") == _INTERACTIVE_STEP:
        return ""
    for name, launcher in (
        ("OMPI_COMM_WORLD_SIZE", "mpirun"),
        ("PMI_SIZE", "mpiexec"),
        ("SLURM_STEP_NUM_TASKS", "srun"),
    ):
        number = environ.get(name, "")
        if number.isdecimal() and int(number) > 1:
            return (
                f"{launcher} has started {number} launchers ({name}={number}), each of which would "
                f"start a whole job: leave {launcher} out, or start the script itself: "
                f"'{launcher} ... python train.py'"
            )
    return ""
