"""The public names of ``autotune``: they exist, are documented, and cost nothing until used."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import autotune
from autotune.space import HOROVOD
from autotune.storage.csv_log import row_text

HEADER = ",".join(HOROVOD.columns)

DOCUMENT = Path(__file__).parents[3] / "docs" / "python.md"


@pytest.mark.parametrize("name", autotune.__all__)
def test_every_exported_name_is_its_home_modules(name: str) -> None:
    home = importlib.import_module(autotune._HOME[name])
    assert getattr(autotune, name) is getattr(home, name)


def test_names_are_sorted_each_once_and_all_have_a_home() -> None:
    by_kind = sorted(autotune.__all__, key=lambda name: (not name.isupper(), name))
    capital_first = sorted(by_kind, key=lambda name: (name[0].islower(), not name.isupper()))
    assert autotune.__all__ == capital_first
    assert set(autotune.__all__) == set(autotune._HOME) <= set(dir(autotune))


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = autotune.nonsense


def test_the_document_names_exactly_what_is_exported() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(autotune.__all__)


def test_the_documents_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {})
    best = autotune.CommParams(cycle_time_ms=2.0)
    rows = [row_text(autotune.Trial(trial_id=0, params=autotune.CommParams(), score=80.0))]
    rows += 2 * [row_text(autotune.Trial(trial_id=1, params=best, score=90.0))]
    Path("log.csv").write_text("\n".join([HEADER, *rows, ""]), encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n|^\n)+", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    codes = [block for block in blocks if "import" in block]
    assert len(codes) == 2
    for code in codes:
        exec(re.sub("^    ", "", code, flags=re.MULTILINE), {})


def test_importing_it_and_reading_a_log_load_nothing_heavy() -> None:
    code = (
        "import sys, autotune\n"
        "assert [m for m in sys.modules if m.startswith('autotune')] == ['autotune']\n"
        "autotune.read_log, autotune.read_result, autotune.PARAMETERS, autotune.CommParams\n"
        "heavy = {'numpy', 'scipy', 'skopt', 'sklearn', 'sqlite_utils', 'torch', 'mpi4py'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
