"""A job that is slower under one setting: a step takes 4 ms, with a cycle time of 60 ms 10 ms.

python checked_job.py OUTPUT_FOLDER STEPS

Ends after STEPS steps, or earlier when rank 0's check is over. Every rank leaves
OUTPUT_FOLDER/rank-R.json.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

import horovod.torch as hvd


def main(folder: Path, steps: int) -> None:
    hvd.init()
    tensor = torch.ones(1000)
    for step in range(steps):
        hvd.allreduce(tensor, name="gradient")
        slow = hvd.autotune.status().params["cycle_time_ms"] == 60
        time.sleep(0.010 if slow else 0.004)
        hvd.autotune.step()
        if step % 50 == 49 and hvd.broadcast_object(hvd.autotune.status().state, 0) == "done":
            break
    status = hvd.autotune.status()
    content = {"rank": hvd.rank(), "state": status.state, "params": dict(status.params)}
    (folder / f"rank-{hvd.rank()}.json").write_text(json.dumps(content))
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
