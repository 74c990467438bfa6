"""Runs the jobs of ``e2e/ddp``, tuned and untuned."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.commands import FAST, Commands

HERE = Path(__file__).parent / "ddp"
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
RANKS = (sys.executable, str(HERE / "ranks.py"))
TWO_RANKS = (*RANKS, "2")
"""As torchrun, which each time imports torch for itself."""
TUNED = {name: value for name, value in FAST.items() if name != "HOROVOD_AUTOTUNE"}
STEPS = 300
LONG = ("--pause-ms", "20")
"""For a job that lasts longer than the imports of the tuner: there is a trial."""
SHORT = ("--steps", "40")
"""For a job that is not tuned at all."""


def train(
    commands: Commands,
    *more: str,
    log: str = "",
    peculiar: str = "",
    launcher: Sequence[str] = TWO_RANKS,
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    """Run the job, tuned where ``log`` is given."""
    words: list[str | Path] = [*launcher, HERE / "job.py", "--steps", str(STEPS), *more]
    words += ["--peculiar", peculiar] if peculiar else []
    if log:
        words = ["autotune", "run", "--log", log, "--", *words]
    done = commands.run(*words, limit_s=110, **environ)
    assert done.returncode == 0, done.stderr
    return done


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the adapter has said."""
    return [line for line in done.stderr.splitlines() if line.startswith("[ddp]")]
