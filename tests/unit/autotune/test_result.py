from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli.formats import render
from autotune.cli.main import main
from autotune.errors import LogError
from autotune.result import Result, differences, read_result
from autotune.trial import CommParams

SAVED = Result(
    params=CommParams(fusion_threshold_bytes=123457, cycle_time_ms=0.1 + 0.2),
    score=2148.44,
    gain=(0.1, 0.05, 0.2),
    certified=True,
    job={
        "size": 4,
        "local_size": 2,
        "cross_size": 2,
        "host": "node1",
        "versions": {"hvd-autotune": "0.29.0", "mpi": "Open MPI v5.0.11"},
    },
)
SAME = {"size": 4, "local_size": 2, "versions": {"hvd-autotune": "0.29.0"}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "best.json"
    path.write_text(render(SAVED, "json"))
    return path


def test_a_saved_result_comes_back_as_it_was(saved: Path) -> None:
    assert read_result(str(saved)) == SAVED


@pytest.mark.parametrize("name", ["text", "env", "mpirun", "slurm", "json"])
def test_a_saved_result_is_read_wherever_a_log_is(saved: Path, capsys, name: str) -> None:
    assert main(["best", str(saved), "--format", name]) == 0
    assert capsys.readouterr().out == render(SAVED, name) + "\n"


def test_a_saved_result_keeps_that_it_is_certified(saved: Path, capsys) -> None:
    assert main(["best", str(saved), "--require-certified"]) == 0
    assert "certified" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "{}",
        '{"fusion_threshold_bytes": 1}',
        json.dumps({**json.loads(render(SAVED, "json")), "cycle_time_ms": -1}),
        json.dumps({**json.loads(render(SAVED, "json")), "cycle_time_ms": None}),
        json.dumps({**json.loads(render(SAVED, "json")), "score": []}),
        json.dumps({**json.loads(render(SAVED, "json")), "job": 3}),
        "{" + "[" * 100_000,
    ],
)
def test_other_json_is_one_clear_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "best.json"
    path.write_text(content)
    with pytest.raises(LogError, match=r"best\.json: not a saved result") as raised:
        read_result(str(path))
    assert "\n" not in str(raised.value)


def test_the_same_job_differs_in_nothing() -> None:
    assert differences(SAVED, **SAME) == ""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"size": 8}, "4 ranks there, 8 here"),
        ({"local_size": 4}, "2 ranks a host there, 4 here"),
        ({"versions": {"hvd-autotune": "1.0"}}, "hvd-autotune 0.29.0 there, 1.0 here"),
        ({"versions": {"mpi": "MPICH"}}, "mpi Open MPI v5.0.11 there, MPICH here"),
    ],
)
def test_another_job_differs_in_what_is_named(change: dict, text: str) -> None:
    assert differences(SAVED, **{**SAME, **change}) == text


def test_a_log_that_says_nothing_about_its_job_differs_in_nothing_known() -> None:
    assert differences(Result(params=CommParams()), **SAME) == ""
