"""From the log to production jobs: every format, and HOROVOD_AUTOTUNE_REPLAY."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune.cli.formats import formats_of, render
from autotune.result import Result, environment, read_result
from autotune.space import HOROVOD
from autotune.trial import CommParams
from e2e.commands import Commands, TunedJob

FOREIGN = Path(__file__).parents[2] / "data/horovod-0.28.1-autotune-resnet50-gradients-2-ranks.csv"
HERE = ("mpirun", "--bind-to", "none")


def best(commands: Commands, log: Path, name: str) -> str:
    result = commands.run("autotune", "best", log, "--format", name)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def params_of_all_ranks(commands: Commands) -> list[dict]:
    return [rank["params"] for rank in commands.ranks(2)]


def job_under(commands: Commands, name: str, text: str) -> list[str | Path]:
    """Return the command that a user makes of ``text`` for a job of two ranks."""
    job = ["-np", "2", *commands.settings_job()]
    if name == "flags":
        return ["horovodrun", *shlex.split(text), *job]
    if name == "yaml":
        (commands.folder / "best.yaml").write_text(text)
        return ["horovodrun", "--config-file", commands.folder / "best.yaml", *job]
    if name == "mpirun":
        return [*HERE, *shlex.split(text), *job]
    if name == "env":
        return ["env", *text.splitlines(), *HERE, *job]
    if name == "k8s":
        entries = [f"{entry['name']}={entry['value']}" for entry in yaml.safe_load(text)["env"]]
        return ["env", *entries, *HERE, *job]
    if name == "json":
        (commands.folder / "best.json").write_text(text)
        return ["env", f"HOROVOD_AUTOTUNE_REPLAY={commands.folder}/best.json", *HERE, *job]
    return ["bash", "-eu", script(commands, name, text)]


def script(commands: Commands, name: str, text: str) -> Path:
    """Return a batch script with our job in it, and with Open MPI in the place of a site's MPI."""
    words = shlex.join(str(word) for word in commands.settings_job())
    text = text.replace("python train.py", words)
    for theirs in ("srun --mpi=pmix --export=ALL", "mpiexec -n 2"):
        text = text.replace(theirs, shlex.join([*HERE, "-np", "2"]))
    path = commands.folder / f"{name}.sh"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", [n for n in formats_of(HOROVOD) if n not in ("text", "mpiexec")])
def test_a_job_under_every_format_reads_back_the_last_line_on_every_rank(
    tuned: TunedJob, commands: Commands, name: str
) -> None:
    command = job_under(commands, name, best(commands, tuned.log, name))
    result = commands.run(*command)
    assert result.returncode == 0, result.stderr
    assert params_of_all_ranks(commands) == [read_result(str(tuned.log)).params.as_dict()] * 2


def test_mpiexec_of_mpich_gives_every_rank_the_variables(
    tuned: TunedJob, commands: Commands, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prefix = tmp_path_factory.mktemp("mpich")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(prefix), "mpich"]
    subprocess.run(pip, check=True, timeout=120, stderr=subprocess.DEVNULL)
    arguments = shlex.split(best(commands, tuned.log, "mpiexec"))
    show = (
        "import json, os; kept = {k: v for k, v in os.environ.items() if k[:3] == 'HOR'}\n"
        "os.write(1, json.dumps(kept).encode() + b'\\n')"
    )
    words = [prefix / "bin/mpiexec.hydra", *arguments, "-n", "2", sys.executable, "-c", show]
    result = commands.run(*words)
    assert result.returncode == 0, result.stderr
    ranks = [json.loads(line) for line in result.stdout.splitlines()]
    assert ranks == [environment(read_result(str(tuned.log)).params)] * 2


@pytest.mark.parametrize("suffix", [".csv", ".db"])
def test_a_job_replays_a_log_by_its_environment_alone(
    tuned: TunedJob, commands: Commands, suffix: str
) -> None:
    log = tuned.log.with_suffix(suffix)
    result = commands.run(
        *HERE, "-np", "2", *commands.settings_job(), HOROVOD_AUTOTUNE_REPLAY=str(log)
    )
    assert result.returncode == 0, result.stderr
    assert params_of_all_ranks(commands) == [read_result(str(log)).params.as_dict()] * 2
    assert "tuned in another job" not in result.stderr


def test_explicit_settings_win_over_the_replayed_ones(commands: Commands) -> None:
    result = commands.run(
        *HERE,
        *("-np", "2", *commands.settings_job()),
        HOROVOD_AUTOTUNE_REPLAY=str(FOREIGN),
        HOROVOD_CYCLE_TIME="7",
    )
    assert result.returncode == 0, result.stderr
    expected = {**read_result(str(FOREIGN)).params.as_dict(), "cycle_time_ms": 7.0}
    assert params_of_all_ranks(commands) == [expected] * 2


def test_a_log_that_cannot_be_replayed_is_named_on_every_rank(commands: Commands) -> None:
    path = str(commands.folder / "missing.csv")
    result = commands.run(*HERE, "-np", "2", *commands.settings_job(), HOROVOD_AUTOTUNE_REPLAY=path)
    assert result.returncode != 0
    error = f"ValueError: hvd.init(): HOROVOD_AUTOTUNE_REPLAY: {path}: no such file"
    assert result.stderr.count(error) == 2


def test_a_result_of_another_job_is_replayed_with_a_warning(commands: Commands) -> None:
    saved = commands.folder / "best.json"
    job = {"size": 64, "local_size": 8}
    saved.write_text(render(Result(params=CommParams(cache_capacity=7), job=job), "json"))
    result = commands.run(
        "autotune", "replay", saved, "--", *HERE, "-np", "2", *commands.settings_job()
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("64 ranks there, 2 here; 8 ranks a host there, 2 here") == 1
    assert commands.ranks(2)[1]["params"]["cache_capacity"] == 7


def test_a_threshold_as_the_log_writes_it_is_taken_by_the_launcher(commands: Commands) -> None:
    """S4: ``--fusion-threshold-mb 12.2035`` was refused as not an integer."""
    job = ["-np", "2", "--fusion-threshold-mb", "12.2035", *commands.settings_job()]
    result = commands.run("horovodrun", *job)
    assert result.returncode == 0, result.stderr
    thresholds = [rank["params"]["fusion_threshold_bytes"] for rank in commands.ranks(2)]
    assert thresholds == [int(12.2035 * 1048576)] * 2
