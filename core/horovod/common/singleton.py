"""Was this process started as one of several, and does MPI know? Pure functions.

A wrong launcher (another MPI's mpirun, srun without PMI, torchrun) starts N processes that MPI
sees as N jobs of one rank each; they would train N separate models and "work". An allocation, on
the other hand, sets SLURM_NTASKS also for a single process that is legitimately run inside it: a
variable counts only when the launcher evidently started *this* process.
"""

from __future__ import annotations

from collections.abc import Mapping


def launched_size(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """Return (number of processes, variable) that the launcher of this process claims, or None.

    **Local.** The innermost launcher wins: an mpirun inside a Slurm step is judged by its own
    variables.
    """
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"):
        if _number(environ, variable) is not None:
            return _claim(environ, variable)
    if (_number(environ, "PMIX_RANK") or 0) > 0:
        return (_number(environ, "PMIX_RANK") or 0) + 1, "PMIX_RANK"
    if _in_slurm_step(environ):
        return _claim(environ, "SLURM_STEP_NUM_TASKS") or _claim(environ, "SLURM_NTASKS")
    if (_number(environ, "RANK") or 0) > 0 or "TORCHELASTIC_RUN_ID" in environ:
        return _claim(environ, "WORLD_SIZE")
    return None


def singleton_error(mpi_size: int, environ: Mapping[str, str]) -> str | None:
    """**Local.** Return why this process must not run as a job of ``mpi_size`` ranks, or None."""
    claim = launched_size(environ)
    if claim is None or mpi_size > 1 or claim[0] <= 1:
        return None
    number, variable = claim
    least = "at least " if variable == "PMIX_RANK" else ""
    return (
        f"MPI sees 1 rank, but {variable}={environ[variable]} says that {least}{number} processes "
        "were started: they would train separately. Start the job with the mpirun of the MPI that "
        "mpi4py uses (horovodrun does), with srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
    )


def _in_slurm_step(environ: Mapping[str, str]) -> bool:
    return (_number(environ, "SLURM_PROCID") or 0) > 0 or "SLURM_STEP_ID" in environ


def _claim(environ: Mapping[str, str], variable: str) -> tuple[int, str] | None:
    number = _number(environ, variable)
    return None if number is None else (number, variable)


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    try:
        return int(environ[variable])
    except (KeyError, ValueError):
        return None
