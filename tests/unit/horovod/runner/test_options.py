"""Flags and config files become variables; what nobody says exports nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from autotune.space import BY_NAME, PARAMETERS
from horovod.runner.allocation import why_misplaced
from horovod.runner.config_file import ConfigFileError, read_config_file
from horovod.runner.launch import main, make_environment, make_job, make_parser
from horovod.runner.mpirun import Family, Job, command_line
from horovod.runner.options import BY_KEY, OPTIONS, encode_shown, job_environment

COMMAND = ["-np", "2", "python", "train.py"]


def exported(*flags: str) -> dict[str, str]:
    return dict(make_parser().parse_args([*flags, *COMMAND]).exported)


def test_nothing_given_exports_nothing() -> None:
    assert exported() == {}


def test_every_parameter_has_its_flag_and_variable() -> None:
    table = {(option.flag, option.env) for option in OPTIONS}
    assert {(parameter.flag, parameter.env) for parameter in PARAMETERS} <= table


def test_flags_and_keys_are_unique() -> None:
    assert len({option.flag for option in OPTIONS}) == len(OPTIONS) == len(BY_KEY)


def test_a_threshold_from_a_log_is_accepted_to_the_byte() -> None:
    text = exported("--fusion-threshold-mb", "12.2035")["HOROVOD_FUSION_THRESHOLD"]
    assert text == str(int(12.2035 * 1048576))


@pytest.mark.parametrize("text", ["64MB", "-1", "nan", "inf", ""])
def test_a_wrong_threshold_is_refused_with_its_flag(text: str) -> None:
    with pytest.raises(ValueError, match="fusion-threshold-mb"):
        encode_shown(BY_NAME["fusion_threshold_bytes"], text)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--hierarchical-allreduce", {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}),
        ("--no-hierarchical-allreduce", {"HOROVOD_HIERARCHICAL_ALLREDUCE": "0"}),
        ("--autotune", {"HOROVOD_AUTOTUNE": "1"}),
        ("--no-stall-check", {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        ("--stall-check", {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        ("--log-without-timestamp", {"HOROVOD_LOG_HIDE_TIME": "1"}),
        ("--log-hide-timestamp", {"HOROVOD_LOG_HIDE_TIME": "1"}),
        ("--no-log-hide-timestamp", {"HOROVOD_LOG_HIDE_TIME": "0"}),
    ],
)
def test_switches_set_one_variable(flag: str, expected: dict[str, str]) -> None:
    assert exported(flag) == expected


@pytest.mark.parametrize(
    "flags",
    [("--cycle-time-ms", "abc"), ("--cache-capacity", "-1"), ("--autotune-seed", "x")],
)
def test_a_value_that_the_job_would_refuse_is_a_usage_error(
    flags: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        exported(*flags)
    assert stop.value.code == 2
    assert f"argument {flags[0]}" in capsys.readouterr().err


def test_command_line_beats_file_beats_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("params:\n  cycle_time_ms: 2.5\n  cache_capacity: 64\n")
    for name, text in [("CYCLE_TIME", "9"), ("CACHE_CAPACITY", "9"), ("FUSION_THRESHOLD", "9")]:
        monkeypatch.setenv(f"HOROVOD_{name}", text)
    flags = ["--config-file", str(file), "--cache-capacity", "128", *COMMAND]
    environ = make_environment(make_parser().parse_args(flags))
    assert environ["HOROVOD_FUSION_THRESHOLD"] == "9"
    assert environ["HOROVOD_CYCLE_TIME"] == "2.5"
    assert environ["HOROVOD_CACHE_CAPACITY"] == "128"
    assert job_environment({"A": "x"}, {}, {}) == {"A": "x"}


def test_config_file_has_the_options_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "controller: mpi\n"
        "params: {fusion_threshold_mb: 12.2035, hierarchical_allreduce: false}\n"
        "autotune: {enabled: true, log_file: log.csv}\n"
        "stall_check: {enabled: false}\n"
        "future: {thing: 1}\n"
    )
    environment, warnings = read_config_file(file)
    assert environment == {
        "HOROVOD_CONTROLLER": "mpi",
        "HOROVOD_FUSION_THRESHOLD": "12796297",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "log.csv",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
    }
    assert len(warnings) == 1 and "future.thing" in warnings[0]
    assert "future.thing" in warnings[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params: {cycle_time_ms: abc}", "params.cycle_time_ms: HOROVOD_CYCLE_TIME"),
        ("params: {hierarchical_allreduce: often}", "expected true or false"),
        ("params: {cache_capacity: [1]}", "expected one value"),
        ("controller: slurm", "expected mpi"),
        ("just a sentence", "expected sections"),
        ("a: [", "not YAML"),
    ],
)
def test_a_wrong_config_file_says_where(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(ConfigFileError, match=message):
        read_config_file(file)


def test_horovods_own_config_file_starts(tmp_path: Path) -> None:
    """Its wishes that cannot be met are one warning each kind, never the end of the job."""
    file = tmp_path / "job.yaml"
    file.write_text(
        "controller: gloo\n"
        "autotune: {enabled: true, gaussian_process_noise: 0.9}\n"
        "elastic: {min_np: 1, max_np: 4}\n"
        "library_options:\n"
        "  mpi_threads_disable: true\n"
        "  num_nccl_streams: 2\n"
        "  ccl_bgt_affinity: 1\n"
        "  gloo_timeout_seconds: 60\n"
        "logging: {level: INFO, hide_timestamp: true}\n"
    )
    environment, warnings = read_config_file(file)
    assert environment["HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"] == "0.9"
    assert environment["HOROVOD_CONTROLLER"] == "gloo"
    assert environment["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "60"
    assert len(warnings) == 1
    assert all(name in warnings[0] for name in ("elastic.min_np", "ccl_bgt_affinity"))


def test_a_missing_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=r"nowhere\.yaml"):
        read_config_file(tmp_path / "nowhere.yaml")


HOROVODS = (
    "-v --version -np --num-proc -cb --check-build --disable-cache --start-timeout "
    "--network-interfaces --network-interface --output-filename --verbose --config-file -p "
    "--ssh-port -i --ssh-identity-file --fusion-threshold-mb --cycle-time-ms --cache-capacity "
    "--hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather "
    "--no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --autotune --no-autotune "
    "--autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample "
    "--autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --min-np --min-num-proc "
    "--max-np --max-num-proc --slots-per-host --elastic-timeout --reset-limit "
    "--blacklist-cooldown-range --timeline-filename --timeline-mark-cycles "
    "--no-timeline-mark-cycles --no-stall-check --stall-check --stall-check-warning-time-seconds "
    "--stall-check-shutdown-time-seconds --mpi-threads-disable --no-mpi-threads-disable "
    "--mpi-args --tcp --binding-args --num-nccl-streams --thread-affinity --gloo-timeout-seconds "
    "--log-level --log-with-timestamp --log-without-timestamp -prefix-timestamp "
    "--prefix-output-with-timestamp --log-hide-timestamp --no-log-hide-timestamp -H --hosts "
    "-hostfile --hostfile --host-discovery-script --gloo --mpi --jsrun"
).split()
DETERMINED = (
    "-np 2 --start-timeout 1200 --gloo-timeout-seconds 240 --verbose -p 12350 -H localhost:2 "
    "--cache-capacity 1024 --no-hierarchical-allreduce --no-hierarchical-allgather "
    "--autotune --autotune-log-file log.csv"
).split()
"""The words of Determined's launcher."""


