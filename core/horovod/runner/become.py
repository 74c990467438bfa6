"""Becomes another program that ends with its parent: ``python -I -S become.py PARENT PROGRAM ...``.

The launcher blocks signals so that it can see who sent them; a child would inherit that. This
program, between fork and exec, undoes it and asks the kernel for SIGTERM when ``PARENT`` dies.
Standard library only; it is run by its path.
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


def main(argv: list[str]) -> None:
    """Replace this process by ``argv[2:]``."""
    end_with_parent(int(argv[1]), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execv(argv[2], argv[2:])


if __name__ == "__main__":
    main(sys.argv)
