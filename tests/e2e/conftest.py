"""The README's commands as subprocesses."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import FAST, WEIGHTS_JOB, Commands, TunedJob

Once = Callable[[str, Callable[[Commands], None]], Commands]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    runner = Commands(tmp_path)
    yield runner
    runner.end()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """``once(name, act)`` acts in a folder, or finds there what it has done.

    Where several processes run tests, the first one acts and the others wait for it.
    """
    here = tmp_path_factory.getbasetemp()
    shared = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here

    def make(name: str, act: Callable[[Commands], None]) -> Commands:
        runner = Commands(shared / name)
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (runner.folder / "done").exists():
                shutil.rmtree(runner.folder, ignore_errors=True)
                runner.folder.mkdir()
                try:
                    act(runner)
                finally:
                    runner.end()
                (runner.folder / "done").touch()
        return runner

    return make


@pytest.fixture(scope="session")
def tuned(once: Once) -> TunedJob:
    def tune(runner: Commands) -> None:
        words = ("horovodrun", "-np", "2", *runner.job(100_000))
        log = str(runner.folder / "log.csv")
        output = runner.run(*words, limit_s=100, HOROVOD_AUTOTUNE_LOG=log, **FAST)
        assert output.returncode == 0, output.stderr
        (runner.folder / "stderr").write_text(output.stderr)

    runner = once("tuned", tune)
    stderr = (runner.folder / "stderr").read_text()
    output = subprocess.CompletedProcess("horovodrun", 0, "", stderr)
    return TunedJob(log=runner.folder / "log.csv", output=output, ranks=runner.ranks(2))


@pytest.fixture(scope="session")
def by_mpirun(once: Once) -> list[dict[str, Any]]:
    """What the ranks of ``weights.py`` say when mpirun starts them."""

    def act(runner: Commands) -> None:
        words = ("mpirun", "-np", "2", "--bind-to", "none", sys.executable, WEIGHTS_JOB)
        result = runner.run(*words, runner.folder, limit_s=100)
        assert result.returncode == 0, result.stderr

    return once("by-mpirun", act).ranks(2)
