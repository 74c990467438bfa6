"""How a job starts: every rank reads its settings, all agree, the engine is made.

Ranks first learn whether they run the same build. Then every rank parses its settings, and one
unconditional allgather carries values or errors, so that either all ranks go on or all ranks raise
the same error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from horovod import _engine
from horovod.common import advice, builds, descriptors, secret, timeline
from horovod.common.process_set import (
    ProcessSet,
    agree_static_sets,
    global_process_set,
    read_static_sets,
    requested_ranks,
)
from horovod.common.settings import LOG_LEVELS, RankReport, Settings, find_error
from horovod.common.world import Topology, World, find_topology

logger = logging.getLogger("horovod")


class TunerLink(Protocol):
    """What ``init`` and ``shutdown`` need of the autotuner; ``horovod.tuning`` provides it."""

    def log_handler(self) -> logging.Handler:
        """**Local.** Return what writes lines for people to standard error."""

    def read_settings(self, environ: Mapping[str, str]) -> Settings:
        """**Local.** Return what ``environ`` says about the job; ValueError where it is wrong."""

    def settle(
        self, settings: Settings | None, topology: Topology, exchange: Callable[[Any], list[Any]]
    ) -> None:
        """**Collective**, also where this rank's settings are wrong (None). Change the environment.

        ``exchange`` returns what every rank has given, by rank.
        """

    def quota(self) -> float:
        """**Local.** Return how many cores' worth of time this host leaves the job; inf: all."""

    def prepare(
        self, settings: Settings, topology: Topology, mpi_version: str
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


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a job is started with.

    Attributes:
        world: All ranks of the job.
        process_sets: As the script gave them to ``hvd.init``.
        tuner: The way to the autotuner.
        init_began_ns: When ``hvd.init`` was called (time.monotonic_ns).
        goes_on: The job has begun before, perhaps in other processes: nothing that was written
            then is written over.
    """

    world: World
    process_sets: object
    tuner: TunerLink
    init_began_ns: int
    goes_on: bool = False


@dataclass
class Job:
    """What lives from ``init`` to ``shutdown``.

    Attributes:
        engine: Of this rank.
        world: All its ranks.
        topology: This rank's place.
        settings: Of this rank.
        tuner: The way to the autotuner.
        process_sets: The registered ones, by id.
    """

    engine: _engine.Engine
    world: World
    topology: Topology
    settings: Settings
    tuner: TunerLink
    process_sets: dict[int, ProcessSet] = field(default_factory=dict)
    is_cache_advised: bool = False

    def advise_on_cache(self, tensors: int) -> None:
        """**Local.** Say once, on rank 0, that a training step has more than the cache holds.

        Where the tuner runs it finds the capacity by itself.
        """
        text = advice.on_cache(tensors, self.engine.params().cache_capacity)
        if text and self.topology.rank == 0 and not self.settings["HOROVOD_AUTOTUNE"]:
            if not self.is_cache_advised:
                logger.warning("%s", text)
            self.is_cache_advised = True

    def advise_at_the_end(self) -> None:
        """**Local.** Say what the training steps of a job without wrapped optimizers showed."""
        if self.topology.size > 1 and not self.engine.failed:
            self.advise_on_cache(advice.tensors_of_step(*self.engine.drain_steps()))

    def register(self, process_set: ProcessSet, ranks: Sequence[int]) -> None:
        """**Collective.** Make a process set of ``ranks`` in the engine.

        Raises:
            InvalidRequest: The engine refuses the ranks.
            EngineError: The ranks of the job disagree, a rank died or the engine was shut down.
        """
        number = self._complete(self.engine.add_process_set(list(ranks)))
        process_set.attach(number, sorted(ranks), self.topology.rank)
        self.process_sets[number] = process_set

    def unregister(self, process_set: ProcessSet) -> None:
        """**Collective.** Remove a process set from the engine; errors as ``register``."""
        number = process_set.process_set_id or 0
        self._complete(self.engine.remove_process_set(number))
        self.process_sets.pop(number, process_set).detach()

    def _complete(self, handle: int) -> int:
        try:
            self.engine.wait(handle)
            return self.engine.process_set_id(handle)
        finally:
            self.engine.release(handle)


def start_job(start: Start) -> Job:
    """**Collective.** Agree on the settings, start the tuner and the engine, make process sets.

    Raises:
        ValueError: A setting is wrong, or the ranks disagree; the same error on every rank.
        RuntimeError: The ranks do not connect.
    """
    world, tuner = start.world, start.tuner
    difference = builds.find_difference(world.allgather(builds.own_build()))
    if difference is not None:
        world.free()
        raise ValueError(f"hvd.init(): {difference}")
    topology, parsed, report, sets = _read_own(start)
    tuner.settle(None if report.error else parsed, topology, world.allgather)
    if topology.rank == 0 and parsed is not None and not report.error:
        report = _prepare_tuner(start, parsed, topology, report)
    world.wait()
    reports = [RankReport(*each) for each in world.allgather(report.values)]
    try:
        error, agreed_sets = _agree(reports)
        if error is not None or parsed is None:
            world.free()
            raise ValueError(f"hvd.init(): {error}")
        parsed = parsed.with_params(reports[0].start)
        _configure_logging(parsed, tuner)
        _warn_once(parsed, topology, world, tuner.quota())
        engine = _start_engine(start, topology, parsed)
    except Exception:
        tuner.finish()
        raise
    tuner.attach(engine)
    job = Job(engine, world, topology, parsed, tuner)
    _make_process_sets(job, sets, agreed_sets)
    return job


def _agree(reports: list[RankReport]) -> tuple[str | None, list[list[tuple[int, ...]]]]:
    """Return what is wrong, or None, and the process sets to be made; equal on every rank."""
    error = find_error(reports)
    if error is not None:
        return error, []
    try:
        return None, agree_static_sets([report.process_sets for report in reports])
    except ValueError as wrong:
        return str(wrong), []


def _make_process_sets(
    job: Job, own: Sequence[ProcessSet], agreed: Sequence[Sequence[tuple[int, ...]]]
) -> None:
    """**Collective.** Make the ``agreed`` sets, one or several for each of our ``own``."""
    rank, size = job.topology.rank, job.topology.size
    global_process_set.attach(0, range(size), rank)
    job.process_sets[0] = global_process_set
    for process_set, choices in zip(own, agreed, strict=True):
        for ranks in choices:
            mine = len(choices) == 1 or rank in ranks
            job.register(process_set if mine else ProcessSet(ranks), ranks)


def _read_own(
    start: Start,
) -> tuple[Topology, Settings | None, RankReport, Sequence[ProcessSet]]:
    """Return topology, settings, this rank's report and its process sets.

    Only the topology communicates.
    """
    host = os.environ.get("HOROVOD_HOSTNAME", "").strip() or None
    cores = sorted(os.sched_getaffinity(0))
    topology = find_topology(start.world, host, cores)
    try:
        parsed = start.tuner.read_settings(os.environ)
        sets = read_static_sets(start.process_sets)
        ranks = tuple(
            (requested_ranks(each, start.world), each.mpi_comm is not None) for each in sets
        )
    except ValueError as error:
        return topology, None, RankReport({}, str(error)), ()
    fan_out = parsed["HOROVOD_CONTROL_FANOUT"]
    room = descriptors.make_room(descriptors.needed(topology, start.world.kind, fan_out))
    report = RankReport(parsed.to_agree, start.world.error() or room, process_sets=ranks)
    return topology, parsed, report, sets


def _prepare_tuner(
    start: Start, parsed: Settings, topology: Topology, report: RankReport
) -> RankReport:
    _configure_logging(parsed, start.tuner)
    try:
        first = start.tuner.prepare(parsed, topology, start.world.version)
    except ValueError as error:
        return replace(report, error=str(error))
    return replace(report, start=first)


def _core(parsed: Settings, topology: Topology) -> int:
    """Return the core of this rank's engine thread, -1 for any: also where there are too few."""
    cores = parsed["HOROVOD_THREAD_AFFINITY"]
    return int(cores[topology.local_rank]) if len(cores) >= topology.local_size else -1


def _configure_logging(parsed: Settings, tuner: TunerLink) -> None:
    """Show our messages on stderr, unless the script configured logging itself."""
    level = LOG_LEVELS[parsed["HOROVOD_LOG_LEVEL"]]
    names: Mapping[str, int] = {"trace": logging.DEBUG, "fatal": logging.CRITICAL}
    logger.setLevel(names.get(level, getattr(logging, level.upper(), logging.WARNING)))
    if not logger.hasHandlers():
        handler = tuner.log_handler()
        handler.setFormatter(logging.Formatter("[horovod] %(message)s"))
        logger.addHandler(handler)


def _warn_once(parsed: Settings, topology: Topology, world: World, quota: float) -> None:
    """Say on rank 0 which settings have no effect, an unexpected one, or make the job slow.

    Args:
        parsed: The settings.
        topology: This rank's place.
        world: All ranks.
        quota: As of ``TunerLink``.
    """
    if topology.rank != 0:
        return
    for remark in parsed.remarks:
        logger.warning("%s", remark)
    of_tcp = ("HOROVOD_GLOO_TIMEOUT_SECONDS",)
    ignored = [*parsed.ignored, *(name for name in of_tcp if world.kind == "mpi" and parsed[name])]
    if ignored:
        logger.info("set, but without meaning here: %s", ", ".join(ignored))
    for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"):
        wish = {"gloo": "tcp"}.get(parsed[name], parsed[name])
        if wish and wish != world.kind and topology.size > 1:
            logger.warning(
                "%s=%s is not met: the job uses %s, as it was started",
                name,
                parsed[name],
                world.name,
            )
    for name in ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER"):
        alone = topology.local_size == 1 and topology.homogeneous
        if parsed[name] and (topology.cross_size == 1 or alone):
            place = "all ranks are on one host" if topology.cross_size == 1 else "one rank per host"
            logger.warning("%s=1 has no effect: %s", name, place)
    cores = parsed["HOROVOD_THREAD_AFFINITY"]
    if 0 < len(cores) < topology.local_size:
        logger.warning(
            "HOROVOD_THREAD_AFFINITY=%s has no effect: expected one core per local rank (%d), "
            "got %d",
            ",".join(map(str, cores)),
            topology.local_size,
            len(cores),
        )
    text = advice.on_threads(
        os.environ.get(advice.THREADS, ""),
        local_size=topology.local_size,
        cores=min(len(topology.cores) or os.cpu_count() or 1, quota),
        own_cores=min(len(os.sched_getaffinity(0)), quota),
    )
    if text:
        logger.warning("%s", text)
    if topology.cross_size > 1 and parsed[secret.ENV] is None:
        logger.info(
            "connections between hosts are proven by a key that %s has carried unencrypted; where "
            "others can listen to it, set %s to the same random text on every host",
            world.name,
            secret.ENV,
        )
    if len(os.sched_getaffinity(0)) == 1 and len(topology.cores) > 1:
        logger.warning(
            "every rank is bound to one core, which its engine thread shares with the training; "
            "start them unbound (mpirun --bind-to none), or name other cores in "
            "HOROVOD_THREAD_AFFINITY"
        )


def _start_engine(start: Start, topology: Topology, parsed: Settings) -> _engine.Engine:
    """**Collective.** Create the engine on all ranks."""
    options = _engine.Options()
    options.params = _engine.Params(**parsed.params)
    options.rank, options.size = topology.rank, topology.size
    options.host_of_rank = list(topology.hosts)
    options.host_names = list(topology.host_names)
    options.thread_affinity = _core(parsed, topology)
    stall_check = not parsed["HOROVOD_STALL_CHECK_DISABLE"]
    options.stall_warning_seconds = parsed["HOROVOD_STALL_CHECK_TIME_SECONDS"] * stall_check
    options.stall_shutdown_seconds = parsed["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] * stall_check
    options.log_level = parsed["HOROVOD_LOG_LEVEL"]
    options.disable_group_fusion = parsed["HOROVOD_DISABLE_GROUP_FUSION"]
    options.connect_seconds = start.world.connect_seconds
    options.control_fan_out = parsed["HOROVOD_CONTROL_FANOUT"]
    _set_timeline(options, start, parsed)
    world = start.world
    key = secret.job_key(world, parsed[secret.ENV])
    interfaces = parsed["HOROVOD_GLOO_IFACE"] or ""
    transport = world.transport(key, topology.hosts, interfaces)
    parents = _engine.control_parents(topology.hosts, options.control_fan_out)
    rank = topology.rank
    rendezvous = _engine.Rendezvous(key, interfaces, rank) if rank in parents else None
    own = rendezvous.address if rendezvous else ""
    if max(parents) <= 0:
        address = world.bcast(own)
    else:  # ranks speak for others
        address = world.allgather(own)[max(parents[rank], 0)]
    return _engine.Engine(options, rendezvous, address, key, transport)


def _set_timeline(options: _engine.Options, start: Start, parsed: Settings) -> None:
    """**Collective.** Rank 0's variable decides whether clocks are compared."""
    path = parsed["HOROVOD_TIMELINE"]
    world, began_ns = start.world, start.init_began_ns
    several = world.bcast(timeline.RANK in (path or ""))
    clock = timeline.common_clock(world, began_ns) if several else None
    wanted = timeline.file_of(path, options.rank)
    options.timeline_path = timeline.files.claim(wanted, keep=True, keep_others=start.goes_on)
    if options.timeline_path != wanted:
        logger.warning(
            "HOROVOD_TIMELINE: %s has a timeline of this process or of another job; this one goes "
            "to %s",
            wanted,
            options.timeline_path,
        )
    options.timeline_mark_cycles = parsed["HOROVOD_TIMELINE_MARK_CYCLES"]
    options.timeline_clock = (clock or timeline.own_clock(began_ns)).values