def test_every_option_of_horovod_0_28_is_taken_or_refused_by_name() -> None:
    assert set(HOROVODS) - set(make_parser()._option_string_actions) == set()


@pytest.mark.parametrize(
    "flags",
    [
        [*DETERMINED, "--mpi-args=-v --display-map", "--"],
        ["-np", "2", "-H", "a:1,b:1", "--gloo", "--network-interface", "ib0", "--start-timeout=9"],
        ["-np", "2", "--min-np", "1", "--max-np", "4", "--reset-limit", "3"],
        ["-np", "2", "--jsrun", "--torus-allreduce"],
        ["-np", "8", "-H", "localhost:8", "--mpi-args=--oversubscribe", "numactl", "-i", "all"],
    ],
)
def test_words_of_job_scripts_start(flags: list[str]) -> None:
    job = make_job(make_parser().parse_args([*flags, "python", "train.py"]))
    assert list(job.command)[-2:] == ["python", "train.py"]


@pytest.mark.parametrize(
    ("environ", "flags", "size"),
    [
        ({"SLURM_NTASKS": "6"}, [], 6),
        ({"LSB_MCPU_HOSTS": "batch 1 a 4 b 4"}, [], 9),
        ({"LSB_DJOB_NUMPROC": "8", "LSB_MCPU_HOSTS": "a 4 b 5"}, [], 8),
        ({"SLURM_NTASKS": "6"}, ["-H", "a:2,b:1"], 3),
        ({"SLURM_NTASKS": "6"}, ["-np", "4"], 4),
    ],
)
def test_the_number_of_ranks_is_what_hosts_or_the_queue_allot(
    environ: dict[str, str], flags: list[str], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    assert make_job(make_parser().parse_args([*flags, "python", "t.py"])).size == size


def test_without_any_number_np_is_asked_for() -> None:
    for flags in ([], ["-H", "a:2,b"]):
        with pytest.raises(ValueError, match="-np is missing"):
            make_job(make_parser().parse_args([*flags, "python", "t.py"]))


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0"}, "srun has started 4 launchers"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun has started 2 launchers"),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "4294967290"}, ""),
        ({"SLURM_STEP_NUM_TASKS": "1"}, ""),
    ],
)
def test_one_of_several_launchers_says_so(environ: dict[str, str], words: str) -> None:
    assert why_misplaced(environ).startswith(words) and bool(why_misplaced(environ)) == bool(words)


