"""HOROVOD_AUTOTUNE_REPLAY_CHECK: replayed settings are compared with the default in the job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from autotune.cli.formats import render
from autotune.result import Result
from autotune.space import PARAMETERS
from autotune.trial import CommParams
from e2e.commands import FAST, Commands

JOB = Path(__file__).with_name("checked_job.py")
DEFAULT = CommParams().as_dict()


def checked(commands: Commands, params: CommParams, steps: int) -> subprocess.CompletedProcess[str]:
    environ = {name: FAST[name] for name in FAST if "WARMUP" in name or "STEPS" in name}
    saved = commands.folder / "best.json"
    saved.write_text(render(Result(params=params, job={}), "json"))
    job = ["-np", "2", sys.executable, JOB, commands.folder, str(steps)]
    result = commands.run(
        *("mpirun", "--bind-to", "none", *job),
        HOROVOD_AUTOTUNE_REPLAY=str(saved),
        HOROVOD_AUTOTUNE_REPLAY_CHECK="1",
        **environ,
    )
    assert result.returncode == 0, result.stderr
    return result


def test_a_job_goes_back_to_the_default_where_replayed_settings_are_worse(
    commands: Commands,
) -> None:
    result = checked(commands, CommParams(cycle_time_ms=60.0), 2000)
    assert "worse here: the default takes their place" in result.stderr
    assert [rank["params"] for rank in commands.ranks(2)] == [DEFAULT] * 2
    assert commands.ranks(2)[0]["state"] == "done"


def test_a_job_that_ends_before_the_verdict_keeps_the_replayed_settings_or_the_default(
    commands: Commands,
) -> None:
    tuned = CommParams(cache_capacity=512)
    result = checked(commands, tuned, 20)
    assert "no verdict" in result.stderr
    first, second = (rank["params"] for rank in commands.ranks(2))
    assert first == second and first in (tuned.as_dict(), DEFAULT)
    assert set(first) == {parameter.name for parameter in PARAMETERS}
