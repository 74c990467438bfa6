"""Start and end of the runtime, and the questions that scripts ask: rank, size, build.

``init`` is the only place that joins ranks, by MPI or without it; how all ranks agree and make the
engine is in ``horovod.common.starting``.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from horovod import _engine
from horovod.common import cuda_libraries, mpi, mpi_library, operation, rounds, timeline
from horovod.common.joining import OpenStore, join
from horovod.common.launched import (
    CONTROLLER,
    Launched,
    Launcher,
    LaunchError,
    find,
    singleton_error,
)
from horovod.common.settings import Settings
from horovod.common.starting import Job, Start, TunerLink, start_job
from horovod.common.tcp import WithoutMpi
from horovod.common.world import World

logger = logging.getLogger("horovod")


__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "size",
    "start_timeline",
    "stop_timeline",
]
"""What scripts import, from here, ``horovod.torch`` or ``horovod.torch.mpi_ops``."""


@dataclass
class _Process:
    """What lives as long as the process."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    job: Job | None = None
    world: World | None = None
    """All processes that the launcher of this one has started; of an elastic job: of its round."""
    is_watched: bool = False
    """Whether its end and its forks are noticed."""
    engine_failed: bool = False
    """Whether the newest job has ended by an error."""
    forked: bool = False
    code_without_others: int | None = None
    """Exit code of a process that ends after ranks were lost, and waits for none."""


_process = _Process()


def init(
    comm: object, process_sets: object, tuner: TunerLink, open_store: OpenStore | None = None
) -> None:
    """Start the runtime. **Collective:** all ranks. Does nothing when it runs already.

    In an elastic job it waits for the next round; where the job goes on without this process, it
    ends it (``rounds.OutOfJob``, a SystemExit with code 0).

    Args:
        comm: None (all ranks), a list of world ranks, or an mpi4py communicator (duplicated).
        process_sets: None, a list of process sets (or of rank lists), the same on all ranks, or
            "dynamic"; sets may be added and removed later in any case.
        tuner: The way to the autotuner, which also reads the settings.
        open_store: The front end's way to a store like torchrun's, if it has one.

    Raises:
        ValueError: A setting is wrong, or the ranks disagree on one; the same error on every rank.
        RuntimeError: Ranks of MPI and no MPI, a wrong launcher, a forked child, or the ranks do not
            meet or connect.
    """
    with _process.lock:
        if _process.job is not None:
            return
        _refuse_forked()
        begin = functools.partial(_begin, comm, process_sets, tuner, time.monotonic_ns())
        if rounds.is_elastic():
            _process.job = _begin_in_a_round(begin, tuner)
        else:
            _process.job = begin(_start_world(open_store))
        _process.engine_failed = False  # all ranks are here, and have begun anew


def _begin(
    comm: object,
    process_sets: object,
    tuner: TunerLink,
    began_ns: int,
    world: World,
    goes_on: bool = False,
) -> Job:
    """Start the job of the ranks ``comm`` of ``world``; the other arguments as of ``Start``."""
    return start_job(
        Start(
            world=world.subset(comm),
            process_sets=process_sets,
            tuner=tuner,
            init_began_ns=began_ns,
            goes_on=goes_on,
        )
    )


def _begin_in_a_round(begin: Callable[..., Job], tuner: TunerLink) -> Job:
    """Return the job of this worker's next round; of a later one where a rank dies meanwhile.

    Raises:
        RuntimeError: The launcher is gone.
        OutOfJob: The job goes on without this process.
        ValueError: As of ``init``.
    """
    own, why = rounds.rounds, ""
    _watch_process()
    while True:
        found = own.ask(why)
        os.environ.update({f"HOROVOD_{name}": str(each) for name, each in found.place.items()})
        try:
            _process.world = WithoutMpi(own.meet(found, _say), rounds.CONNECT_SECONDS)
            job = begin(_process.world, goes_on=found.number > 1)
        except RuntimeError as error:
            why = str(error)
            tuner.finish()
            _leave_round()
            continue
        own.runs(job.engine)
        return job


def _leave_round() -> None:
    """Let go of the world of a round: the next one has another."""
    world, _process.world = _process.world, None
    if world is not None:
        world.forget()


