"""One process per MPI job although several were started is an error; a lone process never is."""

from __future__ import annotations

import pytest

from horovod.common.singleton import singleton_error

SLURM_ALLOCATION = {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_COMM_WORLD_SIZE": "2"},
        {"PMI_SIZE": "4", "PMI_RANK": "0"},
        {"PMIX_RANK": "1"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "2"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"},
        {"WORLD_SIZE": "2", "RANK": "1"},
        {"WORLD_SIZE": "2", "RANK": "0", "TORCHELASTIC_RUN_ID": "x"},
    ],
)
def test_several_processes_that_mpi_does_not_see(environ: dict[str, str]) -> None:
    error = singleton_error(1, environ)
    assert error is not None
    assert "MPI sees 1 rank" in error
    assert "mpirun" in error
    assert "srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)" in error
    assert singleton_error(4, environ) is None


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"PMIX_RANK": "0"},
        SLURM_ALLOCATION,
        SLURM_ALLOCATION | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
        SLURM_ALLOCATION | {"SLURM_STEP_ID": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"WORLD_SIZE": "2"},
        {"WORLD_SIZE": "2", "RANK": "0"},
        {"PMI_SIZE": "many"},
    ],
)
def test_a_process_that_is_alone(environ: dict[str, str]) -> None:
    assert singleton_error(1, environ) is None
