"""A whole job with Keras, tuned without a changed line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from e2e.commands import FAST, Commands

HERE = Path(__file__).parent
RANKS = [sys.executable, str(HERE.parent / "tiers/tcp_ranks.py"), "-n"]


def test_a_tuned_job_has_the_weights_of_one_process(commands: Commands) -> None:
    job = [sys.executable, HERE / "keras_job.py", commands.folder]
    done = commands.run(*RANKS, "2", *job, limit_s=110, **FAST)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((commands.folder / f"rank-{r}.json").read_text()) for r in range(2)]
    assert all(rank["difference"] < 1e-6 for rank in ranks), ranks
    assert ranks[0]["changes"] == ranks[1]["changes"] > 0
    assert ranks[0]["params"] == ranks[1]["params"]
    assert "trial 1 (2 of at most 4)" in done.stderr
