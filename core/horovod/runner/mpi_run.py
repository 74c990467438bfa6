"""What libraries ask Horovod's module of this name: which MPI starts jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from horovod.runner import mpirun, ways


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """**Local.** Return whether there is an mpirun for mpi4py's MPI, on the PATH of ``env``."""
    return _program(env) is not None


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    """**Local.** Return whether it is Open MPI's."""
    return _family(env) in (mpirun.Family.OPEN_MPI_4, mpirun.Family.OPEN_MPI_5)


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    """**Local.** Return whether it is MPICH's."""
    return _family(env) is mpirun.Family.MPICH


def is_intel_mpi(env: Mapping[str, str] | None = None) -> bool:
    """**Local.** Return whether it is Intel MPI's."""
    return _family(env) is mpirun.Family.INTEL_MPI


def is_spectrum_mpi(env: Mapping[str, str] | None = None) -> bool:
    """**Local.** Return False: Spectrum MPI's mpirun is taken for the Open MPI that it is."""
    return False


def _program(env: Mapping[str, str] | None) -> os.PathLike[str] | None:
    return ways.find_mpi((os.environ if env is None else env).get("PATH"))[0]


def _family(env: Mapping[str, str] | None) -> mpirun.Family | None:
    program = _program(env)
    try:
        return mpirun.ask_family(program) if program else None  # type: ignore[arg-type]
    except mpirun.UnknownMpiError:
        return None
