"""Trains a small model in an elastic function: ``job.py FOLDER STEPS SECONDS_A_STEP [torch]``.

It ends earlier at the commit after which there is FOLDER/stop.

Each step has its own samples, the same on all ranks, so that the weights at the end are those of
any number of ranks. What happens is a line in FOLDER/log; a rank leaves its weights at the end.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from horovod.common import basics as hvd
from horovod.common.objects import allgather_object
from horovod.common.rounds import rounds

STEPS_PER_COMMIT = 4


def note(folder: Path, what: str, **more: Any) -> None:
    """Append a line, in one piece."""
    content = {
        "what": what,
        "time": time.time(),
        "worker": int(os.environ.get("HOROVOD_ELASTIC_WORKER", "-1")),
        "pid": os.getpid(),
        "host": os.environ.get("HOROVOD_HOSTNAME", ""),
        "rank": hvd.rank(),
        "size": hvd.size(),
        "round": rounds.current.number if rounds.current else 0,
        **more,
    }
    with (folder / "log").open("a") as log:
        log.write(json.dumps(content) + "\n")


def main(folder: Path, steps: int, sleep_s: float, kind: str = "arrays") -> None:
    if os.environ.get("FAIL_ON_HOST") == os.environ["HOROVOD_HOSTNAME"]:
        raise RuntimeError("this host is broken")
    training = importlib.import_module(f"e2e.elastic.on_{kind}")
    training.init()
    note(folder, "up")
    time.sleep(float(os.environ.get("SECONDS_BEFORE_TRAINING", "0")))
    state = training.make_state()

    @training.run
    def train(state: Any) -> None:
        note(folder, "round", step=state.step)
        while state.step < steps:
            if (folder / "fail").exists():
                raise RuntimeError("all ranks are told to fail")
            loss = training.train_step(state)
            state.step += 1
            if hvd.rank() == 0:
                note(folder, "step", step=state.step, loss=loss)
            time.sleep(sleep_s)
            if state.step % STEPS_PER_COMMIT == 0:
                state.commit()
                if any(allgather_object((folder / "stop").exists())):
                    break

    train(state)
    (folder / f"weights-{hvd.rank()}.json").write_text(json.dumps(training.weights(state)))
    note(folder, "end", step=state.step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
