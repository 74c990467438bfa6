"""The scripts of examples/tensorflow train on 2 ranks, go on after a restart, and are tuned."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.commands import FAST, Commands

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "tensorflow"


def train(
    script: str, epochs: int, commands: Commands, **environ: str
) -> subprocess.CompletedProcess[str]:
    horovodrun = [sys.executable, "-m", "horovod.runner.launch"]
    words = [*horovodrun, "-np", "2", sys.executable, EXAMPLES / script]
    options = ["--epochs", str(epochs), "--output", "checkpoints"]
    done = commands.run(*words, *options, limit_s=100, **environ)
    assert done.returncode == 0, done.stderr
    return done


def last_accuracy(output: str) -> float:
    return float(re.findall(r"test accuracy ([\d.]+)%", output)[-1])


@pytest.mark.parametrize("script", ["digits_tape.py", "digits_keras.py"])
def test_an_example_learns_and_is_tuned_from_outside(script: str, commands: Commands) -> None:
    done = train(script, 5, commands, HOROVOD_AUTOTUNE_LOG="log.csv", **FAST)
    assert last_accuracy(done.stdout) > 80
    assert len((commands.folder / "log.csv").read_text().splitlines()) > 1
    assert list((commands.folder / "checkpoints").iterdir())


def test_a_loop_goes_on_where_its_checkpoint_is(commands: Commands) -> None:
    first = train("digits_tape.py", 1, commands)
    second = train("digits_tape.py", 2, commands)
    assert re.findall(r"epoch +(\d+):", first.stdout + second.stdout) == ["1", "2"]
