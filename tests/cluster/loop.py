"""A job that communicates without end: loop.py FOLDER [RANK_THAT_DIES]; leaves FOLDER/steps.

A rank that is told of an error leaves FOLDER/error-R with the time (time.monotonic) and the text.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

import horovod.torch as hvd

BYTES_PER_STEP = 400_000


def main(folder: Path, dies: int) -> None:
    torch.set_num_threads(1)
    hvd.init()
    tensor = torch.ones(BYTES_PER_STEP // 4)
    for step in range(100_000):
        try:
            hvd.allreduce_(tensor, name="loop", op=hvd.Max)
        except hvd.HorovodInternalError as error:
            (folder / f"error-{hvd.rank()}").write_text(f"{time.monotonic()} {error}")
            raise
        if hvd.rank() == 0:
            (folder / "steps.part").write_text(str(step + 1))
            (folder / "steps.part").replace(folder / "steps")
        if step == 20 and hvd.rank() == dies:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1)
