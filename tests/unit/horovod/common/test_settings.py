"""Environment variables are read strictly, and compared between ranks by value."""

from __future__ import annotations

import contextlib

import pytest

from horovod.common import secret
from horovod.common.settings import (
    LOG_LEVELS,
    RankReport,
    Substitute,
    Variable,
    find_error,
)
from horovod.tuning.settings import VARIABLES, read_settings


def test_nothing_set_gives_the_defaults_and_fixes_nothing() -> None:
    settings = read_settings({"PATH": "/bin", "HOROVOD_UNKNOWN": "x"})
    assert settings.fixed == {}
    assert settings["HOROVOD_AUTOTUNE"] is False
    assert settings["HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"] == 20
    assert settings.params["cycle_time_ms"] == 1.0


def test_an_empty_value_counts_as_unset() -> None:
    assert read_settings({"HOROVOD_FUSION_THRESHOLD": " ", "HOROVOD_AUTOTUNE": ""}).fixed == {}


def test_set_parameters_are_fixed_even_at_their_default() -> None:
    settings = read_settings({"HOROVOD_CACHE_CAPACITY": "1024", "HOROVOD_CYCLE_TIME": "2.5"})
    assert settings.fixed == {"cache_capacity": 1024, "cycle_time_ms": 2.5}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HOROVOD_AUTOTUNE", "2", True),
        ("HOROVOD_AUTOTUNE", "0", False),
        ("HOROVOD_LOG_LEVEL", "DEBUG", 1),
        ("HOROVOD_THREAD_AFFINITY", "0, 3", (0, 3)),
        ("HOROVOD_CONTROL_FANOUT", "8", 8),
        ("HOROVOD_CONTROLLER", "MPI", "mpi"),
        ("HOROVOD_CONTROLLER", "gloo", "gloo"),
        ("HOROVOD_AUTOTUNE_BUDGET", "0.1", 0.1),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "2.5", 2.5),
    ],
)
def test_values(name: str, value: str, expected: object) -> None:
    assert read_settings({name: value})[name] == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64MB"),
        ("HOROVOD_FUSION_THRESHOLD", "1e6"),
        ("HOROVOD_CYCLE_TIME", "abc"),
        ("HOROVOD_CYCLE_TIME", "nan"),
        ("HOROVOD_CACHE_CAPACITY", "-1"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "2"),
        ("HOROVOD_AUTOTUNE", "on"),
        ("HOROVOD_AUTOTUNE", "-1"),
        ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "0"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "1.5"),
        ("HOROVOD_AUTOTUNE_BUDGET", "inf"),
        ("HOROVOD_AUTOTUNE_SEED", "1.0"),
        ("HOROVOD_THREAD_AFFINITY", "0,x"),
        ("HOROVOD_CONTROL_FANOUT", "-1"),
        ("HOROVOD_CONTROL_FANOUT", "1000000"),
        ("HOROVOD_FUSION_THRESHOLD", "4.92817"),
        ("HOROVOD_CONTROLLER", "slurm"),
        ("HOROVOD_CPU_OPERATIONS", "fast"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "soon"),
    ],
)
def test_a_wrong_value_names_variable_and_value(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got .*{value}"):
        read_settings({name: value})


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.env)
@pytest.mark.parametrize("value", [10**30, 10**400], ids=["10^30", "10^400"])
def test_no_number_is_too_large_to_be_refused(variable: Variable, value: int) -> None:
    if variable.parse not in (str, secret.parse):
        with contextlib.suppress(ValueError):
            parsed = variable.parse(str(value))
            assert parsed is True or isinstance(parsed, Substitute), "a switch is on"


@pytest.mark.parametrize("value", ["9999999999999999999", "0,1024", "1023,99999999999"])
def test_a_core_that_cannot_be_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=f"core numbers up to 1023 .*, got '{value}'"):
        read_settings({"HOROVOD_THREAD_AFFINITY": value})


def test_the_kind_of_a_value_is_said_once() -> None:
    for name, value, expected in (
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "2", "expected 0 or 1, got"),
        ("HOROVOD_AUTOTUNE_SEED", "x", "expected a whole number between 0 and 4294967295, got"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: {expected} "):
            read_settings({name: value})


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"HOROVOD_CYCLE_TIME.*HOROVOD_AUTOTUNE_SEED"):
        read_settings({"HOROVOD_CYCLE_TIME": "x", "HOROVOD_AUTOTUNE_SEED": "y"})


