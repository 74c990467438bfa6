"""Without our launcher: srun connects the ranks, or every rank says how to do it."""

from __future__ import annotations

import re
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


def test_srun_without_pmi_is_an_error_that_says_how(site: Site, configuration: Path) -> None:
    if site.name == "Debian Open MPI":
        pytest.skip("Debian's libmpi says so itself, and ends the process")
    words = ["srun", "-n", "2", "--mpi=none", site.bin / "python", "-c", RANK]
    result = site.run(*words, SLURM_CONF=str(configuration))
    assert result.returncode != 0
    assert len(re.findall(r"RuntimeError: .*srun --mpi=pmix", result.stderr)) == 2
