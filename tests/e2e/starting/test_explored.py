"""What is explored by the user's word only: logged, in force on every rank, replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.result import read_result
from autotune.storage.reader import read_log
from autotune.trial import CommParams
from e2e.commands import FAST, Commands


def run_explored(commands: Commands) -> tuple[Path, str]:
    """Return the log of a job in which fp16 was explored, and what it said."""
    log = commands.folder / "log.csv"
    said = {"HOROVOD_AUTOTUNE_LOG": str(log), "HOROVOD_AUTOTUNE_EXPLORE": "static_graph, fp16"}
    words = ["mpirun", "-np", "2", "--bind-to", "none", *commands.job(100_000)]  # or until done
    result = commands.run(*words, limit_s=100, **FAST, **said)
    assert result.returncode == 0, result.stderr
    return log, result.stderr


def test_fp16_is_explored_and_the_answer_is_in_force_and_replayed(commands: Commands) -> None:
    log, said = run_explored(commands)
    assert "static_graph: not known here but to DistributedDataParallel" in said
    assert "fp16 gradients off: the default" in said
    header, *rows = log.read_text().splitlines()
    assert header.endswith(",score,fp16_gradients")
    assert {row.rpartition(",")[2] for row in rows} == {"0", "1"}
    answer = read_result(str(log))
    assert answer.finished and answer.params.table.name == "horovod+fp16"
    assert [t.params for t in read_log(str(log.with_suffix(".db"))).trials][1:]
    usual = {**answer.params.as_dict()}
    in_force = usual.pop("fp16_gradients")
    shown = usual | ({"fp16_gradients": True} if in_force else {})
    assert [rank["params"] for rank in commands.ranks(2)] == [shown] * 2
    again = ["mpirun", "-np", "2", "--bind-to", "none", *commands.settings_job()]
    result = commands.run(*again, HOROVOD_AUTOTUNE_REPLAY=str(log))
    assert result.returncode == 0, result.stderr
    assert [rank["params"] for rank in commands.ranks(2)] == [shown] * 2


@pytest.mark.parametrize("way", ["replay", "flag", "variable"])
def test_they_are_put_in_force_without_a_tuner(commands: Commands, way: str) -> None:
    job = ["horovodrun", "-np", "2"]
    environ = {}
    if way == "flag":
        job += ["--bf16-gradients"]
    elif way == "variable":
        environ["AUTOTUNE_BF16_GRADIENTS"] = "1"
    else:
        saved = {"table": "horovod+bf16", **CommParams().as_dict(), "bf16_gradients": True}
        (commands.folder / "best.json").write_text(json.dumps(saved))
        environ["HOROVOD_AUTOTUNE_REPLAY"] = str(commands.folder / "best.json")
    result = commands.run(*job, *commands.settings_job(), **environ)
    assert result.returncode == 0, result.stderr
    assert [rank["params"]["bf16_gradients"] for rank in commands.ranks(2)] == [True, True]


def test_two_halves_in_one_job_are_refused(commands: Commands) -> None:
    environ = {"AUTOTUNE_BF16_GRADIENTS": "1", "HOROVOD_AUTOTUNE_EXPLORE": "fp16"}
    words = ["mpirun", "-np", "2", "--bind-to", "none", *commands.settings_job()]
    result = commands.run(*words, **environ)
    assert result.returncode != 0
    assert "expected one of fp16 and bf16, got both" in result.stderr
