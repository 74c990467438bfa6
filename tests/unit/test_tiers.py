"""How a tier deals with tests that fail beside others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiers import commands

BUSY = """
import os
import pytest

def test_always():
    pass

def test_only_alone():
    assert "PYTEST_XDIST_WORKER" not in os.environ

@pytest.mark.parametrize("number", range({broken}))
def test_never(number):
    assert number < 0
"""


@pytest.mark.parametrize(
    ("broken", "passed", "failed", "named"),
    [(0, 2, 0, True), (1, 2, 1, True), (commands.FEW, 1, 1 + commands.FEW, False)],
)
def test_few_that_fail_beside_others_run_again_alone_and_are_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: int,
    passed: int,
    failed: int,
    named: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests/busy").mkdir(parents=True)
    (tmp_path / "tests/busy/test_busy.py").write_text(BUSY.format(broken=broken))
    environ = {k: text for k, text in os.environ.items() if not k.startswith("PYTEST_")}
    counts = commands.beside_others("busy", environ, 60, ("-n", "2"))
    assert (counts.passed, counts.failed) == (passed, failed)
    assert ("test_only_alone" in counts.note) == named
    assert "test_never" not in counts.note
