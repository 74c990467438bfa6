"""A minute of the tuner's bench, with fixed seeds: what must hold in every run, however few."""

from __future__ import annotations

import csv
import gzip
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "experiments" / "tuner_bench"
SURFACES = ("vgg16 25G", "vgg16 10G", "gpt2 25G", "bert-base nvlink", "narrow-resnet50 1G")
RUNS = 10

Runs = Sequence[dict[str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, BENCH / "run.py", "--runs", RUNS, "--policies", "ours", "random"]
    command += ["--surfaces", *SURFACES, "--kinds", "stationary", "--jobs", "2"]
    command += ["--output", folder]
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == 0, result.stderr
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
