"""One site per MPI, built once; with ``HVD_SITES=FOLDER``, kept there and used again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sites.sites import NAMES, Site, build_site, why_not


@pytest.fixture(scope="session", params=NAMES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    name: str = request.param
    if reason := why_not(name):
        pytest.skip(reason)
    kept = os.environ.get("HVD_SITES")
    top = Path(kept) if kept else tmp_path_factory.mktemp("sites")
    return build_site(name, top / name.replace(" ", "-").lower())
