"""Start and end of the runtime, and the questions that scripts ask: rank, size, build.

``init`` is the only place that reads the environment, starts MPI and creates the engine. Every
rank parses its settings first; then one unconditional allgather carries values or errors, so that
either all ranks go on or all ranks raise the same error.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from horovod import _engine, mpi, timeline
from horovod.launch import singleton_error
from horovod.settings import LOG_LEVELS, RankReport, Settings, find_error, read_settings

logger = logging.getLogger("horovod")


class Tuner(Protocol):
    """What ``init`` and ``shutdown`` need of the autotuner; ``horovod.autotuning`` provides it."""

    def prepare(
        self, settings: Settings, topology: mpi.Topology, mpi_version: str
    ) -> Mapping[str, Any] | None:
        """**Rank 0 only.** Start, before the engine exists; ValueError when the job cannot tune.

        Returns what all ranks start with, as {parameter name: value}; None: what they were given.
        """

    def attach(self, engine: _engine.Engine) -> None:
        """**Local.** The engine runs."""

    def finish(self) -> None:
        """**Local.** The job shuts down; bounded in time, never raises."""

    def forget(self) -> None:
        """**Local.** This is a forked child: let go of everything and end nothing."""


@dataclass
class _Job:
    """What lives from ``init`` to ``shutdown``."""

    engine: _engine.Engine
    topology: mpi.Topology
    settings: Settings
    tuner: Tuner | None


@dataclass
class _Process:
    """What lives as long as the process."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    job: _Job | None = None
    mpi: Any = None
    owns_mpi: bool = False
    exit_comm: Any = None
    engine_failed: bool = False
    init_began_ns: int = 0
    forked: bool = False


_process = _Process()


def init(comm: object = None, process_sets: object = None, *, tuner: Tuner | None = None) -> None:
    """Start the runtime. **Collective:** all ranks. Does nothing when it runs already.

    Args:
        comm: None (all ranks), a list of world ranks, or an mpi4py communicator (duplicated).
        process_sets: Only None or an empty list in this version.
        tuner: The autotuner; None for none.

    Raises:
        ValueError: A setting is wrong, or the ranks disagree on one; the same error on every rank.
        RuntimeError: No MPI, a wrong launcher, a forked child, or the ranks do not connect.
        NotImplementedError: ``process_sets`` is given.
    """
    with _process.lock:
        if _process.job is not None:
            return
        _refuse_forked()
        if process_sets:
            raise NotImplementedError("hvd.init(process_sets=...) is not supported in this version")
        _process.init_began_ns = time.monotonic_ns()
        _start_mpi()
        communicator = mpi.job_communicator(_process.mpi, comm)
        if _process.exit_comm is None:
            _process.exit_comm = communicator.Dup()
        _process.job = _start_job(communicator, tuner)


def shutdown() -> None:
    """**Collective** in spirit. End the runtime; pending operations fail. Idempotent."""
    with _process.lock:
        if _process.job is None or _process.forked:
            return
        job, _process.job = _process.job, None
        if job.tuner is not None:
            job.tuner.finish()
        try:
            job.engine.shutdown()
        except _engine.EngineError as error:
            logger.warning("shutdown: %s", error)
            _process.engine_failed = True
        _process.engine_failed = _process.engine_failed or job.engine.failed


def is_initialized() -> bool:
    """**Local.** Return whether ``init`` was called and ``shutdown`` was not."""
    return _process.job is not None


def rank() -> int:
    """**Local.** Return the rank of this process, 0 <= rank < size. ValueError before ``init``."""
    return _job().topology.rank


def size() -> int:
    """**Local.** Return the number of ranks. ValueError before ``init``."""
    return _job().topology.size


def local_rank() -> int:
    """**Local.** Return the rank among the ranks of this host. ValueError before ``init``."""
    return _job().topology.local_rank


def local_size() -> int:
    """**Local.** Return the number of ranks on this host. ValueError before ``init``."""
    return _job().topology.local_size


def cross_rank() -> int:
    """**Local.** Return this host's index among those with this local rank. ValueError before."""
    return _job().topology.cross_rank


def cross_size() -> int:
    """**Local.** Return the number of hosts with this local rank. ValueError before ``init``."""
    return _job().topology.cross_size


def is_homogeneous() -> bool:
    """**Local.** Return whether all hosts run equally many ranks. ValueError before ``init``."""
    return _job().topology.homogeneous


