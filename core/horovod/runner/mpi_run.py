"""Jobs by mpirun, and which MPI starts them, under Horovod's names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence

from horovod.runner import arguments, mpirun, ways
from horovod.runner.common.util.settings import BaseSettings


def mpi_run(
    settings: BaseSettings,
    nics: Iterable[str] | None,
    env: Mapping[str, str],
    command: Sequence[str],
    stdout: object = None,
    stderr: object = None,
) -> None:
    """Run ``command`` as ``horovodrun --mpi`` does, and wait for its end. **Local.**

    Args:
        settings: The job.
        nics: Network interfaces to use; none: any.
        env: Environment of the job.
        command: Program and arguments of every rank.
        stdout: Ignored with a warning: the ranks write to the output of this process.
        stderr: Likewise.

    Raises:
        RuntimeError: The job failed.
        ValueError: A setting is wrong.
        NoWayError: There is no MPI.
    """
    if stdout is not None or stderr is not None:
        warnings.warn("mpi_run: stdout and stderr are ignored: ranks write to ours", stacklevel=2)
    arguments.run_settings(settings, nics, env, command, way="use_mpi")


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
