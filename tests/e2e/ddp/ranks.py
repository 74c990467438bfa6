"""Starts ranks as torchrun does, by the same variables, and imports no torch for it.

    python ranks.py NUMBER_OF_RANKS SCRIPT ARGUMENTS...

The first one that fails ends the others; its code is ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from e2e.processes import free_port


def main(size: str, *words: str) -> int:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    place |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    ranks = [
        subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(int(size))
    ]
    try:
        return wait(ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return the first code other than 0, or 0 when all have ended."""
    while True:
        codes = [process.poll() for process in ranks]
        if bad := [code for code in codes if code]:
            return bad[0]
        if None not in codes:
            return 0
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
