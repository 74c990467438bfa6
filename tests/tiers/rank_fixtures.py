"""What tests on the ranks of an MPI job share; a conftest imports the fixtures it offers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

import horovod.torch as hvd
from tiers.between_ranks import OF_THE_LAUNCHER


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
