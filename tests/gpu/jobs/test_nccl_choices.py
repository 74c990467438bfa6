"""NCCL's algorithm, protocol and channels change while ranks communicate: sums stay right."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.commands import wait_until
from gpu.device import ON_GPU
from gpu.jobs.conftest import RANKS, Jobs

RANK = Path(__file__).with_name("nccl_choices.py")
CHANGES = int(os.environ.get("GPU_NCCL_CHANGES", "10000"))
pytestmark = pytest.mark.skipif(
    ON_GPU and torch.cuda.device_count() < RANKS, reason="needs a GPU for each rank"
)


def told_by(jobs: Jobs, *words: str, limit_s: float = 150, **environ: str) -> dict[str, Any]:
    """Return what rank 0 of such a job says."""
    command = jobs.words(RANK, *words, "--folder", jobs.folder)
    result = jobs.run(*command, limit_s=limit_s, **environ)
    assert result.returncode == 0, result.stderr[-3000:]
    line = next(one for one in result.stdout.splitlines() if one.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


@pytest.mark.limit(200)
@pytest.mark.parametrize("part", ["engine", "ddp"])
def test_ten_thousand_changes_while_communicating_leave_every_sum_right(
    part: str, jobs: Jobs
) -> None:
    told = told_by(jobs, part, "--changes", str(CHANGES))
    print(told)
    assert told["wrong"] == 0
    for one in told["seen"]:
        assert one["interface"] in (4, 5)
        assert one["chosen"] > CHANGES / 4
    if part == "engine":
        assert told["changes"] > CHANGES / 2
    else:
        assert told["reasons"] == [""]


@pytest.mark.limit(100)
def test_sums_are_right_over_links_on_which_the_choices_matter(jobs: Jobs) -> None:
    links = {"NCCL_P2P_DISABLE": "1"}
    for part in ("engine", "ddp"):
        assert told_by(jobs, part, "--changes", "300", **links)["wrong"] == 0


@pytest.mark.limit(100)
@pytest.mark.parametrize("part", ["engine", "ddp"])
def test_where_one_rank_has_no_tuner_no_rank_changes_anything(part: str, jobs: Jobs) -> None:
    told = told_by(jobs, part, "--changes", "200", "--without", str(RANKS - 1))
    assert told["wrong"] == 0
    assert [one["chosen"] for one in told["seen"]] == [0] * RANKS
    assert [bool(one["interface"]) for one in told["seen"]] == [True] * (RANKS - 1) + [False]
    if part == "ddp":
        assert told["reasons"] == [
            f"NCCL has loaded the tuner on {RANKS - 1} of {RANKS} ranks only"
        ]


@pytest.mark.limit(100)
def test_a_users_own_tuner_is_left_alone(jobs: Jobs) -> None:
    command = jobs.words(RANK, "engine", "--changes", "5")
    result = jobs.run(*command, limit_s=60, NCCL_TUNER_PLUGIN="none")
    assert result.returncode != 0
    assert "NCCL_TUNER_PLUGIN=none is set, which is left alone" in result.stderr


@pytest.mark.limit(100)
def test_a_captured_graph_keeps_its_choice_and_its_sums(jobs: Jobs) -> None:
    told = told_by(jobs, "graph")
    assert told == {"wrong": 0, "reasons": [""]}


@pytest.mark.limit(100)
def test_training_goes_on_with_right_sums_when_the_tuner_dies(jobs: Jobs) -> None:
    environ = {"HOROVOD_AUTOTUNE": "1", "NCCL_P2P_DISABLE": "1", "AUTOTUNE_NCCL_PROBE": "0"}
    told = told_by(jobs, "engine", "--changes", "600", "--kill-tuner", **environ)
    assert told["wrong"] == 0 and told["state"] == "lost"


@pytest.mark.limit(100)
def test_a_rank_that_dies_between_two_changes_ends_the_job(jobs: Jobs) -> None:
    process = jobs.start(
        *jobs.words(RANK, "engine", "--changes", "10000000", "--mark", "--folder", jobs.folder)
    )
    marks = [jobs.folder / f"pid-{rank}" for rank in range(RANKS)]
    wait_until(lambda: all(mark.exists() for mark in marks) or process.poll() is not None, 60)
    os.kill(int(marks[-1].read_text()), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
