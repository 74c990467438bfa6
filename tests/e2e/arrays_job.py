"""``job.py`` on plain arrays: 24 gradients a step, by nobody's optimizer.

python arrays_job.py OUTPUT_FOLDER STEPS [SECONDS_PER_STEP]

Ends after STEPS steps, or earlier when rank 0's tuner is done or there is OUTPUT_FOLDER/enough.
What every rank leaves there is what those of ``job.py`` leave.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from e2e import on_arrays as hvd
from horovod.common.objects import broadcast_object
from horovod.tuning import autotuning

SECONDS_PER_STEP = 0.002


def main(folder: Path, steps: int, sleep_s: float) -> None:
    hvd.init()
    (folder / f"pid-{hvd.rank()}").write_text(str(os.getpid()))
    gradients = [np.ones(shape, np.float32) for shape in 12 * [(64, 64), (64,)]]
    for step in range(steps):
        time.sleep(sleep_s)
        handles = [hvd.start(array, f"gradient.{i}") for i, array in enumerate(gradients)]
        hvd.wait(handles, gradients)
        assert all((array == hvd.size()).all() for array in gradients)
        for array in gradients:
            array.fill(1)
        autotuning.step()
        if step % 50 == 49:
            is_over = autotuning.status().state == "done" or (folder / "enough").exists()
            if broadcast_object(is_over, 0):
                break
    status = autotuning.status()
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
    given = float(sys.argv[3]) if len(sys.argv) > 3 else SECONDS_PER_STEP
    main(Path(sys.argv[1]), int(sys.argv[2]), given)