def engine() -> _engine.Engine:
    """**Local.** Return the running engine.

    Raises:
        ValueError: ``init`` was not called.
        RuntimeError: This is a forked child.
    """
    _refuse_forked()
    return _job().engine


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """**Collective** in spirit. Record a timeline from now on; one that runs ends first.

    Args:
        file_path: Rank 0 writes it, replacing what is there; with "{rank}" in it every rank writes
            a file of its own. The current file: nothing happens.
        mark_cycles: Mark the cycles in which this rank announces something.

    Raises:
        ValueError: ``init`` was not called.
    """
    path = timeline.file_of(file_path, rank())
    if not path:
        return
    try:
        engine().start_timeline(path, mark_cycles)
    except _engine.InvalidRequest as error:
        logger.error("%s; training goes on without it", error)


def stop_timeline() -> None:
    """**Local.** End the timeline; its file is complete. ValueError before ``init``."""
    engine().stop_timeline()


def settings() -> Settings:
    """**Local.** Return the settings of this rank. ValueError before ``init``."""
    return _job().settings


def mpi_threads_supported() -> bool:
    """**Local.** Return whether MPI provides THREAD_MULTIPLE. ValueError before ``init``."""
    _job()
    return bool(_process.mpi.Query_thread() == _process.mpi.THREAD_MULTIPLE)


def mpi_built() -> bool:
    """**Local.** Return whether the engine found an MPI library."""
    return bool(_engine.mpi_library())


def mpi_enabled() -> bool:
    """**Local.** Return whether collectives go through MPI."""
    return mpi_built()


def gloo_built() -> bool:
    """**Local.** Return False: there is no gloo in this build."""
    return False


def gloo_enabled() -> bool:
    """**Local.** Return False: there is no gloo in this build."""
    return False


def nccl_built() -> int:
    """**Local.** Return the version code of NCCL, 0 without it."""
    return 0


def ddl_built() -> bool:
    """**Local.** Return False: there is no DDL in this build."""
    return False


def ccl_built() -> bool:
    """**Local.** Return False: there is no oneCCL in this build."""
    return False


def cuda_built() -> bool:
    """**Local.** Return whether tensors on CUDA devices can be communicated."""
    return False


def rocm_built() -> bool:
    """**Local.** Return False: there is no ROCm in this build."""
    return False


def _job() -> _Job:
    job = _process.job
    if job is None:
        raise ValueError("Horovod has not been initialized; call hvd.init() first")
    return job


def _refuse_forked() -> None:
    if _process.forked:
        raise RuntimeError(
            "Horovod cannot communicate in a forked child (e.g. a DataLoader worker): the engine "
            "and MPI stay with the parent; communicate there, or start the child by 'spawn'"
        )


def _start_mpi() -> None:
    if _process.mpi is None:
        module, owns = mpi.start()
        _process.mpi, _process.owns_mpi = module, owns
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork_in_child)
    wrong_launcher = singleton_error(_process.mpi.COMM_WORLD.size, os.environ)
    if wrong_launcher:
        raise RuntimeError(wrong_launcher)


def _start_job(communicator: Any, tuner: Tuner | None) -> _Job:
    topology, parsed, report = _read_own(communicator)
    if tuner is not None and topology.rank == 0 and parsed is not None and not report.error:
        report = _prepare_tuner(tuner, parsed, topology, report)
    reports = mpi.gather_all(communicator, report)
    error = find_error(reports)
    try:
        if error is not None or parsed is None:
            communicator.Free()
            raise ValueError(f"hvd.init(): {error}")
        parsed = parsed.with_params(reports[0].start)
        _warn_once(parsed, topology)
        engine = _start_engine(communicator, topology, parsed)
    except Exception:
        if tuner is not None:
            tuner.finish()
        raise
    if tuner is not None:
        tuner.attach(engine)
    return _Job(engine, topology, parsed, tuner)


def _read_own(communicator: Any) -> tuple[mpi.Topology, Settings | None, RankReport]:
    """Return topology, settings and this rank's report; only the topology communicates."""
    host = os.environ.get("HOROVOD_HOSTNAME", "").strip() or None
    topology = mpi.find_topology(_process.mpi, communicator, host)
    try:
        parsed = read_settings(os.environ)
        _core(parsed, topology)
    except ValueError as error:
        return topology, None, RankReport({}, str(error))
    wrong = mpi.thread_error(_process.mpi, topology.size) or mpi.library_error(
        _engine.mpi_library(), mpi.library_path(_process.mpi)
    )
    return topology, parsed, RankReport(parsed.to_agree, wrong)


