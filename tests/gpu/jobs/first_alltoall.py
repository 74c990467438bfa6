"""Rank 1 dies as soon as it has started its first alltoall: python first_alltoall.py MS FOLDER

It kills itself MS milliseconds later, while the ranks connect. Every other rank leaves
FOLDER/error-R with the time that passed until it was told, and what.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


import horovod.torch as hvd
from gpu.device import full, take_gpu


def main(delay_ms: float, folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hvd.init()
    take_gpu()
    tensor = full((64 * hvd.size(), 1000), 1.0)
    began = time.monotonic()
    try:
        handle = hvd.alltoall_async(tensor, name="first")
        if hvd.rank() == 1:
            time.sleep(delay_ms / 1000)
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.synchronize(handle)
        while True:
            hvd.alltoall(tensor, name="next")
    except hvd.HorovodInternalError as error:
        (folder / f"error-{hvd.rank()}").write_text(f"{time.monotonic() - began} {error}")
        raise


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
