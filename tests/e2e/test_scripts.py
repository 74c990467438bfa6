"""Scripts in the style of published Horovod examples, run unchanged with tuning on.

They use nothing outside Horovod's documented API.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from e2e.commands import FAST, Commands

SCRIPTS = Path(__file__).with_name("scripts")

pytestmark = pytest.mark.timeout(300)


def run(commands: Commands, script: str, *options: str) -> str:
    """Return what ``ended`` has written to standard output."""
    return ended(commands, script, *options).stdout


def ended(
    commands: Commands, script: str, *options: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run ``script`` on two ranks with tuning on.

    Asserts that both ranks end with the same parameters and that the log has an answer.
    """
    log = commands.folder / "log.csv"
    words = ["horovodrun", "-np", "2", sys.executable, str(SCRIPTS / script), *options]
    settings = {"HOROVOD_AUTOTUNE_LOG": str(log), **FAST, **environ}
    result = commands.run(*words, "--save", str(commands.folder), limit_s=100, **settings)
    assert result.returncode == 0, result.stderr
    first, second = (torch.load(commands.folder / f"rank-{rank}.pt") for rank in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    best = commands.run("autotune", "best", log, "--format", "json")
    assert best.returncode == 0, best.stderr
    assert json.loads(best.stdout)["fusion_threshold_bytes"] >= 0
    return result


def numbers(pattern: str, output: str) -> list[float]:
    return [float(text) for text in re.findall(pattern, output)]


@pytest.mark.parametrize(
    "options",
    [[], ["--fp16-allreduce", "--gradient-predivide-factor", "2"], ["--use-adasum"]],
    ids=["average", "fp16", "adasum"],
)
def test_digits_are_learnt(commands: Commands, options: list[str]) -> None:
    output = run(commands, "digits.py", *options)
    accuracy = numbers(r"Accuracy: ([\d.]+)%", output)
    assert len(accuracy) == 6
    assert accuracy[-1] > 90


def test_the_synthetic_benchmark_measures(commands: Commands) -> None:
    output = run(commands, "synthetic_benchmark.py", "--fp16-allreduce", "--num-iters", "20")
    assert len(numbers(r"Iter #\d+: ([\d.]+) img/sec", output)) == 20
    assert numbers(r"Total img/sec on 2 CPU\(s\): ([\d.]+)", output)[0] > 0


def test_accumulated_gradients_learn_and_a_checkpoint_is_resumed(commands: Commands) -> None:
    options = ["--fp16-allreduce", "--batches-per-allreduce", "4"]
    first = run(commands, "accumulation.py", *options, "--epochs", "6")
    accuracy = numbers(r"accuracy=([\d.]+)%", first)
    assert len(accuracy) == 6
    assert accuracy[-1] > 90
    second = run(commands, "accumulation.py", *options, "--epochs", "7")
    assert re.findall(r"Train Epoch #(\d+)", second) == ["7"]
    assert numbers(r"accuracy=([\d.]+)%", second)[0] > 90


def test_an_optimizer_of_its_own_on_mpi_ops_learns(commands: Commands) -> None:
    accuracy = numbers(r"Accuracy: ([\d.]+)%", run(commands, "own_optimizer.py", "--epochs", "12"))
    assert len(accuracy) == 12
    assert accuracy[-1] > 90


def test_a_gan_learns_with_two_optimizers(commands: Commands) -> None:
    output = run(commands, "gan.py", "--steps", "500")
    x, y = re.findall(r"centre: (\S+) (\S+)", output)[-1]
    assert abs(float(x) - 3.0) < 1.0
    assert abs(float(y) + 2.0) < 1.0


def test_a_language_model_learns_from_uneven_batches(commands: Commands) -> None:
    output = run(commands, "language_model.py", "--epochs", "4")
    perplexity = numbers(r"ppl ([\d.]+)", output)
    assert len(perplexity) == 4
    assert perplexity[-1] < 1.5
    batches = numbers(r"batches (\d+)", output)
    assert len(set(batches)) == 1


@pytest.mark.parametrize("stderr", ["kept", "devnull", "closed"])
def test_progress_survives_a_trainer_that_silences_itself(commands: Commands, stderr: str) -> None:
    """With workers of a fork server, and a timeline by a name that libraries give it."""
    timeline = commands.folder / "trace.log"
    options = ["--standard-error", stderr]
    said = ended(commands, "quiet_trainer.py", *options, HOROVOD_TIMELINE=str(timeline)).stderr
    assert "[horovod] autotune: trial 0 (1 of at most 4)" in said
    assert "Error" not in said
    shown = commands.run("autotune", "timeline", timeline)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "allreduce" in shown.stdout