@pytest.mark.parametrize(
    ("name", "value", "used"),
    [
        ("HOROVOD_LOG_LEVEL", "loud", LOG_LEVELS.index("warning")),
        ("HOROVOD_CONTROLLER", "jsrun", ""),
        ("HOROVOD_CPU_OPERATIONS", "CCL", ""),
        ("HOROVOD_FUSION_THRESHOLD", "64", 64),
    ],
)
def test_a_wish_that_cannot_be_met_is_one_remark(name: str, value: str, used: object) -> None:
    settings = read_settings({name: value})
    assert settings[name] == used and name in settings.explicit
    assert len(settings.remarks) == 1 and f"{name}={value}" in settings.remarks[0]


@pytest.mark.parametrize(
    ("text", "level"),
    [("WARN", "warning"), (" off ", "fatal"), ("Err", "error"), ("critical", "fatal")],
)
def test_levels_of_other_loggers_are_understood(text: str, level: str) -> None:
    settings = read_settings({"HOROVOD_LOG_LEVEL": text})
    assert LOG_LEVELS[settings["HOROVOD_LOG_LEVEL"]] == level and settings.remarks == ()


def test_mebibytes_out_of_a_log_are_refused_with_their_bytes() -> None:
    with pytest.raises(ValueError, match=r"a log has MiB: in bytes that is 5167560"):
        read_settings({"HOROVOD_FUSION_THRESHOLD": "4.92817"})
    assert "67108864" in read_settings({"HOROVOD_FUSION_THRESHOLD": "64"}).remarks[0]
    assert read_settings({"HOROVOD_FUSION_THRESHOLD": "0"}).remarks == ()
    for text in ("64MB", "nan", "-inf"):
        with pytest.raises(ValueError, match="whole number of bytes") as caught:
            read_settings({"HOROVOD_FUSION_THRESHOLD": text})
        assert "MiB" not in str(caught.value)


def test_what_means_nothing_here_is_known_by_name() -> None:
    environ = {
        "CCL_WORKER_COUNT": "1",
        "HOROVOD_ENABLE_XLA_OPS": "1",
        "HOROVOD_TORUS_ALLREDUCE": "",
    }
    assert read_settings(environ).ignored == ("CCL_WORKER_COUNT", "HOROVOD_ENABLE_XLA_OPS")


def test_variables_have_one_row_each() -> None:
    names = [variable.env for variable in VARIABLES]
    assert len(names) == len(set(names))


def reports(*environs: dict[str, str]) -> list[RankReport]:
    return [RankReport(read_settings(environ).to_agree) for environ in environs]


def test_equal_values_agree_however_they_are_written() -> None:
    same = reports({"HOROVOD_CYCLE_TIME": "1"}, {"HOROVOD_CYCLE_TIME": "1.0"}, {})
    assert find_error(same) is None


def test_paths_levels_and_wishes_may_differ() -> None:
    """A launcher need not pass them on; the ranks have met all the same."""
    mixed = reports(
        {"HOROVOD_AUTOTUNE_LOG": "a", "HOROVOD_LOG_LEVEL": "info", "HOROVOD_HOSTNAME": "a"},
        {"HOROVOD_CPU_OPERATIONS": "MPI", "HOROVOD_CONTROLLER": "mpi"},
    )
    assert find_error(mixed) is None


def test_a_disagreement_names_variable_ranks_and_values() -> None:
    error = find_error(reports({"HOROVOD_CACHE_CAPACITY": "0"}, {}, {}))
    assert error is not None
    assert error.startswith("HOROVOD_CACHE_CAPACITY must be the same on all ranks")
    assert "0 on rank 0, 1024 on ranks 1, 2" in error
    for way in ("mpirun -x", "mpiexec -genv", "aprun -e"):
        assert f"'{way} HOROVOD_CACHE_CAPACITY" in error


def test_an_unset_value_is_called_unset() -> None:
    error = find_error(reports({"HOROVOD_AUTOTUNE_SEED": "3"}, {}))
    assert error is not None
    assert "3 on rank 0, unset on rank 1" in error


def test_errors_of_ranks_come_before_disagreements() -> None:
    good = read_settings({}).to_agree
    assert find_error([RankReport(good), RankReport({}, "broken")]) == "broken (rank 1 of 2)"
    assert find_error([RankReport({}, "broken")] * 3) == "broken (on all 3 ranks)"


def test_many_ranks_are_shortened() -> None:
    error = find_error([RankReport({}, "broken")] * 20 + [RankReport({}, "other")])
    assert error == "broken (ranks 0, 1, 2, 3, 4, 5, 6, 7, ... of 21)"
