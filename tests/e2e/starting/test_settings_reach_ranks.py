"""Settings, from where they are said to where they are in force: read back on every rank."""

from __future__ import annotations

import re
import time

import pytest

from e2e.commands import Commands


def test_command_line_beats_file_beats_environment_on_every_rank(commands: Commands) -> None:
    file = commands.folder / "job.yaml"
    file.write_text("params: {cycle_time_ms: 2.5, cache_capacity: 64}\n")
    environ = {"CYCLE_TIME": "9", "CACHE_CAPACITY": "9", "FUSION_THRESHOLD": "65536"}
    options = ["--config-file", file, "--cache-capacity", "128"]
    result = commands.run(
        *["horovodrun", "-np", "2", *options, *commands.settings_job()],
        **{f"HOROVOD_{name}": text for name, text in environ.items()},
    )
    assert result.returncode == 0, result.stderr
    for rank in commands.ranks(2):
        params = rank["params"]
        assert params["cache_capacity"] == 128
        assert params["cycle_time_ms"] == 2.5
        assert params["fusion_threshold_bytes"] == 65536


@pytest.mark.parametrize(
    ("variable", "first", "second"),
    [
        ("HOROVOD_CACHE_CAPACITY", "1024", "0"),
        ("HOROVOD_AUTOTUNE", "1", "0"),
        ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "5", "7"),
    ],
)
def test_ranks_that_disagree_all_learn_it_within_seconds(
    commands: Commands, variable: str, first: str, second: str
) -> None:
    one = ["-np", "1", "-x", f"{variable}={first}", *commands.settings_job()]
    other = ["-np", "1", "-x", f"{variable}={second}", *commands.settings_job()]
    begun = time.monotonic()
    result = commands.run("mpirun", *one, ":", *other)
    assert result.returncode != 0
    assert time.monotonic() - begun < 30
    said = rf"ValueError: .*{variable} .*{first} on rank 0, {second} on rank 1"
    assert len(re.findall(said, result.stderr)) == 2


def test_hierarchical_allreduce_works_or_says_why_not(commands: Commands) -> None:
    words = ["horovodrun", "-np", "2", "--hierarchical-allreduce", *commands.arrays_job(2)]
    result = commands.run(*words)
    assert result.returncode == 0, result.stderr
    in_force = [rank["params"]["hierarchical_allreduce"] for rank in commands.ranks(2)]
    lines = re.findall(r"^.*hierarchical.*$", result.stderr, re.MULTILINE | re.IGNORECASE)
    assert in_force == [True, True] or len(lines) == 1
