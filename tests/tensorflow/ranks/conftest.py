"""Every rank runs the same tests; one that fails ends the job: the others would wait for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # what tests share: "tensorflow" is another package
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest

import horovod.tensorflow as hvd
import tensorflow as tf
from tiers.between_ranks import OF_THE_LAUNCHER, abort, use_own_temporary_folder


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")  # frameworks' own are not ours to mend
    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        if name not in OF_THE_LAUNCHER:
            del os.environ[name]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(
        int(os.environ.get("INTER_OP_THREADS", "2"))
    )
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


@pytest.fixture
def rank() -> int:
    return hvd.rank()


@pytest.fixture
def size() -> int:
    return hvd.size()


@pytest.fixture
def two_ranks() -> None:
    if hvd.size() < 2:
        pytest.skip("needs 2 ranks")


@pytest.fixture(params=["eager", "function"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Calls a function with tensors: at once, or traced."""
    if request.param == "eager":
        return lambda function, *tensors: function(*tensors)
    return lambda function, *tensors: tf.function(function, autograph=False)(*tensors)
