"""What both halves share: every test is marked gpu and ends, by force if it must."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest

LIMIT_S = 60.0
_stderr: list[int] = []


def pytest_configure() -> None:
    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        del os.environ[name]
    _stderr.append(os.dup(2))  # pytest takes the descriptor itself while a test runs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker("gpu")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Print all stacks and end the process when a test hangs; mpirun then ends the others."""
    marker = item.get_closest_marker("limit")
    limit_s = marker.args[0] if marker else LIMIT_S
    faulthandler.dump_traceback_later(limit_s, exit=True, file=_stderr[0])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
