"""What makes a job elastic, and what of it cannot be."""

from __future__ import annotations

import pytest

from horovod.runner.elastic.options import Elastic, is_wanted, read
from horovod.runner.hosts import parse_hosts
from horovod.runner.parser import make_parser


def wanted(*words: str, hosts: str = "", **environ: str) -> Elastic:
    arguments = make_parser().parse_args([*words, "python", "train.py"])
    assert is_wanted(arguments)
    return read(arguments, parse_hosts(hosts) if hosts else [], environ)


def test_horovods_words_are_understood() -> None:
    found = wanted(
        *("-np", "4", "--min-np", "2", "--max-np", "8", "--host-discovery-script", "./hosts.sh -v"),
        *("--slots", "2", "--reset-limit", "3", "--blacklist-cooldown-range", "10", "100"),
        HOROVOD_ELASTIC_TIMEOUT="30",
    )
    assert found == Elastic(
        first=4,
        least=2,
        most=8,
        timeout_s=30.0,
        reset_limit=3,
        slots=2,
        cooldown_s=(10.0, 100.0),
        script="./hosts.sh -v",
    )
    assert Elastic.decode(found.encode()) == found


def test_longer_names_mean_the_same() -> None:
    found = wanted("--min-num-proc", "2", "--max-num-proc", "3", "--slots-per-host", "4")
    assert (found.first, found.least, found.most, found.hosts) == (2, 2, 3, {"localhost": 3})


def test_np_alone_is_the_least_too_and_named_hosts_are_fixed() -> None:
    found = wanted("-np", "3", "--max-np", "4", hosts="a:2,b:2")
    assert (found.first, found.least, dict(found.hosts)) == (3, 3, {"a": 2, "b": 2})


def test_a_job_without_these_words_is_not_elastic() -> None:
    assert not is_wanted(make_parser().parse_args(["-np", "2", "--reset-limit", "1", "true"]))


@pytest.mark.parametrize(
    ("words", "hosts", "text"),
    [
        ("--min-np 0", "", "--min-np 0: expected at least 1 rank"),
        ("--min-np 4 --max-np 2", "", "--max-np 2: expected at least --min-np, which is 4"),
        ("-np 1 --min-np 2", "", "-np 1: expected a number from --min-np 2"),
        ("-np 9 --min-np 2 --max-np 8", "", "-np 9: expected .* to --max-np 8"),
        ("--host-discovery-script x", "", "-np or --min-np is missing"),
        ("-np 4 --min-np 2", "a:2,b", r"-np 4: the hosts have room for 3 ranks \(a:2,b:1\)"),
        ("--min-np 2 --slots 0", "", "--slots-per-host 0"),
        ("--min-np 2 --reset-limit -1", "", "--reset-limit -1"),
        ("--min-np 2 --blacklist-cooldown-range 5 2", "", "--blacklist-cooldown-range 5 2"),
        ("--min-np 2 --blacklist-cooldown-range 0 2", "", "--blacklist-cooldown-range 0 2"),
    ],
)
def test_what_cannot_be_is_one_sentence(words: str, hosts: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        wanted(*words.split(), hosts=hosts)


def test_mpi_is_refused() -> None:
    with pytest.raises(ValueError, match="elastic jobs start without MPI"):
        wanted("--min-np", "2", HOROVOD_CONTROLLER="mpi")


def test_hosts_are_found_in_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["-H", "a:1", "--host-discovery-script", "x", "true"])
    assert "not allowed with" in capsys.readouterr().err
