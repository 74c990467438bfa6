"""Asks a child process what is on this machine: the engine, an MPI, CUDA and NCCL.

A broken build then cannot harm the launcher, and nothing is loaded into it. MPI is not started.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from horovod.common.mpi_library import MpiLibrary

_CHILD = """
import json
from horovod.common import cuda_libraries as gpu, mpi_library
gpus = [gpu.cuda_version(), gpu.nccl_version(), gpu.find_libraries().nccl]
print(json.dumps([mpi_library.ask(), *gpus]))
"""


NAMES = ("mpirun", "mpiexec")


@dataclass(frozen=True, kw_only=True)
class EngineBuild:
    """What the engine finds.

    Attributes:
        library: Path of the libmpi that a job would use; "" without one.
        version: What that library says about itself.
        mpi_error: Why there is none; "" when there is.
        cuda: Newest CUDA that the driver knows, e.g. 13000; 0 without a driver.
        nccl: NCCL's version, e.g. 22809; 0 without it.
        nccl_library: Its path; "" where the loader finds it.
        error: Why the engine cannot be imported; "" when it can.
    """

    library: str = ""
    version: str = ""
    mpi_error: str = ""
    cuda: int = 0
    nccl: int = 0
    nccl_library: str = ""
    error: str = ""


@functools.cache
def engine_build() -> EngineBuild:
    """Return what the engine of this Python finds. **Local.**"""
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return EngineBuild(error=str(error))
    if child.returncode:
        lines = child.stderr.strip().splitlines()
        return EngineBuild(error=lines[-1] if lines else f"exit code {child.returncode}")
    mpi, cuda, nccl, path = json.loads(child.stdout.strip().splitlines()[-1])
    found = MpiLibrary(**mpi)
    return EngineBuild(
        library=found.path,
        version=found.version,
        mpi_error=found.error,
        cuda=cuda,
        nccl=nccl,
        nccl_library=path,
    )


def find_mpirun(library: str, path: str | None = None) -> Path | None:
    """Return the ``mpirun`` of the MPI at ``library``, else the one on PATH, else None. **Local.**

    Args:
        library: Path of libmpi, e.g. ``<venv>/lib/libmpi.so.40``; "" when unknown.
        path: Search path (default: PATH).
    """
    folders: list[Path] = []
    if library:
        for name in (Path(library).absolute(), Path(library).resolve()):
            folders += [folder / "bin" for folder in list(name.parents)[:4]]
    places = [*map(str, folders), os.environ.get("PATH", "") if path is None else path]
    # Intel's mpirun is a script: it would take our signals instead of the program that it runs.
    hydra = () if "libmpi.so.40" in library else ("mpiexec.hydra",)
    for place in places:
        found = next(filter(None, (shutil.which(n, path=place) for n in (*hydra, *NAMES))), None)
        if found:  # as /usr/bin/mpirun: Open MPI makes a prefix of the path, and "/" is none
            return Path(found).parent.resolve() / Path(found).name
    return None
