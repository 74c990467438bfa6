"""The report of the search proof says who is missing, and where ours is behind."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "experiments/search_proof"


@pytest.fixture(scope="module")
def proof() -> ModuleType:
    spec = importlib.util.spec_from_file_location("search_proof_run", FOLDER / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rows() -> list[dict[str, str]]:
    with (FOLDER / "runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("missing", [[], ["smac"], ["smac", "optuna-gp", "optuna-tpe"]])
def test_it_says_which_peers_were_left_out(proof, rows, missing: list[str]) -> None:
    text = proof.tables([row for row in rows if row["policy"] not in missing])
    said = [line for line in text.splitlines() if line.startswith("Left out")]
    names = [name for name in proof.PACKAGES if name in missing]
    assert said == ([f"Left out: {', '.join(names)}."] if missing else [])


def test_the_readme_says_where_ours_is_behind_as_the_runs_do(proof, rows) -> None:
    said = proof.behind(rows, "optuna-gp")
    assert said in proof.tables(rows) and said in (FOLDER / "README.md").read_text()
    behind = 0
    for function in map(str, range(1, 25)):
        regret = {r["policy"]: float(r["regret_20"]) for r in rows if r["function"] == function}
        behind += regret["ours"] > regret["optuna-gp"]
    assert f"on {behind} of 24 functions" in said
