"""Whole jobs of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.commands import Commands


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    runner = Commands(tmp_path)
    yield runner
    runner.end()
