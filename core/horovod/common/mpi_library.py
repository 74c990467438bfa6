"""The MPI library of this process: the one that mpi4py has loaded, whichever it is.

The engine is built without MPI. What it has to know of the library is asked here from mpi4py, which
is built for the binary interface of that library (Open MPI's, MPICH's, the standard one of MPI 5):
where its functions are, and what a few constants are there. So one build of this package fits every
MPI that mpi4py can use, a process never holds two of them, and without any MPI nothing is missing
but the way through it.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod import _engine

if TYPE_CHECKING:
    from mpi4py import MPI

FAST_NETWORKS = (Path("/sys/class/infiniband"), Path("/sys/class/cxi"))
"""InfiniBand, RoCE, Omni-Path and EFA; Slingshot."""

_CHILD = """
import json
from horovod.common import mpi_library
print(json.dumps(mpi_library.ask()))
"""


@dataclass(frozen=True, kw_only=True)
class MpiLibrary:
    """What mpi4py finds on this machine.

    Attributes:
        path: Of the libmpi; "" without one.
        version: What that library says about itself.
        error: Why there is none; "" when there is.
    """

    path: str = ""
    version: str = ""
    error: str = ""


@functools.cache
def find() -> MpiLibrary:
    """**Local.** Return the MPI that a job would use; nothing of it is loaded into this process."""
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return MpiLibrary(error=str(error))
    lines = child.stdout.strip().splitlines()
    if child.returncode or not lines:
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return MpiLibrary(error=last)
    return MpiLibrary(**json.loads(lines[-1]))


def ask() -> dict[str, str]:
    """**Local.** Load the MPI that mpi4py chooses, without starting it; return the fields of
    ``MpiLibrary``. For a process of its own.
    """  # noqa: D205
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI as mpi
    except (ImportError, RuntimeError) as error:
        return {"error": str(error).splitlines()[0]}
    version = " ".join(mpi.Get_library_version().rstrip("\0").split())
    return {"path": library_path(mpi), "version": version}


def is_loaded() -> bool:
    """**Local.** Return whether this process has loaded MPI."""
    return "mpi4py.MPI" in sys.modules


def transport(mpi: Any, comm: MPI.Comm, far: Sequence[bool]) -> _engine.Transport:
    """**Local.** Return a transport over ``comm``, whose messages are all the transport's.

    Args:
        mpi: The module ``mpi4py.MPI``.
        comm: Lives at least as long as the transport.
        far: As of ``_engine.mpi_transport``.

    Raises:
        RuntimeError: The library lacks a function, or mpi4py is of an unknown kind.
    """
    comm.Set_errhandler(mpi.ERRORS_RETURN)
    handle = mpi._handleof(comm)
    return _engine.mpi_transport(interface(mpi), handle, comm.rank, comm.size, far)


def sends_by_tcp(
    mpi: Any, environ: Mapping[str, str], devices: Sequence[Path] = FAST_NETWORKS
) -> bool:
    """**Local.** Return whether messages between hosts are those of Open MPI's own TCP.

    False where it has, or may have, something better, and where the user has set how it sends.

    Args:
        mpi: The module ``mpi4py.MPI``.
        environ: Of this process; ``mpirun --mca`` comes as variables, too.
        devices: Folders that have an entry for each network card that needs no TCP.
    """
    if mpi.get_vendor()[0] != "Open MPI" or environ.get("OMPI_MCA_pml", "ob1") != "ob1":
        return False
    if any(environ.get(f"OMPI_MCA_btl_tcp_{name}") for name in ("flags", "eager_limit")):
        return False
    return not any(folder.is_dir() and any(folder.iterdir()) for folder in devices)


def interface(mpi: Any) -> _engine.MpiInterface:
    """**Local.** Return what the engine has to know of the library; errors as ``transport``."""
    found = _engine.MpiInterface()
    sizes = {mpi._sizeof(kind) for kind in (mpi.Comm, mpi.Datatype, mpi.Request)}
    found.handle_bytes = sizes.pop() if len(sizes) == 1 else 0
    found.status_bytes = mpi._sizeof(mpi.Status)
    found.error_text_bytes = mpi.MAX_ERROR_STRING
    found.byte = mpi._handleof(mpi.BYTE)
    found.no_request = mpi._handleof(mpi.REQUEST_NULL)
    found.issend = _address(mpi, "MPI_Issend")
    found.irecv = _address(mpi, "MPI_Irecv")
    found.testall = _address(mpi, "MPI_Testall")
    found.iprobe = _address(mpi, "MPI_Iprobe")
    found.cancel = _address(mpi, "MPI_Cancel")
    found.error_string = _address(mpi, "MPI_Error_string")
    found.finalized = _address(mpi, "MPI_Finalized")
    return found


def library_path(mpi: Any) -> str:
    """**Local.** Return the path of the MPI library that mpi4py resolved, '' when unknown."""

    class DlInfo(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("symbol", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        )

    try:
        address = ctypes.cast(_extension(mpi).MPI_Init, ctypes.c_void_p)
        info = DlInfo()
        dladdr = ctypes.CDLL(None).dladdr
        dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(DlInfo))
        found = dladdr(address, ctypes.byref(info)) != 0 and info.file
    except (OSError, AttributeError):
        return ""
    return os.path.normpath(os.fsdecode(info.file)) if found else ""


def _address(mpi: Any, name: str) -> int:
    """Return where the function ``name`` is that mpi4py calls.

    As for mpi4py itself, what the whole process sees comes first: a preloaded profiler.
    """
    for place in (ctypes.CDLL(None), _extension(mpi)):
        function = getattr(place, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise RuntimeError(f"{library_path(mpi) or 'the MPI of mpi4py'} has no function {name}")


def _extension(mpi: Any) -> ctypes.CDLL:
    return ctypes.CDLL(mpi.__file__, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
