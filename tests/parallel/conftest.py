"""Every rank runs the same tests; one that fails ends the job: the others would wait for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

import horovod.torch as hvd
from horovod.torch.collectives import prepared
from tiers.between_ranks import OF_THE_LAUNCHER, abort, use_own_temporary_folder
from tiers.rank_fixtures import (  # noqa: F401
    rank,
    restart,
    size,
)


def pytest_configure() -> None:
    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        if name not in OF_THE_LAUNCHER:
            del os.environ[name]
    torch.set_num_threads(1)
    hvd.init()
    use_own_temporary_folder(hvd.rank())


def _abort(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed:
        abort(f"{report.nodeid}\n{report.longreprtext}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    outcome = yield
    _abort(outcome.get_result())  # type: ignore[attr-defined]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _abort(report)


@pytest.fixture(params=["by C", "by Python"])
def by_c(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Read tensors by DLPack where torch offers it (true), and without."""
    if request.param == "by C" and prepared._reader is None:
        pytest.skip("this torch has no C interface of DLPack 1")
    if request.param == "by Python":
        monkeypatch.setattr(prepared, "_reader", None)
    return bool(request.param == "by C")


@pytest.fixture
def two_ranks() -> None:
    if hvd.size() < 2:
        pytest.skip("needs 2 ranks")
