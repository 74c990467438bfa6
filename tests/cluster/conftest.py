"""Two hosts for all tests of a module, and jobs that ran on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hosts import TwoHosts

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def hosts() -> Iterator[TwoHosts]:
    with TwoHosts() as both:
        yield both


@pytest.fixture
def slow_hosts() -> Iterator[TwoHosts]:
    """Two hosts of a test's own, 200 Mbit/s apart."""
    with TwoHosts(rate_mbit=200) as both:
        yield both
