"""The words that start a job, for each family of MPI."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.runner.hosts import parse_hostfile, parse_hosts
from horovod.runner.launch import make_job, make_parser
from horovod.runner.mpirun import (
    Family,
    Job,
    UnknownMpiError,
    command_line,
    identify,
    is_remote,
    launcher_environment,
    needs_oversubscribe,
    passed_variables,
    physical_cores,
)
from horovod.runner.probe import find_mpirun

MPIRUN = Path("/opt/mpi/bin/mpirun")
WITH_SSH = {"HYDRA_LAUNCHER": "ssh"}


def words(family: Family, job: Job, environ: dict[str, str] | None = None) -> list[str]:
    return command_line(MPIRUN, family, job, environ or WITH_SSH, cores=2)


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to ...", Family.OPEN_MPI_5),
        ("mpirun (Open MPI) 4.1.6", Family.OPEN_MPI_4),
        ("mpirun (Open MPI) 10.0.1", Family.OPEN_MPI_5),
        ("mpirun (PRRTE) 3.0.1", Family.OPEN_MPI_5),
        ("mpirun (PRTE) 5.0.0", Family.OPEN_MPI_5),
        ("prterun (PMIx Reference RunTime Environment, PRTE) 4.0.0", Family.OPEN_MPI_5),
        ("mpirun (OpenRTE) 4.1.2", Family.OPEN_MPI_4),
        ("OpenRTE", Family.OPEN_MPI_4),
        ("mpirun (Quadrics) 1.0.1", None),
        ("HYDRA build details:\n    Version: 5.0.2", Family.MPICH),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 1", Family.INTEL_MPI),
        ("", None),
    ],
)
def test_family_is_what_the_version_says(text: str, family: Family | None) -> None:
    if family is not None:
        assert identify(text) is family
        return
    with pytest.raises(UnknownMpiError, match="expected Open MPI, MPICH or Intel MPI"):
        identify(text)


def test_words_reach_the_ranks_as_they_are() -> None:
    command = ["python", "-c", "print('a b', \"$HOME\")", "--x=\n;rm"]
    for family in Family:
        assert words(family, Job(size=2, command=command))[-4:] == command


def test_more_ranks_than_cores_are_said_only_where_needed() -> None:
    four = Job(size=4, command=["x"])
    assert ":OVERSUBSCRIBE" in words(Family.OPEN_MPI_5, four)
    assert "--oversubscribe" in words(Family.OPEN_MPI_4, four)
    assert ":OVERSUBSCRIBE" not in words(Family.OPEN_MPI_5, Job(size=2, command=["x"]))
    assert not needs_oversubscribe(four, {"SLURM_JOB_ID": "1"}, 2)
    assert not needs_oversubscribe(Job(size=4, command=["x"], hosts=[("a", 4)]), {}, 2)


def test_ranks_are_not_bound_unless_the_caller_says_how() -> None:
    assert words(Family.OPEN_MPI_5, Job(size=1, command=["x"]))[3:5] == ["--bind-to", "none"]
    assert words(Family.MPICH, Job(size=1, command=["x"]))[3:5] == ["-bind-to", "none"]
    bound = Job(size=1, command=["x"], binding_args=["--bind-to", "core"])
    assert words(Family.OPEN_MPI_5, bound)[3:] == ["--bind-to", "core", "x"]


def test_variables_are_named_for_other_hosts_only() -> None:
    environ = {
        **WITH_SSH,
        "HOROVOD_CYCLE_TIME": "1",
        "HOROVOD_SECRET_KEY": "s",
        "HOME": "/root",
        "PATH": "/bin",
    }
    remote = Job(size=2, command=["x"], hosts=[("far", 1), ("farther", 1)])
    built = words(Family.OPEN_MPI_5, remote, environ)
    assert built[3:5] == ["--host", "far:1,farther:1"]
    assert [built[i + 1] for i, word in enumerate(built) if word == "-x"] == [
        "HOROVOD_CYCLE_TIME",
        "PATH",
    ]
    here = Job(size=2, command=["x"], hosts=[("localhost", 2)])
    assert not is_remote(here)
    assert "-x" not in words(Family.OPEN_MPI_5, here, environ)


def test_hosts_without_a_way_to_them_are_one_sentence(tmp_path: Path) -> None:
    bare = {"PATH": str(tmp_path)}
    away = Job(size=2, command=["x"], hosts=[("localhost", 1), ("far", 1)])
    for family in Family:
        with pytest.raises(ValueError, match="host far is reached by ssh, which is not installed"):
            words(family, away, bare)
        words(family, Job(size=2, command=["x"], hosts=[("localhost", 2)]), bare)
    words(Family.OPEN_MPI_5, away, {**bare, "PRTE_MCA_plm_ssh_agent": "/opt/agent"})
    words(Family.MPICH, away, {**bare, "SLURM_JOB_ID": "7"})
    by_option = Job(size=2, command=["x"], hosts=away.hosts, mpi_args=["-launcher", "fork"])
    words(Family.MPICH, by_option, bare)
    (tmp_path / "ssh").touch(mode=0o755)
    words(Family.OPEN_MPI_4, away, bare)


def test_nothing_secret_is_passed() -> None:
    assert passed_variables({"HOROVOD_SECRET_KEY": "x", "TORCH_TOKEN": "x"}) == []


@pytest.mark.parametrize("family", list(Family))
def test_interfaces_and_more_words(family: Family) -> None:
    job = Job(size=2, command=["x"], network_interfaces=["eth0"], mpi_args=["--quiet"], tcp=True)
    built = words(family, job)
    assert "eth0" in built
    assert any("tcp" in word or word == "MPIR_CVAR_NOLOCAL" for word in built)
    is_open_mpi = family in (Family.OPEN_MPI_4, Family.OPEN_MPI_5)
    assert built[1 if is_open_mpi else -2] == "--quiet" and built[-1] == "x"


def test_ssh_options_are_words_for_open_mpi_only() -> None:
    job = Job(size=2, command=["x"], ssh_port=2222, ssh_identity_file="key")
    for family, name in [(Family.OPEN_MPI_5, "plm_ssh_args"), (Family.OPEN_MPI_4, "plm_rsh_args")]:
        built = words(family, job)
        assert built[built.index(name) + 1] == "-p 2222 -i key"
    for family in (Family.MPICH, Family.INTEL_MPI):
        with pytest.raises(ValueError, match="ssh/config"):
            words(family, job)


def test_intel_mpi_takes_equal_slots_only() -> None:
    built = words(Family.INTEL_MPI, Job(size=4, command=["x"], hosts=[("a", 2), ("b", 2)]))
    assert built[3:7] == ["-hosts", "a,b", "-ppn", "2"]
    with pytest.raises(ValueError, match="-machinefile"):
        words(Family.INTEL_MPI, Job(size=3, command=["x"], hosts=[("a", 2), ("b", 1)]))


def test_a_place_in_another_job_is_not_passed_on() -> None:
    place = {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "PMI_RANK": "0", "PRTE_LAUNCHED": "1"}
    kept = {"OMPI_MCA_btl": "tcp", "PRTE_MCA_x": "1", "PMIX_MCA_gds": "hash", "SLURM_JOB_ID": "1"}
    assert launcher_environment({**place, **kept}, uid=1000) == kept


def test_only_root_gets_permission_to_run_as_root() -> None:
    assert launcher_environment({"A": "1"}, uid=1000) == {"A": "1"}
    assert launcher_environment({}, uid=0)["PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    assert physical_cores(tmp_path) >= 1
    assert physical_cores() >= 1


def test_hosts_are_read_in_order(tmp_path: Path) -> None:
    assert parse_hosts("a:2, b-1.site") == [("a", 2), ("b-1.site", None)]
    file = tmp_path / "hosts"
    file.write_text("# first\na slots=2\nb:3  # second\n\nc\n")
    assert parse_hostfile(file) == [("a", 2), ("b", 3), ("c", None)]


@pytest.mark.parametrize("text", ["a:x", "a;rm", "", "a,,b"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:SLOTS"):
        parse_hosts(text)


def test_host_files_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=many\n")
    with pytest.raises(ValueError, match=r"hosts:1: expected 'HOST slots=N'"):
        parse_hostfile(file)
    file.write_text("\n")
    with pytest.raises(ValueError, match="names no host"):
        parse_hostfile(file)
    with pytest.raises(ValueError, match="cannot be read"):
        parse_hostfile(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["python"], "-np is missing"),
        (["-np", "0", "python"], "at least 1 rank"),
        (["-np", "2"], "no command"),
    ],
)
def test_a_command_line_that_starts_nothing_says_why(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_job(make_parser().parse_args(arguments))


def test_options_after_the_command_belong_to_the_command() -> None:
    arguments = make_parser().parse_args(["-np", "2", "python", "t.py", "--verbose", "-np", "3"])
    job = make_job(arguments)
    assert (job.size, list(job.command)) == (2, ["python", "t.py", "--verbose", "-np", "3"])
    assert not arguments.verbose


def test_mpirun_of_the_engines_mpi_beats_the_path(tmp_path: Path) -> None:
    for folder in ("venv", "site"):
        program = tmp_path / folder / "bin" / "mpirun"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    library = str(tmp_path / "venv/lib/libmpi.so.40")
    path = str(tmp_path / "site/bin")
    assert find_mpirun(library, path) == tmp_path / "venv/bin/mpirun"
    assert find_mpirun("", path) == tmp_path / "site/bin/mpirun"
    assert find_mpirun("", str(tmp_path)) is None


def test_mpirun_is_never_found_under_the_root_folder(tmp_path: Path) -> None:
    """Open MPI takes the prefix of its absolute path, and refuses "/" (Debian's /bin is a link)."""
    program = tmp_path / "usr" / "bin" / "mpirun"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "bin").symlink_to(program.parent)
    assert find_mpirun("", str(tmp_path / "bin")) == program