def shutdown() -> None:
    """**Collective** in spirit. End the runtime; pending operations fail. Idempotent."""
    with _process.lock:
        if _process.job is None or _process.forked:
            return
        job, _process.job = _process.job, None
        for process_set in job.process_sets.values():
            process_set.detach()
        job.tuner.finish()
        job.advise_at_the_end()
        try:
            job.engine.shutdown()
        except _engine.EngineError as error:
            logger.warning("shutdown: %s", error)
            _process.engine_failed = True
        _process.engine_failed = _process.engine_failed or job.engine.failed
        timeline.files.release()
        job.world.leave()
        operation.forget()
        if rounds.is_elastic():
            _leave_round()
            rounds.rounds.left()


def is_initialized() -> bool:
    """**Local.** Return whether ``init`` was called and ``shutdown`` was not."""
    return _process.job is not None


def rank() -> int:
    """**Local.** Return the rank of this process, 0 <= rank < size. ValueError before ``init``."""
    return job().topology.rank


def size() -> int:
    """**Local.** Return the number of ranks. ValueError before ``init``."""
    return job().topology.size


def local_rank() -> int:
    """**Local.** Return the rank among the ranks of this host. ValueError before ``init``."""
    return job().topology.local_rank


def local_size() -> int:
    """**Local.** Return the number of ranks on this host. ValueError before ``init``."""
    return job().topology.local_size


def cross_rank() -> int:
    """**Local.** Return this host's index among those with this local rank. ValueError before."""
    return job().topology.cross_rank


def cross_size() -> int:
    """**Local.** Return the number of hosts with this local rank. ValueError before ``init``."""
    return job().topology.cross_size


def is_homogeneous() -> bool:
    """**Local.** Return whether all hosts run equally many ranks. ValueError before ``init``."""
    return job().topology.homogeneous


def engine() -> _engine.Engine:
    """**Local.** Return the running engine.

    Raises:
        ValueError: ``init`` was not called.
        RuntimeError: This is a forked child.
    """
    running = _process.job
    if running is None or _process.forked:
        _refuse_forked()
        running = job()
    return running.engine


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """**Collective** in spirit. Record a timeline from now on; one that runs ends first.

    Args:
        file_path: Rank 0 writes it, replacing what is there (beside it where another process
            writes it); with "{rank}" in it every rank writes
            a file of its own. The current file: nothing happens.
        mark_cycles: Mark the cycles in which this rank announces something.

    Raises:
        ValueError: ``init`` was not called.
    """
    path = timeline.file_of(file_path, rank())
    if not path:
        return
    try:
        engine().start_timeline(timeline.files.claim(path, keep=False), mark_cycles)
    except _engine.InvalidRequest as error:
        logger.error("%s; training goes on without it", error)


def stop_timeline() -> None:
    """**Local.** End the timeline; its file is complete. ValueError before ``init``."""
    engine().stop_timeline()


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """**Local.** Return {id: sorted ranks} of the registered process sets (Horovod's name)."""
    return engine().process_sets()


def settings() -> Settings:
    """**Local.** Return the settings of this rank. ValueError before ``init``."""
    return job().settings


def mpi_threads_supported() -> bool:
    """**Local.** Return whether MPI provides THREAD_MULTIPLE, False in a job without MPI.

    ValueError before ``init``.
    """
    return job().world.has_threads


def mpi_built() -> bool:
    """**Local.** Return whether there is an MPI on this machine that a job can use."""
    return mpi_library.is_loaded() or not mpi_library.find().error


def mpi_enabled() -> bool:
    """**Local.** Return whether MPI joins the ranks; before ``init`` whether it would."""
    if _process.world is not None:
        return _process.world.kind == "mpi"
    try:
        return _is_for_mpi(find(os.environ, has_mpi=True)) and mpi_built()
    except LaunchError:
        return False


def gloo_built() -> bool:
    """**Local.** Return True: jobs run without MPI, over TCP as with gloo; it is our own."""
    return True


def gloo_enabled() -> bool:
    """**Local.** Return whether the job does without MPI; before ``init`` whether it would."""
    return not mpi_enabled()


def nccl_built() -> int:
    """**Local.** Return NCCL's version code, e.g. 22809 for 2.28.9; 0 without it."""
    return cuda_libraries.nccl_version()


def ddl_built() -> bool:
    """**Local.** Return False: there is no DDL in this build."""
    return False


def ccl_built() -> bool:
    """**Local.** Return False: there is no oneCCL in this build."""
    return False


