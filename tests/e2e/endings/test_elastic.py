"""Elastic functions in jobs without a driver: told to end, or a rank lost, the next job goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from e2e.commands import Commands, wait_until
from e2e.conftest import Once

JOB = Path(__file__).with_name("elastic_job.py")
LAUNCHERS = {
    "mpirun": ["mpirun", "-n", "3", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"],
    "without MPI": [
        *(sys.executable, str(Path(__file__).parents[2] / "tiers/tcp_ranks.py"), "-n", "3"),
    ],
}

pytestmark = pytest.mark.timeout(200)


def words(launcher: str, folder: Path, *options: str) -> list[str | Path]:
    return [*LAUNCHERS[launcher], sys.executable, JOB, folder, *options]


def numbers(folder: Path, what: str) -> list[int]:
    files = [folder / f"{what}-{rank}" for rank in range(3)]
    return [int(file.read_text()) if file.exists() else -1 for file in files]


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def expected(once: Once) -> list[torch.Tensor]:
    """The weights of a job that nobody disturbs."""

    def act(runner: Commands) -> None:
        result = runner.run(*words("mpirun", runner.folder), limit_s=60)
        assert result.returncode == 0, result.stderr
        assert numbers(runner.folder, "end") == [0, 0, 0]

    found: list[torch.Tensor] = torch.load(once("elastic", act).folder / "weights.pt")
    return found


def go_on(
    commands: Commands, launcher: str, expected: list[torch.Tensor]
) -> subprocess.CompletedProcess[str]:
    """Run the job again, and look at its weights: not a bit of them is another one."""
    file = commands.folder / "state"
    result = commands.run(
        *words(launcher, commands.folder), limit_s=60, HOROVOD_ELASTIC_CHECKPOINT=str(file)
    )
    assert result.returncode == 0, result.stderr
    found = torch.load(commands.folder / "weights.pt")
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert "goes on from commit" in result.stderr
    assert not file.exists()
    assert file.with_name("state.done").exists()
    return result


@pytest.mark.parametrize("told", [[0, 1, 2], [2]], ids=["all ranks", "one rank"])
def test_after_sigterm_all_ranks_end_at_a_commit_and_the_next_job_goes_on(
    told: list[int], launcher: str, commands: Commands, expected: list[torch.Tensor]
) -> None:
    folder = commands.folder
    process = commands.start(
        *words(launcher, folder, "--pause", "0.1"), HOROVOD_ELASTIC_CHECKPOINT=str(folder / "state")
    )
    wait_until(lambda: min(numbers(folder, "at")) >= 4)
    for rank in told:
        os.kill(numbers(folder, "pid")[rank], signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert numbers(folder, "end") == [75, 75, 75]
    assert re.search(r"told to end \(SIGTERM\): commit \d+ is in \S+/state; exit code 75", err)
    at = max(numbers(folder, "at"))
    go_on(commands, launcher, expected)
    assert at <= numbers(folder, "begun")[0] <= at + 2


@pytest.mark.parametrize("victim", [1, 0])
def test_a_job_that_loses_a_rank_in_a_backward_pass_ends_and_the_next_one_goes_on(
    victim: int, launcher: str, commands: Commands, expected: list[torch.Tensor]
) -> None:
    folder = commands.folder
    result = commands.run(
        *words(launcher, folder, "--kill", str(victim), "11"),
        limit_s=60,
        HOROVOD_ELASTIC_CHECKPOINT=str(folder / "state"),
    )
    assert result.returncode in (75, 128 + signal.SIGKILL), result.stderr
    survivors = [rank for rank in range(3) if rank != victim]
    assert [numbers(folder, "end")[rank] for rank in survivors] == [75, 75], result.stderr
    said = re.findall(rf"elastic: rank {victim} .*commit 5 is in .*; exit code 75", result.stderr)
    assert len(said) == 1, result.stderr
    go_on(commands, launcher, expected)
    assert numbers(folder, "begun") == [10, 10, 10]


def test_an_error_of_the_script_is_no_reason_to_start_again(
    launcher: str, commands: Commands
) -> None:
    result = commands.run(*words(launcher, commands.folder, "--fail", "1"), limit_s=60)
    assert result.returncode not in (0, 75)
    assert "ValueError: the script's own" in result.stderr


def test_a_file_that_cannot_be_used_ends_all_ranks_with_one_sentence(
    launcher: str, commands: Commands
) -> None:
    file = commands.folder / "state"
    file.write_text("somebody else's")
    result = commands.run(
        *words(launcher, commands.folder), limit_s=60, HOROVOD_ELASTIC_CHECKPOINT=str(file)
    )
    assert result.returncode == 1
    assert f"{file} is no state of an elastic job; it is left as it is" in result.stderr
    assert file.read_text() == "somebody else's"
