"""What users get wrong: every rank learns it, within seconds, with the variable's name."""

from __future__ import annotations

import re
import sys

import pytest

from e2e.commands import FAST, Commands

TIGHT = """
import os, resource
from horovod.tuning import autotuning
most = len(os.listdir("/proc/self/fd")) + 12
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
autotuning.init()
"""


def tracebacks(text: str) -> int:
    return len(re.findall(r"^\S*(?:ValueError|RuntimeError): ", text, re.MULTILINE))


@pytest.mark.parametrize("place", ["missing/log.csv", "."])
def test_a_bad_log_path_is_an_error_on_every_rank(commands: Commands, place: str) -> None:
    path = str(commands.folder / place)
    command = ["horovodrun", "-np", "2", *commands.settings_job()]
    result = commands.run(*command, HOROVOD_AUTOTUNE_LOG=path, **FAST)
    assert result.returncode != 0
    assert path in result.stderr
    assert tracebacks(result.stderr) == 2


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64MB"),
        ("HOROVOD_CYCLE_TIME", "abc"),
        ("HOROVOD_CACHE_CAPACITY", "-1"),
    ],
)
def test_a_wrong_setting_is_named_on_every_rank(
    commands: Commands, variable: str, text: str
) -> None:
    result = commands.run("horovodrun", "-np", "2", *commands.settings_job(), **{variable: text})
    assert result.returncode != 0
    assert f"{variable}: expected" in result.stderr
    assert tracebacks(result.stderr) == 2


def test_too_few_file_descriptors_are_named_on_every_rank(commands: Commands) -> None:
    result = commands.run("horovodrun", "--gloo", "-np", "2", sys.executable, "-c", TIGHT)
    assert result.returncode != 0
    assert "18 are for the connections with other ranks" in result.stderr
    assert tracebacks(result.stderr) == 2


def test_ranks_that_disagree_learn_both_values(commands: Commands) -> None:
    one = ["-np", "1", "-x", "HOROVOD_CACHE_CAPACITY=0", *commands.settings_job()]
    other = ["-np", "1", "-x", "HOROVOD_CACHE_CAPACITY=64", *commands.settings_job()]
    result = commands.run("mpirun", *one, ":", *other)
    assert result.returncode != 0
    assert re.search(r"HOROVOD_CACHE_CAPACITY.*0 on rank 0, 64 on rank 1", result.stderr)


def test_a_short_run_says_how_many_steps_it_needs(commands: Commands) -> None:
    log = commands.folder / "log.csv"
    command = ["horovodrun", "-np", "2", *commands.job(3)]
    result = commands.run(*command, HOROVOD_AUTOTUNE="1", HOROVOD_AUTOTUNE_LOG=str(log))
    assert result.returncode == 0, result.stderr
    assert re.search(r"saw 3 steps.*recognised after 5 that run", result.stderr), result.stderr


def test_best_without_an_answer_says_why(commands: Commands) -> None:
    log = commands.folder / "log.csv"
    log.write_text("")
    best = commands.run("autotune", "best", log)
    assert (best.returncode, best.stdout) == (1, "")
    assert str(log) in best.stderr
    assert commands.run("autotune", "best").returncode == 2
