"""Keras on PyTorch: every rank runs the same tests; one that fails ends the job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

os.environ["KERAS_BACKEND"] = "torch"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# No import of it succeeds, nor finds tests/tensorflow.
sys.modules["tensorflow"] = None  # type: ignore[assignment]

import torch  # noqa: E402

import horovod.keras as hvd  # noqa: E402
from tiers.between_ranks import OF_THE_LAUNCHER, abort, use_own_temporary_folder  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")
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
