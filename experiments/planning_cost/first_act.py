"""Trains as ``experiments/digits/train.py`` does, with the tuner's process as a variant wants it.

    first_act.py VARIANT FOLDER EPOCHS

Nothing else of the job differs from the first act of ``make demo``. Rank 0 tells what
``service.py`` noted.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "digits"))

from harness import tell
from variants import VARIANTS, started_as

import horovod.torch as hvd
from horovod.tuning import session

HERE = Path(__file__).resolve().parent
TRAIN = HERE.parent / "digits" / "train.py"
PATIENCE_S = 20.0


def main() -> None:
    name, folder, epochs = sys.argv[1:]
    notes = Path(folder) / "notes.json"
    session.SERVICE = (str(HERE / "service.py"), name, str(notes))
    with started_as(VARIANTS[name]):
        hvd.init()  # once more in the script, without effect
        rank = hvd.rank()
        sys.argv = [str(TRAIN), "--epochs", epochs]
        runpy.run_path(str(TRAIN), run_name="__main__")
    if rank == 0:
        tell(read(notes))


def read(notes: Path) -> Any:
    """Return what the tuner's process has written at its end, which may be a moment away."""
    deadline = time.monotonic() + PATIENCE_S
    while not notes.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return json.loads(notes.read_text())


if __name__ == "__main__":
    main()
