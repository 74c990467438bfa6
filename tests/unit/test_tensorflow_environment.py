"""The environment of the tier `tensorflow`, where nothing can be installed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import run_tiers
from tiers import tensorflow_environment
from tiers.counts import Counts


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counts]:
    """What the tier's row shows; the environment stays as pip has left it."""
    (tier,) = (each for each in run_tiers.TIERS if each.name == "tensorflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorflow_environment, "FOLDER", tmp_path_factory.mktemp("made") / "env")
        patch.setenv("PIP_NO_INDEX", "1")
        yield run_tiers.run_tier(tier, {}, by_name=False)


def test_a_tier_that_cannot_be_installed_is_not_run_and_says_why(counts: Counts) -> None:
    reason = "pip finds no tensorflow-cpu for this Python here; what it says is above"
    assert counts == Counts(skipped=1, not_run=reason)


def test_the_environment_has_what_this_one_has(counts: Counts) -> None:
    python: Path = tensorflow_environment.python()
    code = "import horovod._engine, pytest, sys; print(sys.prefix)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tensorflow_environment.FOLDER)
