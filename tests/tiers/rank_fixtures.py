"""What tests on the ranks of an MPI job share; a conftest imports the fixtures it offers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import horovod.torch as hvd
from tiers.between_ranks import OF_THE_LAUNCHER


def use_own_temporary_folder() -> None:
    """After ``hvd.init``: give pytest a folder of this rank's own.

    It removes old folders: not those of another rank, which does the same at that moment.
    """
    folder = Path(tempfile.gettempdir()) / f"pytest-of-rank-{hvd.rank()}"
    folder.mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """Start the runtime again under other environment variables; put everything back at the end."""

    def start(environ: dict[str, str]) -> None:
        hvd.shutdown()
        for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
            monkeypatch.delenv(name)
        for name, value in (OF_THE_LAUNCHER | environ).items():
            monkeypatch.setenv(name, value)
        hvd.init()

    yield start
    start({})


@pytest.fixture
def rank() -> int:
    return hvd.rank()


@pytest.fixture
def size() -> int:
    return hvd.size()