def cuda_built() -> bool:
    """**Local.** Return whether tensors on CUDA devices can be communicated."""
    return cuda_libraries.cuda_version() > 0 and nccl_built() > 0


def rocm_built() -> bool:
    """**Local.** Return False: there is no ROCm in this build."""
    return False


class HorovodBasics:
    """The questions of this module as methods, as libraries use Horovod's class of this name.

    Args:
        *arguments: Horovod's (where its library lies), without a meaning here.
    """

    def __init__(self, *arguments: object) -> None:
        for name in __all__:
            setattr(self, name, globals()[name])


def job() -> Job:
    """**Local.** Return the running job. ValueError before ``init``."""
    running = _process.job
    if running is None:
        raise ValueError("Horovod has not been initialized; call hvd.init() first")
    return running


def _refuse_forked() -> None:
    if _process.forked:
        raise RuntimeError(
            "Horovod cannot communicate in a forked child (e.g. a DataLoader worker): the engine "
            "stays with the parent; communicate there, or start the child by 'spawn'"
        )


def _start_world(open_store: OpenStore | None) -> World:
    """Return all processes that the launcher has started; start MPI where it has to join them.

    Raises:
        RuntimeError: They cannot be joined.
    """
    if _process.world is None:
        _process.world = _find_world(open_store)
        _watch_process()
    if _process.world.kind == "mpi":
        wrong_launcher = singleton_error(_process.world.size, os.environ)
        if wrong_launcher:
            raise RuntimeError(wrong_launcher)
    return _process.world


def _watch_process() -> None:
    if not _process.is_watched:
        _process.is_watched = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork_in_child)


def _find_world(open_store: OpenStore | None) -> World:
    """Return the world that the environment says; without MPI nothing of it is imported.

    Ranks that MPI does not see though Slurm has started them, by a PMI that is not this MPI's, meet
    without it.
    """
    launched = find(os.environ, has_mpi=True)
    if _is_for_mpi(launched):
        try:
            world = mpi.start_world()
        except mpi.NoMpiError:
            launched = find(os.environ, has_mpi=False)
            if launched.needs_mpi:
                raise
        else:
            if not singleton_error(world.size, os.environ):
                return world
            launched = find(os.environ, has_mpi=False)
            if launched.place is None:
                return world
            world.end(failed=False, raised=False, leave=_leave)
            if launched.rank == 0:
                _say(
                    f"MPI sees 1 of the {launched.size} ranks that {launched.launcher} has "
                    f"started: they go on without MPI; {CONTROLLER}=gloo says so from the start"
                )
    if launched.place is None:
        return WithoutMpi(None)
    return WithoutMpi(join(launched, os.environ, open_store, _say))


def _say(text: str) -> None:
    """Tell people something before the job has its settings."""
    logger.warning("[horovod] hvd.init(): %s", text)


def _is_for_mpi(launched: Launched) -> bool:
    """Return whether MPI joins the ranks; a process that nobody has started is alone in its MPI."""
    if launched.launcher is Launcher.NONE:
        return os.environ.get(CONTROLLER, "").strip().lower() != "gloo"
    return launched.needs_mpi


def _at_exit() -> None:
    if _process.forked or _process.world is None:
        return
    raised, code = script_raised(), _process.code_without_others
    shutdown()
    if _process.world is None:
        return
    _process.world.end(
        failed=_process.engine_failed,
        raised=raised or code is not None,
        leave=lambda given: _leave(given if code is None else code),
    )


def end_without_others(code: int) -> None:
    """**Local.** Let this process, which is about to end, wait for no other rank at its exit.

    Args:
        code: The exit code with which it ends.
    """
    _process.code_without_others = code


def script_raised() -> bool:
    """**Local.** Return, while the process ends, whether an exception has ended its script."""
    return getattr(sys, "last_value", None) is not None


def _leave(code: int) -> None:
    """End the process without MPI's finalize, which could hang after a fatal error."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(code)


def _after_fork_in_child() -> None:
    """Refuse the engine in a forked child, never destroy it there; ranks stay known."""
    _process.forked = True
    _process.lock = threading.RLock()
    if _process.world is not None:
        _process.world.forget()
    rounds.rounds.forget()
    job = _process.job
    if job is None:
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(job.engine))
    job.tuner.forget()
