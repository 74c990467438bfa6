"""Train, tune, log, best, replay: the log that a real job wrote, and what becomes of it."""

from __future__ import annotations

import json
import sqlite3

import pytest

from autotune.space import BY_NAME, PARAMETERS
from e2e.commands import FAST, Commands, TunedJob, settings_of


def params_of(row: str, header: str) -> dict[str, float]:
    """Return {parameter name: value} of a CSV row."""
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    values = {p.name: p.type(float(cells[p.column])) for p in PARAMETERS if p.unit != "bytes"}
    threshold = BY_NAME["fusion_threshold_bytes"].of_shown(float(cells["tensor_fusion_threshold"]))
    return {**values, "fusion_threshold_bytes": threshold}


def final_params(tuned: TunedJob) -> dict[str, float]:
    lines = tuned.log.read_text().splitlines()
    return params_of(lines[-1], lines[0])


def test_the_last_line_is_the_best_and_repeats_an_earlier_setting(tuned: TunedJob) -> None:
    *earlier, last = settings_of(tuned.rows)
    assert last in earlier
    assert len(set(earlier)) == len(earlier)


def test_the_default_is_the_first_trial(tuned: TunedJob) -> None:
    lines = tuned.log.read_text().splitlines()
    assert params_of(lines[1], lines[0]) == {p.name: p.default for p in PARAMETERS}


def test_the_last_line_is_in_force_on_every_rank(tuned: TunedJob) -> None:
    assert [rank["params"] for rank in tuned.ranks] == [final_params(tuned)] * 2
    assert tuned.ranks[0]["state"] == "done"


def test_progress_says_trial_unit_and_direction(tuned: TunedJob) -> None:
    assert "trial 0 (1 of at most 4)" in tuned.output.stderr
    assert "bytes/us, higher is better" in tuned.output.stderr


def test_the_database_is_beside_the_log(tuned: TunedJob) -> None:
    with sqlite3.connect(tuned.log.with_suffix(".db")) as database:
        trials = database.execute("select count(*) from trials").fetchone()[0]
    assert trials == len(tuned.rows) - 1


@pytest.mark.parametrize("name", ["text", "env", "flags", "yaml", "json"])
def test_best_answers_in_every_format(tuned: TunedJob, commands: Commands, name: str) -> None:
    best = commands.run("autotune", "best", tuned.log, "--format", name)
    assert (best.returncode, best.stderr) == (0, "")
    assert str(final_params(tuned)["cache_capacity"]) in best.stdout


def test_best_is_exact(tuned: TunedJob, commands: Commands) -> None:
    best = commands.run("autotune", "best", tuned.log, "--format", "json")
    answer = json.loads(best.stdout)
    assert {p.name: answer[p.name] for p in PARAMETERS} == final_params(tuned)


def test_show_lists_every_trial(tuned: TunedJob, commands: Commands) -> None:
    show = commands.run("autotune", "show", tuned.log)
    assert show.returncode == 0
    assert "higher is better" in show.stdout


def test_a_replayed_job_reads_back_the_last_line_on_every_rank(
    tuned: TunedJob, commands: Commands
) -> None:
    job = ["horovodrun", "-np", "2", *commands.settings_job()]
    result = commands.run("autotune", "replay", tuned.log, "--", *job)
    assert result.returncode == 0, result.stderr
    assert [rank["params"] for rank in commands.ranks(2)] == [final_params(tuned)] * 2


def test_a_finished_log_of_the_same_job_is_replayed(tuned: TunedJob, commands: Commands) -> None:
    log = commands.folder / "log.csv"
    for suffix in (".csv", ".db"):
        log.with_suffix(suffix).write_bytes(tuned.log.with_suffix(suffix).read_bytes())
    command = ["horovodrun", "-np", "2", *commands.job(150)]
    result = commands.run(*command, HOROVOD_AUTOTUNE_LOG=str(log), **FAST)
    assert result.returncode == 0, result.stderr
    assert log.read_text() == tuned.log.read_text()
    assert commands.ranks(2)[1]["params"] == final_params(tuned)


def test_a_job_over_tcp_is_tuned_to_its_end_and_best_answers(commands: Commands) -> None:
    """Two ranks that are told to be on two hosts: every trial moves its data over TCP."""
    log = commands.folder / "log.csv"
    own_host = ["sh", "-c", 'HOROVOD_HOSTNAME=host-$HOROVOD_RANK exec "$@"', "sh"]
    words = ["horovodrun", "--gloo", "-np", "2", *own_host, *commands.arrays_job(100_000)]
    job = commands.run(*words, HOROVOD_AUTOTUNE_LOG=str(log), **FAST)
    assert job.returncode == 0, job.stderr
    ranks = commands.ranks(2)
    tuned = TunedJob(log=log, output=job, ranks=ranks)
    *earlier, last = settings_of(tuned.rows)
    assert last in earlier and ranks[0]["state"] == "done"
    assert [rank["params"] for rank in ranks] == [final_params(tuned)] * 2
    best = commands.run("autotune", "best", log, "--format", "json")
    answer = json.loads(best.stdout)
    assert {p.name: answer[p.name] for p in PARAMETERS} == final_params(tuned)
    with sqlite3.connect(log.with_suffix(".db")) as database:
        (versions,) = database.execute("select versions from runs").fetchone()
    assert "TCP" in versions
