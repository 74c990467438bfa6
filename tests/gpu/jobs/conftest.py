"""Jobs of their own: mpirun as a subprocess."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.commands import Commands

RANKS = int(os.environ.get("HVD_TEST_RANKS", "2"))
FLAGS = ("--bind-to", "none", "--map-by", ":OVERSUBSCRIBE")


class Jobs(Commands):
    """Commands of ``RANKS`` ranks; the first mpirun on PATH is the one."""

    def words(self, script: Path, *arguments: str | Path) -> list[str | Path]:
        return ["mpirun", "-n", str(RANKS), *FLAGS, sys.executable, script, *arguments]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    runner = Jobs(tmp_path)
    yield runner
    runner.end()
