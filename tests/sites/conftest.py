"""One site per MPI, built once."""

from __future__ import annotations

import pytest

from sites.sites import NAMES, Site, build_site, why_not


@pytest.fixture(scope="session", params=NAMES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    name: str = request.param
    if reason := why_not(name):
        pytest.skip(reason)
    return build_site(name, tmp_path_factory.mktemp(name.replace(" ", "-").lower()))
