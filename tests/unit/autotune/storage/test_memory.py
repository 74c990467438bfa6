from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.storage import Fresh, Remembered, Resume, find_similar, memory, open_logs
from autotune.storage.contract import RunInfo
from autotune.storage.memory import MOST_FILES, tensor_similarity
from autotune.trial import Fingerprint, RunState, Standing, TrialState

DATA = Path(__file__).parents[3] / "data"
RESNET = tuple(("allreduce", 1000 + 37 * number) for number in range(161))
BERT = tuple(("allreduce", 9000 + 11 * number) for number in range(199))


def info(tensors=RESNET, *, size: int = 2, hosts: int = 1, mpi: str = "5", **fixed) -> RunInfo:
    fingerprint = Fingerprint(
        tensors=tensors,
        size=size,
        local_size=size // hosts,
        cross_size=hosts,
        versions={"mpi": mpi},
        fixed=fixed,
    )
    return RunInfo(fingerprint=fingerprint, host="node1", pid=1, seed=7)


@pytest.fixture
def job(tmp_path: Path, make_trial, make_gain, make_sample, certificate) -> Callable[..., Path]:
    """A whole job with a log of its own: the default, trial 1, an abandoned and a rejected one."""

    def run(name: str, run: RunInfo, *, done: bool = True, trials: int = 4, gain=30) -> Path:
        path = tmp_path / f"{name}.csv"
        logs = open_logs(str(path), None, host="node1", pid=1)
        logs.start(run)
        best = make_trial(1, 100.0 + gain, gain=make_gain(gain))
        tried = [
            make_trial(0, 100.0),
            best,
            make_trial(2, 40.0, gain=make_gain(-60), state=TrialState.ABANDONED),
            make_trial(3, 0.0, state=TrialState.REJECTED),
        ]
        for trial in tried[:trials]:
            logs.add_sample(make_sample(trial.trial_id))
            logs.add_trial(trial)
        if trials > 1:
            logs.set_best(Standing(best=best, gain=make_gain(gain)))
        if done:
            logs.add_certificate(certificate)
            logs.finish_run(RunState.DONE, replace(best, score=110.0))
        logs.close()
        return path.with_suffix(".db")

    return run


def test_the_same_model_on_other_ranks_is_found_with_all_that_is_known(
    job, tmp_path: Path, make_trial, make_gain, certificate
) -> None:
    path = job("a", info(size=4))
    (found,) = find_similar(info(size=2), [str(tmp_path)])
    assert (found.path, found.run_id) == (str(path), 1)
    assert found.why == "the same tensors on 4 ranks instead of 2"
    assert 0 < found.similarity < 1
    default, best, abandoned, rejected = found.trials
    assert default == make_trial(0, 100.0)
    assert best.gain is not None and best.gain.estimate == certificate.gain
    assert (abandoned.state, abandoned.gain) == (TrialState.ABANDONED, make_gain(-60))
    assert (rejected.state, rejected.gain) == (TrialState.REJECTED, None)
    assert found.best == best.params and found.certificate == certificate
    assert found.step_us == pytest.approx(123.45)
    assert found.exposed_share == pytest.approx(321.25 / 1234.5)


def test_an_unfinished_job_is_remembered_with_what_it_held_for_the_best(
    job, tmp_path: Path, make_gain
) -> None:
    job("a", info(size=4), done=False)
    (found,) = find_similar(info(), [str(tmp_path)])
    assert found.certificate is None
    assert (found.best, make_gain(30)) == (found.trials[1].params, found.trials[1].gain)


@pytest.mark.parametrize(
    ("tensors", "trials"), [(BERT, 4), (RESNET[:100], 4), ((), 4), (RESNET, 1), (RESNET, 0)]
)
def test_another_model_and_a_job_that_tried_nothing_are_not_found(
    job, tmp_path: Path, tensors, trials: int
) -> None:
    job("a", info(tensors, size=4), done=False, trials=trials) if trials else None
    assert find_similar(info(), [str(tmp_path)]) == []


def test_what_is_more_alike_comes_first_and_at_most_three(job, tmp_path: Path) -> None:
    half = tuple((operation, size // 2 + 7) for operation, size in RESNET)
    job("compressed", info(half))
    job("network", info(size=4, hosts=2))
    job("versions", info(mpi="4"))
    job("larger", info(size=16))
    job("bert", info(BERT))
    found = find_similar(info(), [str(tmp_path)])
    names = [os.path.basename(one.path) for one in found]
    assert names == ["versions.db", "larger.db", "network.db"]
    assert [one.why for one in found] == [
        "the same tensors, with mpi 4 instead of 5",
        "the same tensors on 16 ranks instead of 2",
        "the same tensors on 4 ranks instead of 2, 2 hosts instead of 1",
    ]
    similarities = [one.similarity for one in found]
    assert similarities == sorted(similarities, reverse=True)
    (found,) = find_similar(info(half, size=8), [str(tmp_path / "compressed.db")])
    assert found.why.startswith("the same tensors on 2 ranks")


def test_of_equal_jobs_one_is_remembered_the_finished_one_first(job, tmp_path: Path) -> None:
    job("finished", info(size=4), gain=10)
    job("unfinished", info(size=4), done=False)
    (found,) = find_similar(info(), [str(tmp_path)])
    assert os.path.basename(found.path) == "finished.db"


def test_a_log_of_tables_1_is_remembered_with_wide_intervals(tmp_path: Path, make_run) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.executescript((DATA / "autotune-tables-1.sql").read_text())
    done, unfinished = find_similar(make_run(size=4), [str(tmp_path)])
    assert done.certificate is not None and done.best == done.trials[1].params
    gain = done.trials[1].gain
    assert gain is not None and gain.estimate == done.certificate.gain
    gain = unfinished.trials[1].gain
    assert gain is not None and gain.estimate == pytest.approx(0.8)
    assert gain.low < 0.25 and gain.high > 1.5


@pytest.mark.parametrize("content", [b"precious", b"SQLite format 3\0 and then nothing", b""])
def test_a_broken_file_is_skipped_with_one_sentence(
    job, tmp_path: Path, content: bytes, make_run
) -> None:
    for name in ("x.db", "y.db"):
        (tmp_path / name).write_bytes(content)
    job("a", info(size=4))
    (tmp_path / "folder.db").mkdir()
    (tmp_path / "dangling.db").symlink_to(tmp_path / "missing")
    said: list[str] = []
    assert len(find_similar(info(), [str(tmp_path), "/missing"], say=said.append)) == 1
    assert len(said) == bool(content)
    assert all("and 1 more" in text for text in said)


def test_values_that_are_not_ours_are_skipped(job, tmp_path: Path) -> None:
    path = job("a", info(size=4))
    job("b", info(size=8))
    for column, value in (("fingerprint", "{}"), ("fingerprint", "[" * 100_000), ("state", "x")):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE runs SET {column} = ?", (value,))
        said: list[str] = []
        (found,) = find_similar(info(), [str(tmp_path)], say=said.append)
        assert found.path.endswith("b.db") and len(said) == 1


def test_databases_of_others_are_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "invoices.db")) as connection:
        connection.execute("CREATE TABLE runs (id INTEGER PRIMARY KEY)")
    said: list[str] = []
    assert find_similar(info(), [str(tmp_path)], say=said.append) == []
    assert said == []


