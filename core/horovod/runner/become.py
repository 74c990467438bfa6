"""Becomes another program that ends with its parent: ``python -I -S become.py PARENT PROGRAM ...``.

The launcher blocks signals so that it can see who sent them; a child would inherit that. This
program, between fork and exec, undoes it and asks the kernel for SIGTERM when ``PARENT`` dies. It
also keeps out of the way of an mpirun that was killed. Standard library only; run by its path.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
SESSION_PLACE = "PRTE_MCA_prte_local_tmpdir_base"
SESSION_PLACES = {SESSION_PLACE, "PRTE_MCA_prte_tmpdir_base"}
"""Where Open MPI 5 is told to keep its files; only one of them may be set."""


def end_with_parent(parent: int, number: int) -> None:
    """Let the kernel send signal ``number`` to this process when process ``parent`` dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def avoid_killed_mpirun() -> None:
    """Give mpirun another place where one that was killed has left files under its number.

    Open MPI 5 names the folder of its session by the process number only and wants it new: else it
    says that "the PMIx server's listener thread failed to start". In a container, where numbers
    begin again, the next mpirun often has the number of the last. The files stay: in another
    container that shares the folder their owner may be at work.
    """
    if SESSION_PLACES.intersection(os.environ):
        return
    names = ("TMPDIR", "TEMP", "TMP")  # Open MPI's order
    base = next((os.environ[name] for name in names if os.environ.get(name)), "/tmp")
    if os.path.lexists(os.path.join(base, f"ompi.{os.getpid()}")):
        import contextlib
        import tempfile  # not for nothing: it takes 20 ms

        with contextlib.suppress(OSError):
            os.environ[SESSION_PLACE] = tempfile.mkdtemp(prefix="horovodrun-", dir=base)


def main(argv: list[str]) -> None:
    """Replace this process by ``argv[2:]``."""
    end_with_parent(int(argv[1]), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    avoid_killed_mpirun()
    os.execv(argv[2], argv[2:])


if __name__ == "__main__":
    main(sys.argv)
