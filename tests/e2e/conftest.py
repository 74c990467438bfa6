"""The README's commands as subprocesses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.commands import FAST, Commands, TunedJob

SHARED_JOBS = ("tuned", "by_mpirun")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several tests run at a time, let those that share a job run where it does."""
    for item in items:
        for name in set(SHARED_JOBS) & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(name))


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
