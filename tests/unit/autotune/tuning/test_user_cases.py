"""Cases of people who met the log: what it says, and that every release's log says the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli.formats import formats_of
from autotune.cli.main import main
from autotune.space import HOROVOD
from autotune.storage import open_logs
from autotune.storage.contract import RunInfo
from autotune.trial import (
    Certificate,
    CommParams,
    Fingerprint,
    Gain,
    RunState,
    Standing,
    Trial,
    TrialState,
)
from autotune.tuning.messages import progress_text

SETTINGS = ("0,1,{}4,8,900.5", "0,0,{}2.5,12.2035,1200", "1,0,{}50,32,700")
"""Rows: hierarchical_allreduce, hierarchical_allgather, {more columns} cycle, threshold, score."""
COLUMNS = "hierarchical_allreduce,hierarchical_allgather,{}cycle_time_ms,tensor_fusion_threshold"
RELEASES = {
    "5 columns": ("", ""),
    "6 columns": ("cache_enabled,", "1,"),
    "6 columns, stray blank": ("cache_enabled,", " 1,"),
    "7 columns": ("torus_allreduce,cache_enabled,", "0, 1,"),
    "ours": ("cache_capacity,", "1024,"),
}


def foreign_log(path: Path, release: str, *, finished: bool = True, end: str = "\n") -> str:
    """Write the same tuning as a release would have; return its name."""
    names, cells = RELEASES[release]
    rows = [row.format(cells) for row in SETTINGS]
    rows += [rows[1]] if finished else []
    path.write_bytes(
        "".join(f"{r}{end}" for r in (f"{COLUMNS.format(names)},score", *rows)).encode()
    )
    return str(path)


def answer(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


class TestS7:
    """Logs of different releases: 5, 6 and 7 columns, a stray blank before one field."""

    @pytest.mark.parametrize("name", formats_of(HOROVOD))
    def test_every_release_gives_the_same_best_in_every_format(self, capsys, tmp_path, name):
        answers = {
            answer(capsys, "best", foreign_log(tmp_path / "log.csv", release), "--format", name)
            for release in RELEASES
        }
        assert len(answers) == 1
        assert str(int(12.2035 * 2**20)) in answers.pop() or name in ("flags", "yaml")

    @pytest.mark.parametrize("release", RELEASES)
    def test_line_ends_of_another_system_change_nothing(self, capsys, tmp_path, release):
        unix = foreign_log(tmp_path / "unix.csv", release)
        other = foreign_log(tmp_path / "other.csv", release, end="\r\n")
        assert answer(capsys, "best", unix) == answer(capsys, "best", other)

    @pytest.mark.parametrize("release", RELEASES)
    def test_all_trials_are_shown_and_replayed(self, capsys, tmp_path, release, monkeypatch):
        log = foreign_log(tmp_path / "log.csv", release)
        assert "3 trials, finished" in answer(capsys, "show", log)
        seen: dict[str, str] = {}
        monkeypatch.setattr("os.execvpe", lambda file, command, environ: seen.update(environ))
        main(["replay", log, "--", "true"])
        assert seen["HOROVOD_FUSION_THRESHOLD"] == str(int(12.2035 * 2**20))
        assert (seen["HOROVOD_CYCLE_TIME"], seen["HOROVOD_CACHE_CAPACITY"]) == ("2.5", "1024")


class TestT5:
    """A job ends early: is this the end of tuning, and what was best so far?"""

    @pytest.mark.parametrize("release", RELEASES)
    def test_the_best_so_far_is_usable_and_marked(self, capsys, tmp_path, release):
        log = foreign_log(tmp_path / "log.csv", release, finished=False)
        assert main(["best", log, "--format", "json"]) == 0
        out, err = capsys.readouterr()
        content = json.loads(out)
        assert content["fusion_threshold_bytes"] == int(12.2035 * 2**20)
        assert content["finished"] is False
        assert "tuning has not finished; this is the best of 3 trials so far" in err

    @pytest.mark.parametrize("release", RELEASES)
    def test_a_finished_log_is_marked_as_finished(self, capsys, tmp_path, release):
        log = foreign_log(tmp_path / "log.csv", release)
        assert main(["best", log]) == 0
        out, err = capsys.readouterr()
        assert out.splitlines()[-1].split() == ["tuning", "finished"]
        assert err == ""


class TestV5:
    """Score: which unit, and is higher better?"""

    @pytest.mark.parametrize("name", ["text", "json", "slurm", "pbs", "k8s"])
    def test_it_is_said_where_the_score_is_printed(self, capsys, tmp_path, name):
        log = foreign_log(tmp_path / "log.csv", "7 columns")
        assert "bytes/us, higher is better" in answer(capsys, "best", log, "--format", name)

    def test_it_is_said_under_the_table(self, capsys, tmp_path):
        log = foreign_log(tmp_path / "log.csv", "ours")
        assert "score in bytes/us, higher is better" in answer(capsys, "show", log)


def own_log(
    folder: Path,
    *,
    certified: bool | None = None,
    done: bool = True,
    db: str | None = None,
    name: str = "log.csv",
) -> str:
    """Write a log of ours with two trials; the second is the best."""
    fingerprint = Fingerprint(
        tensors=(), size=4, local_size=2, cross_size=2, versions={"mpi": "5"}, fixed={}
    )
    logs = open_logs(str(folder / name), db, host="node1", pid=1)
    logs.start(RunInfo(fingerprint=fingerprint, host="node1", pid=1, seed=7))
    best = Trial(trial_id=1, params=CommParams(cycle_time_ms=0.5), score=110.0)
    logs.add_trial(Trial(trial_id=0, params=CommParams(), score=100.0))
    logs.add_trial(best)
    logs.add_trial(ABANDONED)
    if certified is not None:
        gain = {"gain": 0.1, "gain_low": 0.03 if certified else -0.03, "gain_high": 0.2}
        logs.add_certificate(
            Certificate(
                trial_id=1, pairs=9, alpha=0.01, certified=certified, reason="pairs", **gain
            )
        )
    if done:
        logs.finish_run(RunState.DONE, best)
    logs.close()
    return str(folder / name)


ABANDONED = Trial(
    trial_id=2, params=CommParams(cache_capacity=0), score=500.0, state=TrialState.ABANDONED
)
"""Abandoned after a lucky step: its score is not one."""


class TestS5:
    """Saving and loading the best settings."""

    def test_a_saved_result_carries_ranks_hosts_and_versions(self, capsys, tmp_path):
        log = own_log(tmp_path, certified=True)
        content = json.loads(answer(capsys, "best", log, "--format", "json"))
        assert content["job"] == {
            "size": 4,
            "local_size": 2,
            "cross_size": 2,
            "host": "node1",
            "versions": {"mpi": "5"},
        }
        assert content["certified"] is True


class TestRequireCertified:
    def test_a_certified_log_is_an_answer(self, capsys, tmp_path):
        log = own_log(tmp_path, certified=True)
        assert "HOROVOD_" in answer(capsys, "best", log, "--require-certified", "--format", "env")

    @pytest.mark.parametrize(
        ("log", "reason"),
        [
            ({"certified": True, "done": False}, "not finished"),
            ({"certified": False}, "was not certified"),
            ({}, "no certificate is known"),
        ],
    )
    def test_any_other_log_is_none(self, capsys, tmp_path, log, reason):
        path = own_log(tmp_path, **log)
        assert main(["best", path, "--require-certified"]) == 1
        out, err = capsys.readouterr()
        assert out == "" and reason in err.splitlines()[-1] and path in err

    def test_a_log_of_horovod_is_none(self, capsys, tmp_path):
        log = foreign_log(tmp_path / "log.csv", "7 columns")
        assert main(["best", log, "--require-certified"]) == 1
        assert "no certificate is known" in capsys.readouterr().err


class TestU10:
    """Two figures for one setting in one line."""

    @pytest.mark.parametrize("error", [0.0, 1e-12])
    def test_a_line_about_the_best_setting_has_its_figure_once(self, error):
        """However the two were computed: the trial's when it ended, the standing just after."""
        gain = Gain(estimate=0.973, low=0.727, high=1.254)
        trial = Trial(trial_id=1, params=CommParams(cycle_time_ms=2.0), score=200.0, gain=gain)
        again = replace(gain, estimate=gain.estimate + error)
        standing = Standing(best=replace(trial, gain=again), gain=again)
        text = progress_text(trial, most=20, standing=standing, names=["cycle_time_ms"])
        assert text == (
            "autotune: trial 1 (2 of at most 20): cycle 2 ms: +97.3 % (90 %: +72.7 to +125.4) over "
            "the default; best so far: this one, not certified yet"
        )

    @pytest.mark.parametrize(
        ("estimate", "said"),
        [(0.0, True), (-0.0004, True), (0.0006, False), (-0.02, False)],
    )
    def test_a_gain_that_reads_nought_is_said_to_be_none(self, estimate, said):
        gain = Gain(estimate=estimate, low=-0.03, high=0.031)
        trial = Trial(trial_id=3, params=CommParams(), score=100.0, gain=gain)
        standing = Standing(best=replace(trial, trial_id=0), gain=None)
        text = progress_text(trial, most=20, standing=standing, names=["cycle_time_ms"])
        assert ("(90 %: -3.0 to +3.1) over the default (no difference seen); best" in text) == said


class TestDatabaseElsewhere:
    """HOROVOD_AUTOTUNE_DB names a database that is not beside the CSV."""

    @pytest.mark.parametrize("place", ["other.db", "folder/"])
    def test_best_finds_states_and_certificate_through_the_variable(
        self, capsys, tmp_path, monkeypatch, place
    ):
        (tmp_path / "folder").mkdir()
        database = str(tmp_path / place) + ("/" if place.endswith("/") else "")
        log = own_log(tmp_path, certified=True, done=False, db=database)
        monkeypatch.setenv("HOROVOD_AUTOTUNE_DB", database)
        assert json.loads(answer(capsys, "best", log, "--format", "json"))["cycle_time_ms"] == 0.5
        assert "certified" in answer(capsys, "show", log)
