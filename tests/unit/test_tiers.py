"""How a tier deals with tests that fail beside others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from run_tiers import print_failures
from tiers import commands
from tiers.counts import Counts

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
    ("files", "broken", "passed", "failed"),
    [(1, 0, 2, 0), (1, 1, 2, 1), (1, 20, 2, 20), (commands.FEW + 1, 0, 4, 4)],
)
def test_failed_tests_of_few_files_run_again_alone_and_are_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: int,
    broken: int,
    passed: int,
    failed: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests/busy").mkdir(parents=True)
    for number in range(files):
        (tmp_path / f"tests/busy/test_busy{number}.py").write_text(BUSY.format(broken=broken))
    environ = {k: text for k, text in os.environ.items() if not k.startswith("PYTEST_")}
    counts = commands.beside_others("busy", environ, 60, ("-n", "2"))
    assert (counts.passed, counts.failed) == (passed, failed)
    assert ("test_only_alone" in counts.note) == (files == 1)
    assert "test_never" not in counts.note
    assert len(counts.failures) == failed


def test_a_reason_is_printed_once_with_the_first_test_that_has_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failures = {"a::one": "no mpirun", "a::two": "assert 1 == 2", "b::one": "no mpirun"}
    print_failures([("e2e", Counts(failed=3, failures=failures)), ("unit", Counts(passed=1))])
    assert capsys.readouterr().out.splitlines() == [
        "e2e: failed: a::one and 1 others: no mpirun",
        "e2e: failed: a::two: assert 1 == 2",
    ]
