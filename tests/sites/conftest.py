"""One wheel, and one site per MPI; with ``HVD_SITES=FOLDER``, kept there and used again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sites.sites import NAMES, Site, build_site, why_not


@pytest.fixture(scope="session")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of wheelhouse and sites."""
    kept = os.environ.get("HVD_SITES")
    return Path(kept).absolute() if kept else tmp_path_factory.mktemp("sites")


@pytest.fixture(scope="session", params=NAMES)
def site(request: pytest.FixtureRequest, top: Path) -> Site:
    name: str = request.param
    if reason := why_not(name):
        pytest.skip(reason)
    return build_site(name, top)
