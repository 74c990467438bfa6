"""Without our launcher: srun connects the ranks by MPI, or they do without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sites.sites import Site
from sites.slurm import slurm, why_not
from sites.test_matrix import RANK, answers

pytestmark = pytest.mark.timeout(900)  # the first test of a site builds it

PMI = {"Debian Open MPI": "pmix", "mpich wheel": "pmi2"}


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if reason := why_not():
        pytest.skip(reason)
    with slurm(tmp_path_factory.mktemp("slurm")) as file:
        yield file


def test_srun_starts_a_job_of_two_ranks(site: Site, configuration: Path) -> None:
    if site.name not in PMI:
        pytest.skip("the wheel's PMIx is newer than the one of Debian's Slurm")
    words = ["srun", "-n", "2", f"--mpi={PMI[site.name]}", site.bin / "python", "-c", RANK]
    result = site.run(*words, SLURM_CONF=str(configuration))
    assert result.returncode == 0, result.stderr
    assert [(rank["rank"], rank["sum"]) for rank in answers(result.stdout)] == [
        (0, [3.0] * 5),
        (1, [3.0] * 5),
    ]


def test_srun_without_pmi_needs_no_mpi(site: Site, configuration: Path) -> None:
    words = ["srun", "-n", "2", "--mpi=none", site.bin / "python", "-c", RANK]
    result = site.run(*words, SLURM_CONF=str(configuration))
    assert result.returncode == 0, result.stderr
    assert [(rank["rank"], rank["sum"]) for rank in answers(result.stdout)] == [
        (0, [3.0] * 5),
        (1, [3.0] * 5),
    ]
