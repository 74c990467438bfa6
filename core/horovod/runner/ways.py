"""The ways in which ``horovodrun`` starts ranks: by mpirun, or itself, without MPI.

HOROVOD_CONTROLLER chooses ("mpi" or "gloo", Horovod's names); ``--mpi``, ``--gloo`` and the config
file set it. Where nothing is said, MPI is taken where there is one.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from horovod.common.joining import INTERFACES
from horovod.common.launched import CONTROLLER
from horovod.runner import mpirun, placing, probe, starter
from horovod.runner.elastic import driver
from horovod.runner.elastic.options import Elastic
from horovod.runner.supervise import rank_command


class NoWayError(RuntimeError):
    """Ranks cannot be started in the way that was asked for; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """What runs all ranks: words and environment of one process, which ``supervise`` watches.

    ``awaited``: how many ranks say that they have started.
    """

    words: Sequence[str]
    environ: Mapping[str, str]
    awaited: int


class Way(Protocol):
    """One way of starting ranks."""

    @property
    def name(self) -> str:
        """How people call it."""

    @property
    def without_effect(self) -> Mapping[str, tuple[str, str]]:
        """Options that mean nothing to it: flag -> (destination, why)."""

    def command(
        self, job: mpirun.Job, environ: Mapping[str, str], options: Mapping[str, Any]
    ) -> Command:
        """Return what starts ``job``.

        Args:
            job: What to start.
            environ: The environment of the job.
            options: Of ``rank_process``, under which every rank runs.

        Raises:
            ValueError: An option of the job is wrong, or cannot be met in this way.
        """


@dataclass(frozen=True)
class ByMpirun:
    """The ``program`` mpirun starts the ranks."""

    program: Path

    @property
    def name(self) -> str:
        """The family of the mpirun."""
        return str(mpirun.ask_family(self.program))

    @property
    def without_effect(self) -> Mapping[str, tuple[str, str]]:
        """Options of the other way."""
        why = "MPI brings the ranks together, and waits as long as they take"
        return {"--gloo-timeout-seconds": ("HOROVOD_GLOO_TIMEOUT_SECONDS", why)}

    def command(
        self, job: mpirun.Job, environ: Mapping[str, str], options: Mapping[str, Any]
    ) -> Command:
        """Return the mpirun line; interfaces by name are also those of the engine's connections."""
        names = ",".join(job.network_interfaces)
        if names and "/" not in names:
            environ = {INTERFACES: names, **environ}
        options = {**options, "hosts": mpirun.equal_hosts(job)}
        job = dataclasses.replace(job, command=rank_command(job.command, options))
        family = mpirun.ask_family(self.program)
        words = mpirun.command_line(self.program, family, job, environ, mpirun.physical_cores())
        return Command(
            words=words, environ=mpirun.launcher_environment(environ, os.getuid()), awaited=job.size
        )


def _refuse_subnets(job: mpirun.Job) -> None:
    subnets = [name for name in job.network_interfaces if "/" in name]
    if subnets:
        raise ValueError(
            f"--network-interfaces {subnets[0]}: without MPI expected names of interfaces"
        )


class ByItself:
    """``starter`` starts the ranks, here and over ssh."""

    name = "without MPI"
    without_effect: Mapping[str, tuple[str, str]] = {
        flag: (flag[2:].replace("-", "_"), "no mpirun starts the ranks")
        for flag in ("--mpi-args", "--binding-args", "--tcp")
    }

    def command(
        self, job: mpirun.Job, environ: Mapping[str, str], options: Mapping[str, Any]
    ) -> Command:
        """Return the line that runs ``starter``."""
        _refuse_subnets(job)
        hosts = job.hosts or placing.other_hosts(environ)
        plan = starter.Plan(
            size=job.size,
            hosts=placing.place_ranks(list(hosts), job.size),
            options={**options, "terminal": True},
            interfaces=job.network_interfaces,
            ssh=mpirun.ssh_words(job),
        )
        python = [sys.executable, "-P", "-m", starter.__name__]
        return Command(
            words=[*python, plan.encode(), *job.command],
            environ={**mpirun.outside_of_jobs(environ), CONTROLLER: "gloo"},
            awaited=job.size,
        )


@dataclass(frozen=True)
class Elastically:
    """``elastic.driver`` starts the ranks of an elastic job, here and over ssh."""

    wanted: Elastic
    name = "elastic, without MPI"
    without_effect: ClassVar[Mapping[str, tuple[str, str]]] = {
        **ByItself.without_effect,
        "--start-timeout": ("HOROVOD_START_TIMEOUT", "--elastic-timeout limits the wait for ranks"),
        "--gloo-timeout-seconds": (
            "HOROVOD_GLOO_TIMEOUT_SECONDS",
            "--elastic-timeout limits the wait for ranks",
        ),
    }

    def command(
        self, job: mpirun.Job, environ: Mapping[str, str], options: Mapping[str, Any]
    ) -> Command:
        """Return the line that runs ``driver``."""
        _refuse_subnets(job)
        plan = driver.Plan(
            elastic=self.wanted,
            options={**options, "terminal": True, "announce": False},
            interfaces=job.network_interfaces,
            ssh=mpirun.ssh_words(job),
        )
        python = [sys.executable, "-P", "-m", driver.__name__]
        return Command(
            words=[*python, plan.encode(), *job.command],
            environ={**mpirun.outside_of_jobs(environ), CONTROLLER: "gloo"},
            awaited=0,
        )


def choose(environ: Mapping[str, str]) -> tuple[Way, str]:
    """Return (the way for a job with ``environ``, why not MPI's where nobody decided).

    Raises:
        NoWayError: MPI is asked for, and there is none.
    """
    wish = environ.get(CONTROLLER, "").strip().lower()
    if wish == "gloo":
        return ByItself(), ""
    program, why = find_mpi(environ.get("PATH"))
    if program is not None:
        return ByMpirun(program), ""
    if wish == "mpi":
        raise NoWayError(f"{CONTROLLER}=mpi (--mpi): {why}")
    return ByItself(), why


def find_mpi(path: str | None = None) -> tuple[Path | None, str]:
    """Return (the mpirun for the MPI that ranks use, "") or (None, why there is none)."""
    build = probe.engine_build()
    if not build.library:
        why = build.error or build.mpi_error or "mpi4py finds none"
        return None, f"no MPI library can be used here ({why})"
    program = probe.find_mpirun(build.library, path)
    if program is None:
        return None, f"no mpirun on PATH or beside the MPI library {build.library}"
    return program, ""
