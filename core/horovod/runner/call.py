"""One rank of ``horovod.run``: ``python -m horovod.runner.call FOLDER``.

Reads ``FOLDER/call.pickle``, leaves ``FOLDER/result-R.pickle``: (True, result) or (False, what went
wrong).
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

from horovod.common.rounds import OutOfJob

Outcome = tuple[bool, Any]


def result_file(folder: Path, rank: int) -> Path:
    """Return where rank ``rank`` leaves its outcome."""
    return folder / f"result-{rank}.pickle"


def save(outcome: Outcome, path: Path) -> None:
    """Write ``outcome`` so that the file is whole or missing."""
    import cloudpickle  # type: ignore[import-untyped]

    part = path.with_suffix(".part")
    part.write_bytes(cloudpickle.dumps(outcome))
    part.rename(path)


def describe(error: BaseException) -> dict[str, Any]:
    """Return the error itself, where it can travel, and its traceback as text."""
    import cloudpickle

    text = "".join(traceback.format_exception(error))
    try:
        travelling = cloudpickle.dumps(error)
        pickle.loads(travelling)
    except Exception:
        travelling = None
    return {"error": travelling, "traceback": text}


def main(folder: Path) -> None:
    """Call the function and leave what it returned or raised."""
    content = pickle.loads((folder / "call.pickle").read_bytes())
    sys.path += [place for place in content["sys.path"] if place not in sys.path]
    try:
        outcome: Outcome = (True, pickle.loads(content["call"])())
    except OutOfJob:
        raise
    except BaseException as error:
        well = isinstance(error, SystemExit) and not error.code
        _leave((True, None) if well else (False, describe(error)), folder)
        raise
    _leave(outcome, folder)


def _leave(outcome: Outcome, folder: Path) -> None:
    """Save ``outcome`` under this process's rank, which in an elastic job changes."""
    save(outcome, result_file(folder, int(os.environ["HOROVOD_RANK"])))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
