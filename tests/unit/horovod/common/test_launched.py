"""The innermost launcher counts, and claims that cannot all be true are one sentence."""

from __future__ import annotations

import pytest

from horovod.common.launched import (
    FIRST_SLURM_PORT,
    SLURM_PORTS,
    Launched,
    Launcher,
    LaunchError,
    find,
    singleton_error,
)

MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2"}
OURS = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "a",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "7000",
    "HOROVOD_CONTROLLER": "gloo",
}
VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
TORCHRUN = {
    **VARIABLES,
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
ALLOCATION = {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[3-4]",
    "SLURM_NTASKS": "2",
}


def launched(environ: dict[str, str], has_mpi: bool = True) -> Launched:
    return find(environ, has_mpi=has_mpi)


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        (MPIRUN, Launcher.MPI),
        (HYDRA, Launcher.MPI),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, Launcher.MPI),
        (OURS, Launcher.HOROVODRUN),
        (TORCHRUN, Launcher.TORCHRUN),
        (VARIABLES, Launcher.VARIABLES),
        (STEP, Launcher.SLURM),
        ({**STEP, "PMIX_RANK": "1"}, Launcher.MPI),
        ({**STEP, **HYDRA}, Launcher.MPI),
        ({**STEP, **OURS}, Launcher.HOROVODRUN),
        ({**STEP, **VARIABLES}, Launcher.VARIABLES),
        ({**MPIRUN, **VARIABLES}, Launcher.MPI),
    ],
)
def test_every_launcher_is_known_by_its_variables(
    environ: dict[str, str], launcher: Launcher
) -> None:
    found = launched(environ)
    assert (found.launcher, found.rank, found.size) == (launcher, 1, 2)
    assert (found.place is None) == (launcher is Launcher.MPI)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"PMIX_RANK": "0"},
        ALLOCATION,
        ALLOCATION | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
        STEP | {"OMPI_COMM_WORLD_SIZE": "1"},
        {"WORLD_SIZE": "2"},
        {"PMI_SIZE": "many"},
        {"RANK": "0", "WORLD_SIZE": "1"},
    ],
)
def test_a_process_that_is_alone_meets_nobody(environ: dict[str, str]) -> None:
    found = launched(environ)
    assert (found.rank, found.size, found.place) == (0, 1, None)
    assert singleton_error(1, environ) is None


def test_one_torchrun_per_process_of_another_launcher_is_the_inner_one() -> None:
    inner = {**TORCHRUN, "RANK": "5", "WORLD_SIZE": "8"}
    for outer in (MPIRUN, STEP, {**STEP, **HYDRA}):
        found = launched({**outer, **inner})
        assert (found.launcher, found.rank, found.size) == (Launcher.TORCHRUN, 5, 8)