def test_only_the_newest_files_of_a_folder_are_opened(job, tmp_path: Path, monkeypatch) -> None:
    content = job("a", info(size=4)).read_bytes()
    for number in range(200):
        path = tmp_path / f"{number}.db"
        path.write_bytes(content)
        os.utime(path, (number, number))
    opened: list[str] = []
    real = memory.open_beside_writer
    monkeypatch.setattr(
        memory, "open_beside_writer", lambda path: opened.append(path) or real(path)
    )
    assert len(find_similar(info(), [str(tmp_path)])) == 1
    assert len(opened) <= MOST_FILES + 1
    assert str(tmp_path / "199.db") in opened and str(tmp_path / "1.db") not in opened


def test_searching_changes_no_file(job, tmp_path: Path) -> None:
    job("a", info(size=4))
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    assert find_similar(info(), [str(tmp_path)])
    assert before == {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}


class TestStarting:
    """What ``Logs.start`` hands on."""

    @pytest.fixture
    def start(self, tmp_path: Path) -> Callable[..., tuple[Remembered, ...]]:
        def start(name: str, run: RunInfo, *, db: str | None = None, retune: bool = False):
            logs = open_logs(str(tmp_path / name), db, host="node1", pid=2)
            begun = logs.start(run, retune=retune)
            logs.close()
            assert isinstance(begun, Fresh)
            return begun.memory

        return start

    def test_a_fresh_job_gets_what_is_in_its_folder(self, job, start) -> None:
        job("a", info(size=4))
        assert [one.run_id for one in start("b.csv", info(size=2))] == [1]

    def test_a_job_of_other_ranks_on_the_same_log_is_remembered(self, job, start) -> None:
        job("a", info(size=4))
        assert [one.why[:29] for one in start("a.csv", info())] == ["the same tensors on 4 ranks i"]

    def test_the_same_job_with_another_log_is_remembered(self, job, start) -> None:
        job("a", info())
        (found,) = start("b.csv", info())
        assert (found.why, found.similarity) == ("this job in another log", 1.0)

    @pytest.mark.parametrize("kind", ["folder", "file"])
    def test_the_database_of_the_environment_is_searched(
        self, job, start, tmp_path: Path, kind: str
    ) -> None:
        (tmp_path / "runs").mkdir()
        job("a", info(size=4)).rename(tmp_path / "runs" / "a.db")
        place = tmp_path / "runs" / ("a.db" if kind == "file" else "")
        assert len(start("b.csv", info(), db=str(place))) == 1

    def test_a_removed_csv_and_a_retune_are_orders_to_start_over(
        self, job, start, tmp_path: Path
    ) -> None:
        job("a", info())
        assert start("a.csv", info(), retune=True) == ()
        (tmp_path / "a.csv").unlink()
        assert start("a.csv", info()) == ()

    def test_the_search_does_not_disturb_the_run_that_begins(
        self, job, tmp_path: Path, make_trial
    ) -> None:
        """Its own database is searched while it is open for writing."""
        job("a", info(size=4))
        logs = open_logs(str(tmp_path / "a.csv"), None, host="node1", pid=2)
        begun = logs.start(info())
        assert isinstance(begun, Fresh) and len(begun.memory) == 1
        logs.add_trial(make_trial(0))
        assert len(find_similar(info(size=8), [str(tmp_path)])) == 1
        logs.close()
        logs = open_logs(str(tmp_path / "a.csv"), None, host="node1", pid=2)
        resumed = logs.start(info())
        logs.close()
        assert isinstance(resumed, Resume) and resumed.trials == (make_trial(0),)
        assert logs.troubles == []


TENSORS = st.lists(st.tuples(st.sampled_from(["allreduce", "allgather"]), st.integers(0, 10**9)))


@given(TENSORS, TENSORS)
def test_similarity_is_symmetric_and_1_exactly_for_equal_tensors(first, second) -> None:
    similarity = tensor_similarity(first, second)
    assert 0 <= similarity <= 1 and similarity == tensor_similarity(second, first)
    assert (similarity == 1) == (sorted(first) == sorted(second) and first != [])