def _prepare_tuner(
    tuner: Tuner, parsed: Settings, topology: mpi.Topology, report: RankReport
) -> RankReport:
    _configure_logging(parsed)
    try:
        version = _process.mpi.Get_library_version().split(",")[0].strip()
        start = tuner.prepare(parsed, topology, version)
    except ValueError as error:
        return RankReport(report.to_agree, str(error))
    return RankReport(report.to_agree, start=start)


def _core(parsed: Settings, topology: mpi.Topology) -> int:
    """Return the core of this rank's engine thread, -1 for any."""
    cores = parsed["HOROVOD_THREAD_AFFINITY"]
    if not cores:
        return -1
    if topology.local_rank >= len(cores):
        raise ValueError(
            f"HOROVOD_THREAD_AFFINITY: expected one core per local rank ({topology.local_size}), "
            f"got {len(cores)}: {','.join(map(str, cores))}"
        )
    return int(cores[topology.local_rank])


def _configure_logging(parsed: Settings) -> None:
    """Show our messages on stderr, unless the script configured logging itself."""
    level = LOG_LEVELS[parsed["HOROVOD_LOG_LEVEL"]]
    names: Mapping[str, int] = {"trace": logging.DEBUG, "fatal": logging.CRITICAL}
    logger.setLevel(names.get(level, getattr(logging, level.upper(), logging.WARNING)))
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[horovod] %(message)s"))
        logger.addHandler(handler)


def _warn_once(parsed: Settings, topology: mpi.Topology) -> None:
    """Say on rank 0 which settings have no effect."""
    _configure_logging(parsed)
    if topology.rank != 0:
        return
    for name in ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER"):
        alone = topology.local_size == 1 and topology.homogeneous
        if parsed[name] and (topology.cross_size == 1 or alone):
            place = "all ranks are on one host" if topology.cross_size == 1 else "one rank per host"
            logger.warning("%s=1 has no effect: %s", name, place)


def _start_engine(communicator: Any, topology: mpi.Topology, parsed: Settings) -> _engine.Engine:
    """**Collective.** Create the engine on all ranks."""
    options = _engine.Options()
    options.params = _engine.Params(**parsed.params)
    options.rank, options.size = topology.rank, topology.size
    alone = topology.size == 1
    options.host_of_rank = list(topology.hosts)
    options.mpi_comm = 0 if alone else _process.mpi._handleof(communicator)
    options.thread_affinity = _core(parsed, topology)
    stall_check = not parsed["HOROVOD_STALL_CHECK_DISABLE"]
    options.stall_warning_seconds = parsed["HOROVOD_STALL_CHECK_TIME_SECONDS"] * stall_check
    options.stall_shutdown_seconds = parsed["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] * stall_check
    options.log_level = parsed["HOROVOD_LOG_LEVEL"]
    _set_timeline(options, communicator, parsed)
    rendezvous = _engine.Rendezvous() if topology.rank == 0 and not alone else None
    address = communicator.bcast(rendezvous.address if rendezvous else "", root=0)
    return _engine.Engine(options, rendezvous, address)


def _set_timeline(options: _engine.Options, communicator: Any, parsed: Settings) -> None:
    """**Collective.** Rank 0's variable decides whether clocks are compared."""
    path = parsed["HOROVOD_TIMELINE"]
    began_ns = _process.init_began_ns
    several = communicator.bcast(timeline.RANK in (path or ""), root=0)
    clock = timeline.common_clock(communicator, began_ns) if several else None
    options.timeline_path = timeline.file_of(path, options.rank)
    options.timeline_mark_cycles = parsed["HOROVOD_TIMELINE_MARK_CYCLES"]
    options.timeline_clock = (clock or timeline.own_clock(began_ns)).values


def _at_exit() -> None:
    if _process.forked:
        return
    raised = getattr(sys, "last_value", None) is not None
    shutdown()
    mpi.end(
        _process.mpi,
        _process.exit_comm,
        failed=_process.engine_failed,
        raised=raised,
        ours=_process.owns_mpi,
        leave=_leave,
    )


def _leave(code: int) -> None:
    """End the process without MPI's finalize, which could hang after a fatal error."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def _after_fork_in_child() -> None:
    """Refuse the engine in a forked child, never destroy it there; ranks stay known."""
    _process.forked = True
    _process.lock = threading.RLock()
    job = _process.job
    if job is None:
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(job.engine))
    if job.tuner is not None:
        job.tuner.forget()
