"""NCCL's parameters follow those of a runtime: after the score, only where they are explored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.bayes.encoding import SearchSpace
from autotune.cli.formats import formats_of, render
from autotune.cli.main import main
from autotune.errors import RefusedEntryError
from autotune.nccl.start import START_UP, settings_of, versions_of
from autotune.result import Result, read_result
from autotune.space import HOROVOD
from autotune.storage import open_logs
from autotune.storage.contract import RunInfo
from autotune.storage.reader import read_log
from autotune.tables import SETTINGS
from autotune.tables.nccl import (
    ALGORITHMS,
    DDP_NCCL,
    HOROVOD_NCCL,
    NCCL_PARAMETERS,
    PROTOCOLS,
    CommNcclParams,
    DdpNcclParams,
)
from autotune.trial import CommParams, Fingerprint, RunState, Setting, Trial

KINDS = (CommNcclParams, DdpNcclParams)
START = {"NCCL_MIN_NCHANNELS": "16", "NCCL_BUFFSIZE": "1048576"}


def written(tmp_path: Path, settings: list[Setting], versions: dict[str, str]) -> str:
    """Return the path of a finished log whose last line is the last of ``settings``."""
    table, path = settings[0].table, str(tmp_path / "log.csv")
    fingerprint = Fingerprint(
        tensors=(("allreduce", 8),),
        size=2,
        local_size=2,
        cross_size=1,
        versions=versions,
        fixed={},
        table=table.name,
    )
    logs = open_logs(path, None, host="node1", pid=1, table=table)
    logs.start(RunInfo(fingerprint=fingerprint, host="node1", pid=1, seed=1))
    trials = [
        Trial(trial_id=number, params=params, score=10.0 + number)
        for number, params in enumerate(settings)
    ]
    for trial in trials:
        logs.add_trial(trial)
    logs.finish_run(RunState.DONE, trials[-1])
    assert logs.troubles == []
    logs.close()
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_settings_that_differ_in_them_alone_are_different_trials(
    kind: type[Setting], tmp_path: Path
) -> None:
    settings: list[Setting] = [
        kind(),
        kind.from_dict({"nccl_channels": 8}),
        kind.from_dict({"nccl_algorithm": 1, "nccl_channels": 8}),
    ]
    path = written(tmp_path, settings, {})
    header, *rows = Path(path).read_text().splitlines()
    assert header.split(",")[-4:] == ["score", *(row.column for row in NCCL_PARAMETERS)]
    assert [row.split(",")[-4:] for row in rows] == [
        ["10", "0", "0", "0"],
        ["11", "0", "0", "8"],
        ["12", "1", "0", "8"],
        ["12", "1", "0", "8"],
    ]
    for name in (path, path.replace(".csv", ".db")):
        view = read_log(name)
        assert [trial.params for trial in view.trials] == settings
        assert view.finished and view.answer().params == settings[-1]
    Path(path.replace(".csv", ".db")).unlink()
    assert read_log(path).answer().params == settings[-1]


def test_the_same_setting_twice_is_still_refused_in_every_table(tmp_path: Path) -> None:
    for kind in SETTINGS.values():
        folder = tmp_path / kind.table.name
        folder.mkdir()
        with pytest.raises((AssertionError, RefusedEntryError)):
            written(folder, [kind(), kind()], {})


def test_logs_without_them_are_what_they_were() -> None:
    assert HOROVOD.columns == HOROVOD_NCCL.columns[: len(HOROVOD.columns)]
    assert not any(name.startswith("nccl") for name in HOROVOD.columns)


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_of_theirs_is_proposed_and_comes_back(kind: type[Setting]) -> None:
    names = [row.name for row in NCCL_PARAMETERS]
    frozen = [name for name in kind.table.by_name if name not in names]
    space = SearchSpace(kind(), frozen=frozen)
    assert space.names == tuple(names)
    found = [space.decode(index) for index in range(space.size)]
    for row in NCCL_PARAMETERS:
        assert {params.as_dict()[row.name] for params in found} == set(row.listed)
    for index, params in enumerate(found):
        assert (space.encode(params) == space.candidates[index]).all()


def conf_of(params: Setting) -> list[list[str]]:
    lines = render(Result(params=params), "nccl").splitlines()
    return [line.split(",") for line in lines if not line.startswith("#")]


def test_the_file_of_nvidias_example_tuner_says_the_setting() -> None:
    assert conf_of(CommNcclParams()) == []
    (row,) = conf_of(CommNcclParams(nccl_algorithm=1, nccl_protocol=2, nccl_channels=8))
    assert row == ["allreduce", "1048576", "4294967295", "tree", "ll128", "8", *["-1"] * 4]
    (row,) = conf_of(DdpNcclParams(nccl_channels=4))
    assert row[3:6] == ["ring", "simple", "4"]
    (row,) = conf_of(CommNcclParams(nccl_algorithm=1))
    assert row[3:6] == ["tree", "simple", "-1"]
    assert "nccl" in formats_of(HOROVOD_NCCL) and "nccl" in formats_of(DDP_NCCL)
    assert "nccl" not in formats_of(HOROVOD)


def test_numbers_and_words_are_nccls_own() -> None:
    """NCCL's plugin/nccl_tuner.h: tree 0, ring 1, ..., pat 6; LL 0, LL128 1, simple 2."""
    assert ALGORITHMS.index("tree") == 1 and ALGORITHMS.index("pat") == 7
    assert PROTOCOLS.index("ll") == 1 and PROTOCOLS.index("simple") == 3
    algorithm, protocol, _ = NCCL_PARAMETERS
    assert (algorithm.names[1:], protocol.names[1:]) == (ALGORITHMS[1:], PROTOCOLS[1:])


def test_what_nccl_was_started_with_goes_to_production_with_the_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = versions_of(START)
    assert list(versions) == [START_UP] and settings_of(versions) == START
    assert versions_of({}) == {} and settings_of({}) == {}
    path = written(tmp_path, [CommNcclParams(), CommNcclParams(nccl_channels=8)], versions)
    assert main(["best", path, "--format", "env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"AUTOTUNE_NCCL_CHANNELS=8", *(f"{k}={v}" for k, v in START.items())} <= set(lines)
    assert main(["best", path, "--format", "json"]) == 0
    saved = tmp_path / "saved.json"
    saved.write_text(capsys.readouterr().out)
    assert json.loads(saved.read_text())["table"] == HOROVOD_NCCL.name
    assert read_result(str(saved)).params == CommNcclParams(nccl_channels=8)


def test_one_of_the_runtimes_settings_is_none_of_the_wider_table() -> None:
    assert CommParams() != CommNcclParams()
    assert CommNcclParams().as_engine == CommNcclParams()
