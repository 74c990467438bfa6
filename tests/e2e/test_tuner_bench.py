"""A minute of the tuner's bench, with fixed seeds: what must hold in every run, however few."""

from __future__ import annotations

import csv
import gzip
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.commands import Commands
from e2e.conftest import Once

BENCH = Path(__file__).resolve().parents[2] / "experiments" / "tuner_bench"
SURFACES = ("vgg16 25G", "vgg16 10G", "gpt2 25G", "bert-base nvlink", "narrow-resnet50 1G")
RUNS = 10

Runs = Sequence[dict[str, str]]

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="session")
def runs(once: Once) -> Runs:
    def act(runner: Commands) -> None:
        words = [BENCH / "run.py", "--runs", str(RUNS), "--policies", "ours", "random"]
        words += ["--surfaces", *SURFACES, "--kinds", "stationary", "--jobs", "2"]
        result = runner.run(sys.executable, *words, "--output", runner.folder, limit_s=400)
        assert result.returncode == 0, result.stderr

    folder = once("bench", act).folder
    assert "| ours | 10 |" in (folder / "report.md").read_text()
    with gzip.open(folder / "runs.csv.gz", "rt", newline="") as file:
        return list(csv.DictReader(file))


def ours(runs: Runs, name: str) -> list[float]:
    return [float(run[name]) for run in runs if run["policy"] == "ours"]


def test_all_surfaces_were_tuned_to_the_end(runs: Runs) -> None:
    assert ours(runs, "finished") == [1.0] * RUNS
    assert len({run["surface"] for run in runs}) == len(SURFACES)


def test_no_run_ends_worse_than_the_default(runs: Runs) -> None:
    assert sum(ours(runs, "worse")) == 0


def test_few_trials_and_a_small_regret(runs: Runs) -> None:
    assert statistics.median(ours(runs, "trials")) <= 15
    assert statistics.median(ours(runs, "regret")) <= 0.02


def test_the_lost_time_stays_within_the_budget(runs: Runs) -> None:
    assert max(ours(runs, "lost_allowed")) <= 0.05


def test_the_claimed_gain_is_the_true_one_on_average(runs: Runs) -> None:
    pairs = zip(ours(runs, "claimed"), ours(runs, "gain"), strict=True)
    assert abs(statistics.fmean(claimed - gain for claimed, gain in pairs)) <= 0.015
