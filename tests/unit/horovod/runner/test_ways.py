"""HOROVOD_CONTROLLER chooses the way; where nothing is said, MPI is taken where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from horovod.common import interfaces
from horovod.runner import launch, probe, starter, ways
from horovod.runner.mpirun import Job
from horovod.runner.parser import make_parser
from horovod.runner.probe import EngineBuild

MPIRUN = Path("/opt/mpi/bin/mpirun")


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with an MPI, which a test may take away."""
    monkeypatch.setattr(probe, "engine_build", lambda: EngineBuild(library="/opt/mpi/libmpi.so"))
    monkeypatch.setattr(probe, "find_mpirun", lambda *_: MPIRUN)
    return monkeypatch


def test_mpi_is_taken_where_there_is_one_and_gloo_where_it_is_asked_for(
    mpi: pytest.MonkeyPatch,
) -> None:
    assert ways.choose({}) == (ways.ByMpirun(MPIRUN), "")
    assert ways.choose({"HOROVOD_CONTROLLER": "MPI"}) == (ways.ByMpirun(MPIRUN), "")
    way, why = ways.choose({"HOROVOD_CONTROLLER": "gloo"})
    assert (type(way), why) == (ways.ByItself, "")


@pytest.mark.parametrize(
    ("build", "program", "why"),
    [
        (EngineBuild(library="/l/libmpi.so"), None, "no mpirun on PATH"),
        (EngineBuild(), MPIRUN, "no MPI library can be used here"),
        (EngineBuild(error="no libmpi.so"), MPIRUN, "no libmpi.so"),
    ],
)
def test_without_an_mpi_the_other_way_is_taken_and_said(
    mpi: pytest.MonkeyPatch, build: EngineBuild, program: Path | None, why: str
) -> None:
    mpi.setattr(probe, "engine_build", lambda: build)
    mpi.setattr(probe, "find_mpirun", lambda *_: program)
    way, said = ways.choose({})
    assert isinstance(way, ways.ByItself) and why in said
    with pytest.raises(ways.NoWayError, match="--mpi"):
        ways.choose({"HOROVOD_CONTROLLER": "mpi"})
    told: list[str] = []
    launch.make_command(make_parser().parse_args(["-np", "2", "true"]), told.append)
    assert len(told) == 1 and "without MPI" in told[0] and why in told[0]


def test_options_of_the_other_way_cost_a_warning_each() -> None:
    words = ["-np", "2", "--gloo", "--mpi-args=-v", "--tcp", "--gloo-timeout-seconds", "5", "true"]
    told: list[str] = []
    _, environ, _ = launch.make_command(make_parser().parse_args(words), told.append)
    assert [line.split(" is ignored")[0] for line in told] == ["--mpi-args", "--tcp"]
    assert environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "5"


def test_gloo_and_mpi_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--gloo", "--mpi", "-np", "2", "true"])
    assert "not allowed with" in capsys.readouterr().err


def test_a_job_without_mpi_keeps_its_words_and_no_secret_is_among_them() -> None:
    job = Job(
        size=3, command=["a", "b c"], hosts=[("me@far", 3)], ssh_port=22, ssh_identity_file="k"
    )
    environ = {
        "HOROVOD_SECRET_KEY": "0123456789abcdef",
        "OMPI_COMM_WORLD_RANK": "1",
        "RANK": "5",
        "TORCHELASTIC_RUN_ID": "x",
        "A": "b",
    }
    command = ways.ByItself().command(job, environ, {"size": 3})
    assert command.environ == {
        "HOROVOD_SECRET_KEY": "0123456789abcdef",
        "A": "b",
        "HOROVOD_CONTROLLER": "gloo",
    }
    assert "0123456789abcdef" not in json.dumps(list(command.words))
    assert list(command.words[-2:]) == ["a", "b c"]
    plan = starter.decode(command.words[-3])
    assert starter.decode(plan.encode()) == plan
    assert [(host.name, host.ranks) for host in plan.hosts] == [("me@far", (0, 1, 2))]
    assert list(plan.ssh) == ["-p", "22", "-i", "k"]


def test_under_mpi_named_interfaces_are_the_engines_too(tmp_path: Path) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    program.chmod(0o755)
    for names, passed in ((["ib0", "eth0"], "ib0,eth0"), (["10.0.0.0/8"], None), ([], None)):
        job = Job(size=1, command=["a"], hosts=[("far", 1)], network_interfaces=names)
        command = ways.ByMpirun(program).command(job, {}, {})
        assert command.environ.get("HOROVOD_GLOO_IFACE") == passed
        assert ("HOROVOD_GLOO_IFACE" in command.words) == (passed is not None)


def test_subnets_are_for_mpi_only() -> None:
    job = Job(size=1, command=["a"], network_interfaces=["10.0.0.0/8"])
    with pytest.raises(ValueError, match="expected names of interfaces"):
        ways.ByItself().command(job, {}, {})


def test_ssh_gets_users_and_addresses_as_it_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter.shutil, "which", lambda name: f"/usr/bin/{name}")
    words = starter.host_command("me@[fd00::1]", ["-p", "22"])
    assert words[words.index("/usr/bin/ssh") :][1:5] == ["-T", "-x", "-o", "BatchMode=yes"]
    assert words[-4:-1] == ["-p", "22", "me@fd00::1"]
    assert words[-1].endswith("host_process.py")
    monkeypatch.setattr(starter.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="no ssh to reach far"):
        starter.host_command("far", [])


def test_the_address_towards_another_host_is_the_one_on_the_way() -> None:
    assert interfaces.addresses("lo")[0] == "127.0.0.1"
    assert interfaces.addresses("nix0") == []
    assert interfaces.address_towards("me@127.0.0.1") == "127.0.0.1"
    assert interfaces.address_towards("192.0.2.1", ["nix0", "lo"]) == "127.0.0.1"
