"""examples/elastic.py: a job of a fixed size, and one that loses rank 0 and gets another one."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from e2e.commands import Commands, wait_until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/elastic.py"

pytestmark = pytest.mark.timeout(200)


def accuracies(out: str) -> list[float]:
    return [float(text) for text in re.findall(r"^epoch .*: test accuracy ([\d.]+)%", out, re.M)]


def test_the_example_learns_on_a_fixed_number_of_ranks(commands: Commands) -> None:
    result = commands.run(
        *("horovodrun", "-np", "2", sys.executable, EXAMPLE, "--epochs", "15"), limit_s=100
    )
    assert result.returncode == 0, result.stderr
    assert (
        len(re.findall("goes on with 2 ranks at epoch 1, step 0: 1500 images", result.stdout)) == 1
    )
    assert len(accuracies(result.stdout)) == 15
    assert accuracies(result.stdout)[-1] > 90


def test_the_example_goes_on_without_rank_0(commands: Commands) -> None:
    hosts = commands.folder / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:2\n")
    hosts.chmod(0o755)
    out = commands.folder / "out"
    words = ["horovodrun", "--min-np", "1", "--host-discovery-script", hosts]
    example = [sys.executable, EXAMPLE, "--epochs", "15", "--pause", "0.01"]
    shell = ["sh", "-c", f'exec "$@" > {out}', "sh"]
    process = commands.start(*shell, *words, *example)
    said = wait_until(lambda: out.exists() and re.search("^epoch   2:", out.read_text(), re.M), 60)
    assert said
    (rank_0,) = re.findall(r"goes on with 2 ranks at epoch 1, .*\(process (\d+)\)", out.read_text())
    os.kill(int(rank_0), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    text = out.read_text()
    assert process.returncode == 0, err
    begun = re.findall(
        r"^goes on with (\d) ranks? at epoch (\d+), step \d+: (\d+) images", text, re.M
    )
    assert len(begun) >= 2, text
    assert begun[-1][0] == "2"  # another process came
    assert int(begun[1][1]) >= 2
    epochs = [int(number) for number in re.findall(r"^epoch +(\d+):", text, re.M)]
    assert epochs == sorted(epochs)
    assert set(epochs) == set(range(1, 16))
    assert accuracies(text)[-1] > 90
