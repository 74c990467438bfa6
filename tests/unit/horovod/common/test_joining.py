"""Ranks find each other by whatever started them, and say what is wrong where they cannot."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from horovod.common import joining, launched
from horovod.common.joining import join
from horovod.common.launched import LaunchError
from horovod.common.meeting import MeetingPoint
from horovod.common.tcp_world import MeetingError, TcpWorld

LIMIT_S = 30.0
VARIABLES = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
TORCHRUN = {
    **VARIABLES,
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


class DictStore:
    """Torchrun's store, within one process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, LIMIT_S)
            return self.values[key].encode()


@pytest.fixture
def port() -> Iterator[int]:
    """A port such that the next one is free."""
    with socket.create_server(("", 0)) as taken:
        number = taken.getsockname()[1]
    yield number - 1


def join_all(environs: list[dict[str, str]], store: DictStore | None = None) -> list[list[int]]:
    """Return what the ranks with ``environs``, which are threads, gather from each other."""

    def rank(environ: dict[str, str]) -> TcpWorld:
        found = launched.find(environ, has_mpi=True)
        return join(found, environ, store and (lambda *_: store), lambda text: None)

    with ThreadPoolExecutor(len(environs)) as threads:
        joined = [each.result(LIMIT_S) for each in [threads.submit(rank, e) for e in environs]]
        gathered = list(threads.map(lambda each: each.allgather(each.rank), joined))
    for each in joined:
        each.close()
    return gathered


def test_ranks_of_our_launcher_meet_at_its_point() -> None:
    there = MeetingPoint(2, "k" * 16, host="127.0.0.1")
    environ = {
        "HOROVOD_SIZE": "2",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(there.port),
        "HOROVOD_SECRET_KEY": "k" * 16,
    }
    assert join_all([{**environ, "HOROVOD_RANK": str(rank)} for rank in (0, 1)]) == [[0, 1]] * 2
    there.close()


def test_ranks_with_torchs_variables_meet_at_the_next_port(port: int) -> None:
    environ = {**VARIABLES, "MASTER_PORT": str(port)}
    with socket.create_server(("", port)):  # the script's own torch.distributed
        ranks = [{**environ, "RANK": str(rank)} for rank in (1, 0)]
        assert join_all(ranks) == [[0, 1]] * 2


def test_ranks_of_torchrun_meet_by_its_store_also_when_it_begins_anew() -> None:
    store = DictStore()
    for restart in ("0", "1"):
        ranks = [
            {**TORCHRUN, "RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": restart}
            for rank in (0, 1)
        ]
        assert join_all(ranks, store) == [[0, 1]] * 2
    assert len(store.values) == 2


def test_what_an_earlier_rank_0_has_left_is_not_followed() -> None:
    store = DictStore()
    store.values["horovod/none/0"] = '["127.0.0.1", 1, "old"]'
    ranks = [{**TORCHRUN, "RANK": str(rank)} for rank in (1, 0)]
    assert join_all(ranks, store) == [[0, 1]] * 2


def test_a_torchrun_job_without_torch_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"horovod\.torch only"):
        join_all([{**TORCHRUN, "RANK": "0"}])


def test_two_jobs_at_one_port_do_not_mix(port: int) -> None:
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_PROCID": "1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port + 1),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "20",
    }
    other = MeetingPoint(2, "slurm/8.0", host="127.0.0.1", port=port + 1)
    with pytest.raises(MeetingError, match="does not have this job's key"):
        join_all([step])
    with pytest.raises(LaunchError, match=r"rank 0 cannot listen at port .* free port"):
        join_all([{**step, "SLURM_PROCID": "0"}])
    other.close()
    ranks = [{**step, "SLURM_PROCID": str(rank)} for rank in (0, 1)]
    assert join_all(ranks) == [[0, 1]] * 2


def test_a_rank_that_does_not_come_is_named_in_time(port: int) -> None:
    environ = {**VARIABLES, "MASTER_PORT": str(port), "RANK": "0"}
    with pytest.raises(MeetingError, match=r"after 0\.5 s 1 of 2 ranks have not come \(rank 1\)"):
        join_all([{**environ, joining.TIMEOUT: "0.5"}])


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_wrong_timeout_is_one_sentence(text: str) -> None:
    environ = {**VARIABLES, "MASTER_PORT": "29500", "RANK": "1", joining.TIMEOUT: text}
    with pytest.raises(LaunchError, match=f"{joining.TIMEOUT}: expected a positive number"):
        join_all([environ])
