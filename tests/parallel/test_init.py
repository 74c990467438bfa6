"""Start, end and start again; settings that are wrong or that the ranks disagree on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import horovod.torch as hvd
from horovod.common import basics
from tiers.between_ranks import WITHOUT_MPI, barrier, needs_mpi

Restart = Callable[[dict[str, str]], None]


def works() -> None:
    assert torch.equal(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), 1.0 * hvd.size()))


def test_ranks_and_sizes(rank: int, size: int) -> None:
    assert 0 <= rank < size
    assert hvd.local_size() == size
    assert hvd.local_rank() == rank
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous()
    assert hvd.mpi_built() or WITHOUT_MPI
    assert hvd.mpi_enabled() is not WITHOUT_MPI
    assert hvd.gloo_enabled() is WITHOUT_MPI
    assert hvd.gloo_built()
    assert hvd.mpi_threads_supported() in ((False,) if WITHOUT_MPI else (False, True))
    assert torch.version.cuda is not None or hvd.nccl_built() == 0
    assert torch.cuda.is_available() or not hvd.cuda_built()
    assert hvd.global_process_set.size() == size
    assert hvd.global_process_set.rank() == rank
    assert hvd.global_process_set.ranks == list(range(size))


def test_init_is_idempotent_and_can_follow_shutdown() -> None:
    hvd.init()
    engine = basics.engine()
    hvd.init()
    assert basics.engine() is engine
    for _ in range(5):
        works()
        hvd.shutdown()
        hvd.shutdown()
        assert not hvd.is_initialized()
        for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.mpi_threads_supported):
            with pytest.raises(ValueError, match=r"call hvd\.init\(\) first"):
                call()
        with pytest.raises(ValueError, match=r"call hvd\.init\(\) first"):
            hvd.allreduce(torch.ones(1))
        hvd.init()
    works()


def test_handles_say_after_shutdown_how_their_operations_have_ended(rank: int, size: int) -> None:
    done = hvd.allreduce_async(torch.ones(1), op=hvd.Sum)
    rows = hvd.allgather_async(torch.ones(2))
    alone = hvd.allreduce_async(torch.ones(1), name="alone") if rank == 0 and size > 1 else None
    while not (hvd.poll(done) and hvd.poll(rows)):
        pass
    hvd.barrier()  # one rank's shutdown ends the engine of all
    hvd.shutdown()
    assert hvd.synchronize(done).item() == size
    hvd.init()
    assert torch.equal(hvd.synchronize(rows), torch.ones(2 * size))
    assert hvd.synchronize(done) is None
    if alone is not None:
        assert hvd.poll(alone)
        with pytest.raises(hvd.HorovodInternalError, match="shut down"):
            hvd.synchronize(alone)
        assert hvd.synchronize(alone) is None


@pytest.mark.skipif(not WITHOUT_MPI, reason="MPI joins the ranks of this job")
def test_a_job_without_mpi_imports_nothing_of_it() -> None:
    works()
    assert not [name for name in sys.modules if name.split(".")[0] == "mpi4py"]
    loaded = Path("/proc/self/maps").read_text()
    assert "libmpi" not in loaded and "libpmix" not in loaded
    hvd.shutdown()
    with pytest.raises(ValueError, match="this job runs without MPI"):
        hvd.init(comm=SimpleNamespace(Get_group=None))
    hvd.init()


def test_rank_lists(rank: int, size: int) -> None:
    for ranks in (list(range(size)), list(range(size))[::-1], []):
        hvd.shutdown()
        hvd.init(comm=ranks)
        assert hvd.rank() == (ranks.index(rank) if ranks else rank)
        works()
    hvd.shutdown()
    for wrong in ("all", [rank, size], [rank, rank]):
        with pytest.raises(ValueError, match=r"expected None.*a list of ranks|expected different"):
            hvd.init(comm=wrong)
    hvd.init()


@needs_mpi
def test_communicators(rank: int, size: int) -> None:
    from mpi4py import MPI

    hvd.shutdown()
    hvd.init(comm=MPI.COMM_WORLD)
    works()
    hvd.shutdown()
    half = MPI.COMM_WORLD.Split(rank % 2, rank)
    hvd.init(comm=half)
    assert hvd.size() == half.size
    works()
    hvd.shutdown()
    hvd.init()
    works()


@pytest.mark.usefixtures("two_ranks")
def test_a_list_of_some_ranks_makes_a_job_of_them(rank: int, size: int) -> None:
    """Those left out learn it at once; the others are numbered in the order of the list."""
    chosen = list(range(size - 1, 0, -1))
    hvd.shutdown()
    if rank in chosen:
        hvd.init(comm=chosen)
        assert (hvd.rank(), hvd.size()) == (size - 1 - rank, size - 1)
        works()
        assert hvd.allgather_object(rank) == chosen
        hvd.shutdown()
    else:
        with pytest.raises(ValueError, match=r"init\(comm=.*rank 0 is not in the list"):
            hvd.init(comm=chosen)
        assert not hvd.is_initialized()
    barrier()
    hvd.init()
    works()


def test_what_scripts_left_behind_is_gone_after_a_restart(restart: Restart, size: int) -> None:
    """Names in flight, numbers of unnamed operations, groups and sets are clean."""
    for _ in range(3):
        handles = [hvd.allreduce_async(torch.ones(2), name=name) for name in ("kept", None, None)]
        handles.append(hvd.grouped_allreduce_async([torch.ones(2)] * 3, name="kept"))
        if size > 1:
            hvd.add_process_set([0])
        hvd.synchronize(handles[2])
        hvd.barrier()
        restart({})
        works()
    restart({})
    assert [hvd.synchronize(handle) for handle in handles] == [None] * 4


@needs_mpi
@pytest.mark.usefixtures("two_ranks")
def test_a_job_that_has_failed_leaves_no_communicator_to_the_next_one(
    restart: Restart, rank: int
) -> None:
    from mpi4py import MPI

    stalls = ("HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    alive: set[int] = set()
    key = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, number: alive.discard(number))
    for number in range(2):
        restart(dict.fromkeys(stalls, "1"))
        basics.job().world._comm.Set_attr(key, number)  # type: ignore[attr-defined]
        alive.add(number)
        assert alive == {number}
        with pytest.raises(hvd.HorovodInternalError, match="has waited"):
            hvd.allreduce(torch.ones(2), name=f"of rank {rank}")
        assert basics.engine().failed
    restart({})
    assert not alive
    works()


WRONG = [
    ("HOROVOD_FUSION_THRESHOLD", "64MB", "whole number of bytes"),
    ("HOROVOD_CYCLE_TIME", "abc", "number of ms"),
    ("HOROVOD_CACHE_CAPACITY", "-1", "between 0 and"),
    ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "0", "between 1 and"),
    ("HOROVOD_AUTOTUNE", "yes", "0 .off. or 1 .on."),
    ("HOROVOD_CONTROLLER", "slurm", "mpi"),
]


@pytest.mark.parametrize("where", ["everywhere", "last rank only"])
@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_a_wrong_setting_is_raised_on_every_rank(
    name: str, value: str, words: str, where: str, restart: Restart, rank: int, size: int
) -> None:
    """S1."""
    mine = {name: value} if where == "everywhere" or rank == size - 1 else {}
    with pytest.raises(ValueError, match=f"{name}.*{words}.*got '?{value}") as caught:
        restart(mine)
    ranks = f"on all {size} ranks" if where == "everywhere" else f"rank {size - 1} of {size}"
    assert size == 1 or ranks in str(caught.value)
    assert not hvd.is_initialized()


DIFFERENT = [
    ("HOROVOD_CACHE_CAPACITY", "1024", "0"),
    ("HOROVOD_AUTOTUNE", "", "1"),
    ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "5", "7"),
    ("HOROVOD_FUSION_THRESHOLD", "", "1048576"),
    ("HOROVOD_CYCLE_TIME", "0.5", ""),
]


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize(("name", "first", "last"), DIFFERENT)
def test_ranks_that_disagree_learn_it_together(
    name: str, first: str, last: str, restart: Restart, rank: int, size: int
) -> None:
    """S2."""
    with pytest.raises(ValueError, match=f"{name} must be the same on all ranks") as caught:
        restart({name: last if rank == size - 1 else first})
    text = str(caught.value)
    assert "on rank 0" in text or "on ranks 0" in text
    assert f"on rank {size - 1}" in text
    for value in (first, last):
        assert value in text
    assert f"-x {name}" in text


def test_some_variables_may_differ(restart: Restart, rank: int) -> None:
    restart(
        {
            "HOROVOD_LOG_LEVEL": ["info", "WARNING"][rank % 2],
            "HOROVOD_AUTOTUNE_LOG": f"/tmp/{rank}.csv",
            "HOROVOD_THREAD_AFFINITY": "0,0,0,0",
        }
    )
    works()


def test_equal_settings_written_differently_agree(restart: Restart, rank: int) -> None:
    restart({"HOROVOD_CYCLE_TIME": ["0.5", "5e-1"][rank % 2], "HOROVOD_CACHE_CAPACITY": "  64 "})
    assert hvd.autotune.params()["cycle_time_ms"] == 0.5
    assert hvd.autotune.params()["cache_capacity"] == 64
    works()


@pytest.mark.usefixtures("two_ranks")
def test_host_names_make_hosts(restart: Restart, rank: int, size: int) -> None:
    restart({"HOROVOD_HOSTNAME": f"host{rank % 2}"})
    assert hvd.local_size() == size // 2
    assert hvd.local_rank() == rank // 2
    assert (hvd.cross_rank(), hvd.cross_size()) == (rank % 2, 2)
    works()


def test_a_forked_child_cannot_communicate_and_ends_nothing(rank: int, size: int) -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = b"wrong"
        try:
            assert (hvd.rank(), hvd.size()) == (rank, size)
            hvd.allreduce(torch.ones(1))
        except RuntimeError as error:
            answer = str(error).encode()
        finally:
            hvd.shutdown()
            basics._at_exit()
            os.write(writer, answer)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert "forked child" in stream.read()
    assert os.waitpid(pid, 0)[1] == 0
    works()
