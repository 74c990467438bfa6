"""Which settings a job starts with that replays a log, and what it says about them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from autotune.cli.formats import render
from autotune.nccl.start import versions_of
from autotune.result import Result
from autotune.space import PARAMETERS
from autotune.trial import CommParams
from horovod.common.settings import RankReport, Settings, find_error
from horovod.common.world import Topology
from horovod.tuning import nccl
from horovod.tuning.replaying import replayed_params
from horovod.tuning.settings import read_settings

TUNED = CommParams(fusion_threshold_bytes=123457, cycle_time_ms=2.5, cache_capacity=0)
EVERYTHING = {parameter.env: "1" for parameter in PARAMETERS}
JOB = {"size": 4, "local_size": 2, "versions": {"mpi": "5"}}


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "best.json"
    path.write_text(render(Result(params=TUNED, job=JOB), "json"))
    return str(path)


def replayed(settings: Settings, size: int = 4) -> dict | None:
    return replayed_params(settings, size=size, local_size=2, versions={"mpi": "5"}, host="n1")


def test_without_the_variable_nothing_is_replayed() -> None:
    assert replayed(read_settings({})) is None


def test_the_values_are_those_of_the_log(saved: str) -> None:
    assert replayed(read_settings({"HOROVOD_AUTOTUNE_REPLAY": saved})) == TUNED.as_dict()


def test_explicit_settings_win(saved: str) -> None:
    environ = {"HOROVOD_AUTOTUNE_REPLAY": saved, "HOROVOD_CYCLE_TIME": "7"}
    assert replayed(read_settings(environ)) == {**TUNED.as_dict(), "cycle_time_ms": 7.0}


def test_a_log_that_cannot_be_read_is_an_error_with_its_path() -> None:
    with pytest.raises(ValueError, match=r"HOROVOD_AUTOTUNE_REPLAY: /missing\.csv: no such file"):
        replayed(read_settings({"HOROVOD_AUTOTUNE_REPLAY": "/missing.csv"}))


def test_where_everything_is_explicit_a_missing_log_is_a_warning(caplog) -> None:
    environ = {**EVERYTHING, "HOROVOD_AUTOTUNE_REPLAY": "/missing.csv"}
    settings = read_settings(environ)
    found = replayed(settings)
    assert found is not None and found.items() <= settings.params.items()
    assert len(found) == len(EVERYTHING)
    assert "/missing.csv" in caplog.text


def test_what_nccl_was_started_with_is_put_in_force_on_every_rank(tmp_path: Path) -> None:
    start = {"NCCL_BUFFSIZE": "1048576"}
    path = tmp_path / "best.json"
    path.write_text(render(Result(params=TUNED, job={"versions": versions_of(start)}), "json"))
    settings = read_settings({"HOROVOD_AUTOTUNE_REPLAY": str(path)})
    told: list = []

    def exchange(own: object) -> list:
        told.append(own)
        return [told[0], own]

    for rank in (0, 1):
        place = Topology(
            rank=rank,
            size=2,
            local_rank=rank,
            local_size=2,
            cross_rank=0,
            cross_size=1,
            homogeneous=True,
            hosts=(0, 0),
        )
        environ: dict[str, str] = {}
        line = nccl.settle(settings, place, exchange, environ)
        assert environ == start and "as replayed: NCCL_BUFFSIZE=1048576" in line
    missing = read_settings({"HOROVOD_AUTOTUNE_REPLAY": "/missing.csv"})
    assert nccl.replayed_start_up(missing) == {}


def test_another_job_is_a_warning_that_says_in_what_it_differs(saved: str, caplog) -> None:
    settings = read_settings({"HOROVOD_AUTOTUNE_REPLAY": saved})
    replayed(settings)
    assert caplog.text == ""
    replayed(settings, size=8)
    assert "4 ranks there, 8 here" in caplog.text and saved in caplog.text


def test_tuning_is_off_and_a_check_needs_a_log(saved: str, caplog) -> None:
    caplog.set_level(logging.WARNING)
    replayed(read_settings({"HOROVOD_AUTOTUNE_REPLAY": saved, "HOROVOD_AUTOTUNE": "1"}))
    assert "switched off" in caplog.text
    replayed(read_settings({"HOROVOD_AUTOTUNE_REPLAY_CHECK": "1"}))
    assert "no effect" in caplog.text


def test_the_path_may_name_the_queues_job(saved: str, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "best")
    path = saved.replace("best", "{job_id}")
    assert replayed(read_settings({"HOROVOD_AUTOTUNE_REPLAY": path})) == TUNED.as_dict()


def test_all_ranks_take_the_start_of_rank_0_and_nothing_becomes_explicit() -> None:
    settings = read_settings({"HOROVOD_CYCLE_TIME": "2.5"})
    changed = settings.with_params(TUNED.as_dict())
    assert changed.params == {**settings.params, **TUNED.as_dict()}
    assert changed.fixed == {"cycle_time_ms": 2.5}
    assert settings.with_params(None) is settings


def test_a_log_on_some_ranks_only_is_an_error() -> None:
    environs = ({"HOROVOD_AUTOTUNE_REPLAY": "a.csv"}, {})
    reports = [RankReport(read_settings(environ).to_agree) for environ in environs]
    error = find_error(reports) or ""
    assert "HOROVOD_AUTOTUNE_REPLAY" in error and "rank 1" in error and "-x" in error
