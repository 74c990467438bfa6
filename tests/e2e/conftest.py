"""The README's commands as subprocesses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.commands import FAST, Commands, TunedJob


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    runner = Commands(tmp_path)
    yield runner
    runner.end()


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TunedJob]:
    runner = Commands(tmp_path_factory.mktemp("tuned"))
    log = runner.folder / "log.csv"
    output = runner.run(
        "horovodrun", "-np", "2", *runner.job(100_000), HOROVOD_AUTOTUNE_LOG=str(log), **FAST
    )
    assert output.returncode == 0, output.stderr
    yield TunedJob(log=log, output=output, ranks=runner.ranks(2))
    runner.end()
