"""A job on GPUs that tunes itself to the end leaves a log whose last line is the best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.commands import FAST, settings_of
from gpu.jobs.conftest import RANKS, Jobs

TRAIN = Path(__file__).with_name("train.py")


@pytest.mark.limit(150)
def test_tuning_ends_with_a_best_line_that_is_in_force(jobs: Jobs) -> None:
    log = jobs.folder / "log.csv"
    result = jobs.run(
        *jobs.words(TRAIN, jobs.folder), limit_s=120, HOROVOD_AUTOTUNE_LOG=str(log), **FAST
    )
    assert result.returncode == 0, result.stderr[-3000:]
    ranks = jobs.ranks(RANKS)
    assert ranks[0]["state"] == "done"
    assert all(rank["params"] == ranks[0]["params"] for rank in ranks)
    assert all(rank["same_weights"] for rank in ranks)
    rows = log.read_text().splitlines()[1:]
    assert len(rows) >= 3
    *earlier, last = settings_of(rows)
    assert last in earlier
    best = jobs.run("autotune", "best", log, "--format", "json")
    assert best.returncode == 0, best.stderr
    answer = json.loads(best.stdout)
    assert {name: answer[name] for name in ranks[0]["params"]} == ranks[0]["params"]
