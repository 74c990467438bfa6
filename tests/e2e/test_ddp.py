"""Plain DistributedDataParallel, tuned without a changed line: results stay, whatever happens."""

from __future__ import annotations

import json
import sys

import pytest

from autotune.storage.reader import read_log
from autotune.tables.ddp import DdpParams
from autotune.trial import TrialState
from e2e.commands import Commands
from e2e.conftest import Once
from e2e.ddp_jobs import HERE, LONG, RANKS, SHORT, STEPS, TORCHRUN, TUNED, TWO_RANKS, lines, train

pytest.importorskip("torch")
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def plain(once: Once) -> str:
    """The checksum of the job without a tuner."""

    def act(runner: Commands) -> None:
        done = train(runner)
        assert lines(done) == []
        (runner.folder / "stdout").write_text(done.stdout)

    return (once("plain-ddp", act).folder / "stdout").read_text()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What ``equal.py`` has found of each of its cases."""
    commands = Commands(tmp_path_factory.mktemp("equal"))
    done = commands.run(*TWO_RANKS, HERE / "equal.py", limit_s=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(300)
def test_weights_are_bit_equal_however_often_buckets_are_made_anew(cases: dict) -> None:
    from equal import CASES, EVERY, STEPS

    assert set(cases) == set(CASES)
    wrong = {name: found for name, found in cases.items() if not (found[0] and found[2])}
    assert wrong == {}
    few = {name: n for name, (_, n, _) in cases.items() if n < CASES[name].steps // EVERY}
    assert few == {} and STEPS // EVERY >= 28


def test_on_three_ranks_gradients_are_the_exact_mean_and_ranks_stay_equal(
    commands: Commands,
) -> None:
    done = commands.run(*RANKS, "3", HERE / "three.py", limit_s=90)
    assert done.returncode == 0, done.stderr[-3000:]
    worst, ranks_are_equal, swaps = json.loads(done.stdout.splitlines()[-1])
    assert worst < 2**-21 and ranks_are_equal and swaps >= 28


def test_what_a_step_waits_for_is_seen_where_the_optimizer_computes_the_gradients(
    commands: Commands,
) -> None:
    done = commands.run(*TWO_RANKS, HERE / "closure.py", limit_s=90, **TUNED)
    assert done.returncode == 0, done.stderr[-3000:]
    waited_ms = json.loads(done.stdout.splitlines()[-1])
    assert waited_ms["plain"] > 10 and waited_ms["closure"] > 10


def test_a_tuned_job_trains_the_same_weights_and_leaves_its_log(
    commands: Commands, plain: str
) -> None:
    done = train(commands, *LONG, log="log.csv", launcher=TORCHRUN, **TUNED)
    assert done.stdout == plain
    view = read_log(str(commands.folder / "log.csv"))
    assert view.trials[0].params == DdpParams()
    assert view.run is not None and view.run.parameter_table == "ddp" and view.run.size == 2
    assert any("trial 0 (1 of at most 4)" in line and "bucket None" in line for line in lines(done))
    header = (commands.folder / "log.csv").read_text().splitlines()[0]
    assert header == "bucket_cap_mb,first_bucket_mb,gradient_as_bucket_view,score"
    answer = commands.run("autotune", "best", "log.csv", "--format", "ddp")
    assert "bucket_cap_mb=" in answer.stdout
    replay = commands.run(
        *("autotune", "replay", "log.csv", "--", *TORCHRUN),
        *(HERE / "job.py", "--steps", str(STEPS)),
        limit_s=90,
    )
    assert replay.stdout == plain and "replays" in replay.stderr


@pytest.mark.parametrize("kind", ["ddp", "none"])
def test_a_script_that_starts_its_other_ranks_itself_is_reached(
    commands: Commands, kind: str
) -> None:
    words = [sys.executable, HERE / "own_launcher.py", kind]
    untuned = commands.run(*words, limit_s=60)
    assert untuned.returncode == 0 and "checksum" in untuned.stdout, untuned.stderr
    (commands.folder / "store").unlink(missing_ok=True)
    done = commands.run(*("autotune", "run", "--log", "log.csv", "--", *words), limit_s=90, **TUNED)
    assert done.returncode == 0 and done.stdout == untuned.stdout, done.stderr
    if kind == "ddp":
        view = read_log(str(commands.folder / "log.csv"))
        assert view.run is not None and view.run.size == 2
        others = [trial for trial in view.trials if trial.params != DdpParams()]
        assert others or "nothing to gain" in done.stderr, done.stderr
    else:
        (line,) = lines(done)
        assert "no DistributedDataParallel module was made" in line


def test_what_the_script_sets_is_the_baseline(commands: Commands) -> None:
    train(commands, *LONG, log="log.csv", peculiar="own_size", **TUNED)
    first = read_log(str(commands.folder / "log.csv")).trials[0].params
    assert first.as_dict()["bucket_cap_bytes"] == int(0.1 * 2**20)


def test_a_fixed_parameter_is_put_in_force_and_not_explored(commands: Commands, plain: str) -> None:
    fixed = {"AUTOTUNE_DDP_BUCKET_CAP_BYTES": "20000"}
    done = train(commands, *LONG, log="log.csv", **TUNED, **fixed)
    assert done.stdout == plain
    trials = read_log(str(commands.folder / "log.csv")).trials
    assert {trial.params.as_dict()["bucket_cap_bytes"] for trial in trials} == {20000}


def test_a_static_graph_is_explored_at_a_word_and_trains_the_same_weights(
    commands: Commands, plain: str
) -> None:
    explore = {"HOROVOD_AUTOTUNE_EXPLORE": "static_graph"}
    done = train(commands, *LONG, log="log.csv", **TUNED, **explore)
    assert done.stdout == plain
    trials = read_log(str(commands.folder / "log.csv")).trials
    tried = {trial.params.as_dict()["static_graph"] for trial in trials}
    assert tried == {False, True} or "nothing to gain" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("peculiar", "sentence"),
    [
        ("kill_service", "the tuner's service ended"),
        ("fail_on_rank_1", "failed on rank 1"),
        ("unknown_torch", "is not known here"),
    ],
)
def test_what_fails_is_a_sentence_and_the_weights_are_the_same(
    commands: Commands, plain: str, peculiar: str, sentence: str
) -> None:
    done = train(commands, log="log.csv", peculiar=peculiar, **TUNED)
    assert done.stdout == plain
    said = [line for line in lines(done) if sentence in line]
    assert len(said) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_a_setting_for_which_one_rank_has_no_memory_is_passed_over_by_all(
    commands: Commands, plain: str
) -> None:
    done = train(commands, *LONG, log="log.csv", peculiar="no_memory", **TUNED)
    assert done.stdout == plain
    assert any("1 of 2 ranks have no memory left for new buckets" in one for one in lines(done))
    trials = read_log(str(commands.folder / "log.csv")).trials
    assert {trial.state for trial in trials[1:]} <= {TrialState.REJECTED}


def test_a_module_in_a_cuda_graph_keeps_its_buckets(commands: Commands, plain: str) -> None:
    done = train(commands, *LONG, log="log.csv", peculiar="captured", **TUNED)
    assert done.stdout == plain
    assert len([line for line in lines(done) if "captured in a CUDA graph" in line]) == 1


@pytest.mark.parametrize("kind", ["fsdp", "fully_shard"])
def test_a_job_of_fsdp_is_left_alone_and_told_so(commands: Commands, kind: str) -> None:
    untuned = train(commands, *SHORT, peculiar=kind)
    done = train(commands, *SHORT, log="log.csv", peculiar=kind, **TUNED)
    assert done.stdout == untuned.stdout and "checksum" in done.stdout
    (line,) = lines(done)
    assert "no DistributedDataParallel module was made" in line
    assert "FullyShardedDataParallel" in line
    assert not (commands.folder / "log.csv").exists()


def test_a_hook_with_a_state_per_bucket_is_left_alone(commands: Commands) -> None:
    untuned = train(commands, *SHORT, peculiar="powersgd")
    done = train(commands, *SHORT, log="log.csv", peculiar="powersgd", **TUNED)
    assert done.stdout == untuned.stdout
    assert any("powerSGD_hook" in line for line in lines(done))


def test_nothing_changes_while_ranks_join(commands: Commands) -> None:
    untuned = train(commands, peculiar="join")
    done = train(commands, log="log.csv", peculiar="join", **TUNED)
    assert done.stdout == untuned.stdout


def test_a_job_without_a_module_or_with_one_rank_says_so(commands: Commands) -> None:
    assert "no DistributedDataParallel" in train(commands, log="a.csv", peculiar="no_module").stderr
    done = commands.run(
        *("autotune", "run", "--log", "b.csv", "--", *RANKS, "1", HERE / "job.py", "--steps", "5"),
        limit_s=90,
    )
    assert done.returncode == 0 and "a job of 1 rank does not communicate" in done.stderr
    assert not (commands.folder / "b.csv").exists()
