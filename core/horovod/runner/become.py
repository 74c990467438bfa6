"""Becomes another program that ends with its parent: ``python -I -S become.py PARENT PROGRAM ...``.

The launcher blocks signals so that it can see who sent them; a child would inherit that. This
program, between fork and exec, undoes it and asks the kernel for SIGTERM when ``PARENT`` dies. It
also clears the place of an mpirun that was killed. Standard library only; it is run by its path.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, number: int) -> None:
    """Let the kernel send signal ``number`` to this process when process ``parent`` dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def forget_killed_mpirun() -> None:
    """Remove what an mpirun of Open MPI 5 that was killed has left under this process's number.

    It names the folder of its session by that number only and wants it new: else it says that "the
    PMIx server's listener thread failed to start". In a container, where numbers begin again, the
    next mpirun often has the number of the last.
    """
    names = ("TMPDIR", "TEMP", "TMP")  # Open MPI's order
    base = next((os.environ[name] for name in names if os.environ.get(name)), "/tmp")
    folder = os.path.join(base, f"ompi.{os.getpid()}")
    if os.path.isdir(folder) and not os.path.islink(folder):
        import shutil  # not for nothing: it takes 10 ms

        shutil.rmtree(folder, ignore_errors=True)


def main(argv: list[str]) -> None:
    """Replace this process by ``argv[2:]``."""
    end_with_parent(int(argv[1]), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    forget_killed_mpirun()
    os.execv(argv[2], argv[2:])


if __name__ == "__main__":
    main(sys.argv)
