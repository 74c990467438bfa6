"""Whole jobs with Keras: tuned without a changed line, and those in which nothing is averaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.commands import FAST, Commands

HERE = Path(__file__).parent
RANKS = [sys.executable, str(HERE.parent / "tiers/tcp_ranks.py"), "-n"]


def run(commands: Commands, mode: str, **environ: str) -> subprocess.CompletedProcess[str]:
    job = [sys.executable, HERE / "keras_job.py", commands.folder, mode]
    done = commands.run(*RANKS, "2", *job, limit_s=110, **environ)
    assert done.returncode == 0, done.stderr
    return done


def test_a_tuned_job_has_the_weights_of_one_process(commands: Commands) -> None:
    done = run(commands, "tuned", **FAST)
    ranks = [json.loads((commands.folder / f"rank-{r}.json").read_text()) for r in range(2)]
    assert all(rank["difference"] < 1e-6 for rank in ranks), ranks
    assert ranks[0]["changes"] == ranks[1]["changes"] > 0
    assert ranks[0]["params"] == ranks[1]["params"]
    assert "trial 2 of at most 4" in done.stderr


@pytest.mark.parametrize(
    ("mode", "seen"), [("alone", "the job ends"), ("unwrapped", "model.fit() trains")]
)
def test_a_job_in_which_nothing_is_wrapped_is_told_so_once(
    mode: str, seen: str, commands: Commands
) -> None:
    done = run(commands, mode)
    assert done.stderr.count(f"{seen}, but no gradient is averaged over the 2 ranks") == 1
