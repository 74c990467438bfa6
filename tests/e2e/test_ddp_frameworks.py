"""Scripts of frameworks over DistributedDataParallel train the same weights, tuned and untuned.

The frameworks are in an environment of their own, with the dependencies of ``autotune``;
``AUTOTUNE_FRAMEWORKS_PYTHON`` names its Python. Without it, what this Python has is tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.storage.reader import read_log
from autotune.tables.ddp import DdpParams
from e2e.commands import FAST, Commands

SCRIPT = Path(__file__).parent / "ddp" / "frameworks.py"
ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("AUTOTUNE_FRAMEWORKS_PYTHON", sys.executable)
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
OWN = (PYTHON,)
"""Lightning starts the other rank itself: it runs the script once more."""
LIMIT_S = 150
TUNED = {name: value for name, value in FAST.items() if name != "HOROVOD_AUTOTUNE"}

pytestmark = pytest.mark.timeout(2 * LIMIT_S + 30)


def needed(module: str) -> None:
    """Skip the test where the framework is not installed."""
    ask = f"import importlib.util as u, sys; sys.exit(not u.find_spec({module!r}))"
    if subprocess.run([PYTHON, "-c", ask], timeout=60).returncode:
        pytest.skip(f"{PYTHON} has no {module} (AUTOTUNE_FRAMEWORKS_PYTHON names one that has)")


def train(
    commands: Commands, launcher: tuple[str, ...], framework: str, *, is_tuned: bool
) -> subprocess.CompletedProcess[str]:
    words: list[str | Path] = [*launcher, SCRIPT, framework, commands.folder / "out"]
    if is_tuned:
        words = [PYTHON, "-m", "autotune", "run", "--log", "log.csv", "--", *words]
    path = os.pathsep.join([str(Path(PYTHON).parent), os.environ["PATH"]])
    more = {"PYTHONPATH": str(ROOT), "PATH": path, **(TUNED if is_tuned else {})}
    done = commands.run(*words, limit_s=LIMIT_S, **more)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def checksum(done: subprocess.CompletedProcess[str]) -> str:
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("checksum"))
    return line


@pytest.mark.parametrize(
    ("module", "framework", "launcher"),
    [
        ("lightning", "lightning", TORCHRUN),
        ("lightning", "lightning", OWN),
        ("transformers", "trainer", TORCHRUN),
        ("accelerate", "accelerate", TORCHRUN),
    ],
    ids=["lightning-torchrun", "lightning-own", "trainer", "accelerate"],
)
def test_a_framework_is_tuned_and_trains_the_same_weights(
    commands: Commands, module: str, framework: str, launcher: tuple[str, ...]
) -> None:
    needed(module)
    untuned = train(commands, launcher, framework, is_tuned=False)
    done = train(commands, launcher, framework, is_tuned=True)
    assert checksum(done) == checksum(untuned)
    trials = read_log(str(commands.folder / "log.csv")).trials
    assert any(trial.params != DdpParams() for trial in trials), done.stderr[-3000:]


def test_a_job_of_deepspeed_is_left_alone_and_told_so(commands: Commands) -> None:
    needed("deepspeed")
    untuned = train(commands, TORCHRUN, "deepspeed", is_tuned=False)
    done = train(commands, TORCHRUN, "deepspeed", is_tuned=True)
    assert checksum(done) == checksum(untuned)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("[ddp]"))
    assert "no DistributedDataParallel module was made" in line and "DeepSpeed" in line
    assert not (commands.folder / "log.csv").exists()
