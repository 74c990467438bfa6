"""The wheel under Intel MPI, which has MPICH's binary interface: runtime and launcher."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from autotune.result import read_result
from sites.sites import Site, build_site, must, run, site_environment
from sites.test_matrix import FAILING, FOREIGN, HOSTS, RANK, SETTINGS, answers

pytestmark = pytest.mark.timeout(900)  # the first test may build the site


class IntelSite:
    """Programs of ``site`` with Intel's libmpi and launcher in ``prefix``."""

    def __init__(self, site: Site, prefix: Path) -> None:
        self.bin, self._prefix = site.bin, prefix

    def run(self, *words: str | Path):
        environ = site_environment(self._prefix / "bin", self.bin)  # as a module puts it first
        lib = str(self._prefix / "lib")
        environ |= {"LD_LIBRARY_PATH": lib, "I_MPI_ROOT": str(self._prefix), "I_MPI_FABRICS": "shm"}
        return run(words, environ | {"MPI4PY_LIBMPI": f"{lib}/libmpi.so.12"}, 60)


@pytest.fixture(scope="module")
def intel(top: Path) -> IntelSite:
    site, prefix = build_site("mpich wheel", top), top / "intel-mpi"
    if not (prefix / "bin/mpiexec.hydra").exists():
        must([sys.executable, "-m", "venv", prefix], site_environment())
        must([prefix / "bin/python", "-m", "pip", "install", "-q", "impi-rt"], site_environment())
    return IntelSite(site, prefix)


def test_horovodrun_starts_two_ranks_that_add_up(intel: IntelSite) -> None:
    result = intel.run("horovodrun", "-np", "2", "--verbose", intel.bin / "python", "-c", RANK)
    assert result.returncode == 0, result.stderr
    assert "horovodrun: (Intel MPI) " in result.stderr and "-genv I_MPI_PIN 0" in result.stderr
    ranks = answers(result.stdout)
    assert [rank["sum"] for rank in ranks] == [[3.0] * 5] * 2
    assert all("intel" in str(rank["libmpi"]) for rank in ranks)


def test_ranks_that_share_no_memory_exchange_messages(intel: IntelSite) -> None:
    result = intel.run("horovodrun", "-np", "2", intel.bin / "python", "-c", HOSTS)
    assert result.returncode == 0, result.stderr
    assert [rank["right"] for rank in answers(result.stdout)] == [[True] * 3] * 2


def test_the_first_failing_rank_is_shown(intel: IntelSite) -> None:
    result = intel.run("horovodrun", "-np", "2", intel.bin / "python", "-c", FAILING)
    assert result.returncode == 1
    assert re.search(r"rank 1 on \S+ was the first to fail: exit code 1", result.stderr)


def test_mpiexecs_snippet_puts_the_values_in_force_on_every_rank(
    intel: IntelSite, tmp_path: Path
) -> None:
    best = intel.run("autotune", "best", FOREIGN, "--format", "mpiexec")
    words = ["mpiexec.hydra", *best.stdout.split(), "-n", "2", intel.bin / "python", SETTINGS]
    result = intel.run(*words, tmp_path)
    assert result.returncode == 0, result.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert [rank["params"] for rank in ranks] == [read_result(str(FOREIGN)).params.as_dict()] * 2