def test_several_launchers_say_it_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    for rank, said in (("0", 1), ("1", 0)):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        with contextlib.suppress(SystemExit):
            assert main(COMMAND) == 2
        assert capsys.readouterr().err.count("mpirun has started 2 launchers") == said


def test_hosts_may_have_users_and_a_last_comma() -> None:
    def job_of(hosts: str) -> Job:
        return make_job(make_parser().parse_args(["-H", hosts, *COMMAND]))

    assert job_of("localhost:2,").hosts == [("localhost", 2)]
    job = job_of("me@localhost:1,them@far:1")
    assert job.hosts == [("me@localhost", 1), ("them@far", 1)]
    words = command_line(Path("mpirun"), Family.OPEN_MPI_5, job, {}, 2)
    assert words[words.index("plm_ssh_args") + 1] == "-l them"
    assert words[words.index("--host") + 1] == "localhost:1,far:1"
    with pytest.raises(ValueError, match="one user for all other hosts"):
        command_line(Path("mpirun"), Family.OPEN_MPI_5, job_of("a@far:1,b@further:1"), {}, 2)
    with pytest.raises(ValueError, match="expected HOST:SLOTS"):
        job_of("a:1,,b:1")


def test_an_interface_that_this_host_lacks_is_an_error() -> None:
    for place in ([], ["-H", "localhost:2"]):
        with pytest.raises(ValueError, match=r"no such interface; it has .*lo"):
            make_job(make_parser().parse_args([*place, "--network-interface", "nix0", *COMMAND]))
    here = make_job(make_parser().parse_args(["--network-interface", "lo,10.0.0.0/8", *COMMAND]))
    assert here.network_interfaces == ["lo", "10.0.0.0/8"]


def test_interfaces_may_be_given_by_commas_or_one_by_one() -> None:
    flags = ["--network-interface", "eth0,eth1", "--network-interface", "ib0", "-H", "a:2"]
    job = make_job(make_parser().parse_args([*flags, *COMMAND]))
    assert job.network_interfaces == ["eth0", "eth1", "ib0"]


@pytest.mark.parametrize("flag", ["--mpi-args", "--binding-args"])
@pytest.mark.parametrize("text", ["--report-bindings", "-v", "--map-by core", "x", ""])
def test_words_for_mpirun_may_be_a_single_option(flag: str, text: str) -> None:
    for given in ([flag, text], [f"{flag}={text}"]):
        job = make_job(make_parser().parse_args(["--verbose", "-H", "a:2", *given, *COMMAND]))
        words = job.mpi_args if flag == "--mpi-args" else job.binding_args or []
        assert (list(words), list(job.command)) == (text.split(), ["python", "train.py"])


def test_words_of_the_command_stay_as_they_are() -> None:
    command = ["python", "train.py", "--mpi-args", "--x", "--", "--binding-args", "-y"]
    for separator in ([], ["--"]):
        job = make_job(make_parser().parse_args(["-np", "2", *separator, *command]))
        assert list(job.command) == command


@pytest.mark.parametrize("flag", ["--mpi-args", "--binding-args"])
def test_an_unclosed_quote_names_its_option(flag: str) -> None:
    with pytest.raises(ValueError, match=f"{flag}: no closing quotation in .--map-by 'core"):
        make_job(make_parser().parse_args([flag, "--map-by 'core", *COMMAND]))


def test_an_output_that_cannot_be_a_folder_is_wrong_usage(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    for path in ("file", "file/below", "x" * 300, "a\0b"):
        with pytest.raises(ValueError, match=r"--output-filename .*expected a folder"):
            make_job(
                make_parser().parse_args(["--output-filename", f"{tmp_path}/{path}", *COMMAND])
            )
    with pytest.raises(SystemExit) as exit_:
        main(["--output-filename", f"{tmp_path}/file", *COMMAND])
    assert exit_.value.code == 2 and "--output-filename" in capsys.readouterr().err


def test_an_output_on_other_hosts_is_theirs_to_make(tmp_path: Path, monkeypatch) -> None:
    def check(path: str, *more: str) -> None:
        words = ["--output-filename", str(tmp_path / path), *more, *COMMAND]
        make_job(make_parser().parse_args(words))

    check("there", "-H", "a:1,b:1")
    with monkeypatch.context() as queue:
        queue.setenv("SLURM_JOB_ID", "7")
        check("there")
    assert list(tmp_path.iterdir()) == []
    check("here")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
