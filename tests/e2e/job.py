"""A small training job for the e2e tests: 24 tensors, a few milliseconds a step.

python job.py OUTPUT_FOLDER STEPS [SLEEP_SECONDS_PER_STEP]

Ends after STEPS steps, or earlier when rank 0's tuner is done.

Every rank leaves OUTPUT_FOLDER/pid-R at its start and OUTPUT_FOLDER/rank-R.json at its end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import horovod.torch as hvd


def main(folder: Path, steps: int, sleep_s: float) -> None:
    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    (folder / f"pid-{hvd.rank()}").write_text(str(os.getpid()))
    layers = [torch.nn.Linear(64, 64) for _ in range(12)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    inputs = torch.randn(8, 64)
    for step in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        time.sleep(sleep_s)
        if step % 50 == 49 and hvd.broadcast_object(hvd.autotune.status().state, 0) == "done":
            break
    status = hvd.autotune.status()
    content = {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "state": status.state,
        "params": dict(status.params),
        "variables": sorted(name for name in os.environ if name.startswith("HOROVOD_")),
    }
    (folder / f"rank-{hvd.rank()}.json").write_text(json.dumps(content))
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
