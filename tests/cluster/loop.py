"""A job that communicates without end: loop.py FOLDER [RANK_THAT_DIES [MS]]; leaves FOLDER/steps.

That rank dies between two steps, or MS after the begin of one, whose tensor is a long one then.
A rank that is told of an error leaves FOLDER/error-R with the time (time.monotonic) and the text.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path

import torch

import horovod.torch as hvd

BYTES_PER_STEP = 400_000
LONG = 40_000_000


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, dies: int, within_ms: float) -> None:
    torch.set_num_threads(1)
    hvd.init()
    tensor = torch.ones((LONG if within_ms else BYTES_PER_STEP) // 4)
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
            threading.Timer(within_ms / 1000, die).start() if within_ms else die()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("dies", type=int, nargs="?", default=-1)
    parser.add_argument("within_ms", type=float, nargs="?", default=0.0)
    main(**vars(parser.parse_args()))