def test_a_step_that_carries_mpirun_says_nothing_about_the_ranks() -> None:
    daemons = {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    for controller in ({}, {"HOROVOD_CONTROLLER": "gloo"}):
        assert launched({**daemons, **MPIRUN, **controller}).launcher is Launcher.MPI


@pytest.mark.parametrize(
    "environ",
    [
        {**MPIRUN, **VARIABLES, "RANK": "0"},
        {**MPIRUN, **VARIABLES, "WORLD_SIZE": "1", "RANK": "0"},
        {**MPIRUN, **OURS, "HOROVOD_CONTROLLER": "", "HOROVOD_RANK": "0"},
        {**STEP, **VARIABLES, "RANK": "0", "WORLD_SIZE": "1"},
        {**STEP, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"},
        {**MPIRUN, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"},
        {"PMIX_RANK": "1", **VARIABLES, "RANK": "0"},
    ],
)
def test_variables_that_disagree_are_one_sentence_with_all_of_them(environ: dict[str, str]) -> None:
    with pytest.raises(LaunchError, match="disagree about this process: unset those") as caught:
        launched(environ)
    text = str(caught.value)
    assert "\n" not in text
    assert any(
        f"{name}={environ[name]}" in text for name in ("RANK", "HOROVOD_RANK") if name in environ
    )
    assert any(
        f"{n}={environ[n]}" in text for n in environ if n.startswith(("OMPI", "SLURM", "PMIX"))
    )


def test_the_controller_decides_where_mpi_and_another_disagree() -> None:
    stale = {**MPIRUN, **VARIABLES, "RANK": "0"}
    assert launched(stale | {"HOROVOD_CONTROLLER": "MPI"}).rank == 1
    found = launched(stale | {"HOROVOD_CONTROLLER": "gloo"})
    assert (found.launcher, found.rank) == (Launcher.VARIABLES, 0)
    assert launched(TORCHRUN | {"HOROVOD_CONTROLLER": "mpi"}).launcher is Launcher.MPI


def test_a_wish_for_gloo_under_mpirun_alone_stays_with_mpi() -> None:
    """Images set it for all jobs; MPI is the only one that knows the other ranks."""
    assert launched(MPIRUN | {"HOROVOD_CONTROLLER": "gloo"}).launcher is Launcher.MPI


def test_without_an_mpi_library_srun_needs_none() -> None:
    by_default_pmix = {**STEP, "PMIX_RANK": "1"}
    assert launched(by_default_pmix, has_mpi=False).launcher is Launcher.SLURM
    assert launched(MPIRUN, has_mpi=False).launcher is Launcher.MPI


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({**VARIABLES, "RANK": "2"}, "RANK=2, WORLD_SIZE=2 .* expected a rank from 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "without MASTER_ADDR and MASTER_PORT"),
        ({**VARIABLES, "MASTER_PORT": "99999"}, "without MASTER_ADDR and MASTER_PORT"),
        ({**STEP, "SLURM_STEP_NODELIST": ""}, "HOROVOD_GLOO_RENDEZVOUS_ADDR"),
    ],
)
def test_a_claim_that_cannot_be_is_one_sentence(environ: dict[str, str], words: str) -> None:
    with pytest.raises(LaunchError, match=words) as caught:
        launched(environ)
    assert "\n" not in str(caught.value)


def test_torchs_own_port_is_left_to_the_script() -> None:
    place = launched(VARIABLES).place
    assert place is not None
    assert (place.host, place.port, place.listener) == ("a", 29501, Launcher.VARIABLES)
    last = launched({**VARIABLES, "MASTER_PORT": "65535"}).place
    assert last is not None
    assert last.port == 65534


def test_torchruns_ranks_meet_in_the_store_of_its_agent_and_anew_after_each_restart() -> None:
    place = launched(TORCHRUN).place
    assert place is not None
    assert (place.host, place.port, place.listener) == ("a", 29500, Launcher.TORCHRUN)
    again = launched({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "4"}).place
    assert again is not None
    assert place.job != again.job
    alone = launched({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}).place
    assert alone is not None
    assert (alone.port, alone.listener) == (29501, Launcher.VARIABLES)


def test_a_steps_ranks_meet_on_its_first_node_at_a_port_of_its_own() -> None:
    places = [launched({**STEP, "SLURM_STEP_ID": str(step)}).place for step in range(50)]
    ports = [place.port for place in places if place]
    assert {place.host for place in places if place} == {"n3"}
    assert len(set(ports)) == 50
    assert min(ports) >= FIRST_SLURM_PORT
    assert max(ports) < FIRST_SLURM_PORT + SLURM_PORTS


def test_the_user_may_name_where_ranks_meet() -> None:
    named = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "b", "HOROVOD_GLOO_RENDEZVOUS_PORT": "4000"}
    for environ in (VARIABLES, STEP):
        place = launched({**environ, **named}).place
        assert place is not None
        assert (place.host, place.port) == ("b", 4000)


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_COMM_WORLD_SIZE": "2"},
        HYDRA,
        {"PMIX_RANK": "1"},
        {**STEP, "PMIX_RANK": "0", "SLURM_PROCID": "0"},
        {**TORCHRUN, "HOROVOD_CONTROLLER": "mpi"},
    ],
)
def test_several_processes_that_mpi_does_not_see(environ: dict[str, str]) -> None:
    error = singleton_error(1, environ)
    assert error is not None
    for words in ("MPI sees 1 rank", "mpirun", "srun --mpi=pmix (Open MPI)", "horovodrun --gloo"):
        assert words in error
    assert singleton_error(4, environ) is None
