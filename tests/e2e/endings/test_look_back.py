"""What a job is told at its end in which nothing was reduced."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from e2e.commands import Commands

STARTER = Path(__file__).resolve().parents[2] / "tiers/tcp_ranks.py"
SCRIPT = """
from horovod.common import gradients
from horovod.tuning import autotuning

autotuning.init()
gradients.warn_at_exit()
"""


@pytest.mark.parametrize(
    ("last_line", "said"), [("", 1), ("raise ValueError('of the script')", 0)], ids=["end", "error"]
)
def test_ranks_that_train_by_themselves_are_told_so_unless_an_error_ends_them(
    last_line: str, said: int, commands: Commands
) -> None:
    program = [sys.executable, "-c", SCRIPT + last_line]
    done = commands.run(sys.executable, STARTER, "-n", "2", *program)
    assert done.returncode == 1 - said, done.stderr
    text = "the job ends, but no gradient is averaged over the 2 ranks"
    assert done.stderr.count(text) == said, done.stderr
