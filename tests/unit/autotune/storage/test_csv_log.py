from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import LogError
from autotune.exact import exact, exact_shown
from autotune.space import BY_NAME, HOROVOD
from autotune.storage.csv_log import CsvLog, replace_file, row_text, set_aside
from autotune.storage.foreign import parse_csv
from autotune.trial import RunState

HEADER = ",".join(HOROVOD.columns)

COLUMNS = (
    "hierarchical_allreduce,hierarchical_allgather,cache_capacity,cycle_time_ms,"
    "tensor_fusion_threshold,score"
)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_exact_and_plain(value: float) -> None:
    assert float(exact(value)) == value
    assert "e" not in exact(value)


@given(st.integers(0, 2**40))
def test_a_threshold_in_mib_is_exact_in_bytes(value: int) -> None:
    threshold = BY_NAME["fusion_threshold_bytes"]
    assert threshold.of_shown(float(exact_shown(threshold, value))) == value


def test_the_file_is_as_documented(tmp_path: Path, make_run, make_trial) -> None:
    log = CsvLog(str(tmp_path / "log.csv"))
    log.begin_run(make_run())
    log.add_trial(make_trial(0, 812.5))
    log.add_trial(make_trial(1, 1290.25))
    log.finish_run(RunState.DONE, make_trial(1, 1290.25))
    log.close()
    lines = (tmp_path / "log.csv").read_text().split("\n")
    assert lines[0] == HEADER == COLUMNS
    assert lines[1] == "0,0,1024,1,64,812.5"
    assert lines[2] == lines[3] == f"0,0,1024,1,{4099 / 2**20!r},1290.25"
    assert lines[4:] == [""]


def test_the_last_row_repeats_another_exactly_when_the_run_is_done(
    tmp_path: Path, make_run, make_trial
) -> None:
    path = tmp_path / "log.csv"
    log = CsvLog(str(path))
    log.begin_run(make_run())
    for trial in (make_trial(0), make_trial(1), make_trial(2)):
        log.add_trial(trial)
        assert parse_csv(path.read_bytes(), "log.csv").best is None
    log.finish_run(RunState.DONE, make_trial(1))
    assert parse_csv(path.read_bytes(), "log.csv").best == make_trial(1)
    log.close()


def test_the_last_row_names_a_setting_with_its_last_score_and_no_row_is_changed(
    tmp_path: Path, make_run, make_trial
) -> None:
    path = tmp_path / "log.csv"
    log = CsvLog(str(path))
    log.begin_run(make_run())
    log.add_trial(make_trial(0, 100.0))
    log.add_trial(make_trial(1, 140.0))
    before = path.read_text()
    log.finish_run(RunState.DONE, make_trial(1, 117.5))
    log.close()
    assert path.read_text() == f"{before}{row_text(make_trial(1, 117.5))}\n"
    content = parse_csv(path.read_bytes(), "log.csv")
    assert content.best == make_trial(1, 117.5)
    assert content.trials == (make_trial(0, 100.0), make_trial(1, 140.0))


def test_a_row_is_one_write(tmp_path: Path, make_run, make_trial, monkeypatch) -> None:
    log = CsvLog(str(tmp_path / "log.csv"))
    log.begin_run(make_run())
    writes: list[bytes] = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or real(fd, data))
    log.add_trial(make_trial(0))
    assert writes == [f"{row_text(make_trial(0))}\n".encode()]
    log.close()


def test_a_row_that_the_disk_refuses_changes_nothing_and_can_be_written_again(
    tmp_path: Path, make_run, make_trial, monkeypatch
) -> None:
    path = tmp_path / "log.csv"
    log = CsvLog(str(path))
    log.begin_run(make_run())
    real = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: real(fd, data[:5]))
        with pytest.raises(LogError, match="space"):
            log.add_trial(make_trial(0))
    assert path.read_text() == HEADER + "\n"
    log.add_trial(make_trial(0))
    log.add_trial(make_trial(1))
    log.close()
    assert parse_csv(path.read_bytes(), "").trials == (make_trial(0), make_trial(1))


@pytest.mark.parametrize("cut", [1, 3, 10, 30])
def test_restoring_cuts_an_unfinished_line_and_adds_what_is_missing(
    tmp_path: Path, make_run, make_trial, cut: int
) -> None:
    path = tmp_path / "log.csv"
    trials = [make_trial(number) for number in range(4)]
    log = CsvLog(str(path))
    log.restore(trials)
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    log.restore(trials)
    log.close()
    assert path.read_bytes() == whole


def test_restoring_replaces_what_is_not_right(tmp_path: Path, make_trial) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{HEADER}\n1,1,0,1,1,1\n")
    path.chmod(0o640)
    log = CsvLog(str(path))
    log.restore([make_trial(0)], make_trial(0))
    log.close()
    assert path.read_text().split("\n")[1:] == [row_text(make_trial(0))] * 2 + [""]
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["log.csv"]


def test_beginning_never_overwrites_another_run(tmp_path: Path, make_run) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{HEADER}\n1,1,0,1,1,1\n")
    with pytest.raises(LogError, match="another run"):
        CsvLog(str(path)).begin_run(make_run())
    assert path.read_text() == f"{HEADER}\n1,1,0,1,1,1\n"


def test_setting_aside_takes_the_first_free_number_and_only_once(tmp_path: Path) -> None:
    path = str(tmp_path / "log.csv")
    replace_file(path, b"first\n")
    assert set_aside(path) == set_aside(path) == path + ".1"
    replace_file(path, b"second\n")
    assert set_aside(path) == path + ".2"
    assert (tmp_path / "log.csv.1").read_bytes() == b"first\n"
    assert (tmp_path / "log.csv.2").read_bytes() == b"second\n"


def test_setting_aside_works_without_hard_links(tmp_path: Path, monkeypatch) -> None:
    def no_link(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", no_link)
    path = str(tmp_path / "log.csv")
    replace_file(path, b"first\n")
    assert set_aside(path) == path + ".1"
    assert (tmp_path / "log.csv.1").read_bytes() == b"first\n"
