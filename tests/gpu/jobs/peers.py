"""Ranks of which one dies while all are in a loop: python peers.py HOW FOLDER

HOW is "killed" (the test kills the last rank) or "exits" (it ends itself with os._exit). Every rank
leaves FOLDER/pid-R once it has made some steps, and FOLDER/error-R with what it was told.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


import horovod.torch as hvd
from gpu.device import finish, full, take_gpu

WARM_UP, LAST = 20, 400


def write(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all."""
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def main(how: str, folder: Path) -> None:
    # Who is left is to learn it from the engine, not from mpirun's signal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hvd.init()
    take_gpu()
    tensor, step = full(4_000_000, 1.0), 0
    last = hvd.rank() == hvd.size() - 1
    try:
        while True:
            hvd.allreduce_(tensor, name="step")
            finish()
            step += 1
            if step == WARM_UP:
                write(folder / f"pid-{hvd.rank()}", str(os.getpid()))
            if how == "exits" and last and step == LAST:
                write(folder / "died", str(time.time()))
                os._exit(1)
    except hvd.HorovodInternalError as error:
        write(folder / f"error-{hvd.rank()}", f"{time.time()} {error}")
        raise


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
