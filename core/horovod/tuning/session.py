"""Where the runtime and the tuner meet, on rank 0.

At ``init`` rank 0 starts the service, the tuner's own process, and waits, bounded, for its word.
While the job trains, every rank says where its training steps end; rank 0 also hands finished steps
to the service and proposes to the engine what the service wants to try. The talk itself is
``autotune.service.session``, and the engine carries changes of the setting to the other ranks.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from autotune.service import protocol
from autotune.service.epochs import Change
from autotune.service.priority import quota
from autotune.service.session import SERVICE, Finished, State
from autotune.service.session import Session as ServiceSession
from autotune.service.status_line import StandardError
from autotune.tables import settings_of
from autotune.trial import CommParams
from horovod import _engine
from horovod.common.settings import Settings
from horovod.common.world import Topology
from horovod.tuning import nccl
from horovod.tuning.job_description import (
    explored_words,
    inert_parameters,
    job_versions,
    make_hello,
    nothing_to_tune,
    of_table,
    replayed_table,
    with_words,
)
from horovod.tuning.replaying import REPLAY, replayed_params
from horovod.tuning.settings import read_settings

__all__ = ["SERVICE", "Session", "State"]

logger = logging.getLogger("horovod.autotune")


class Session(ServiceSession):
    """The tuning of one job on one rank; idle on all ranks but 0. Implements ``TunerLink``."""

    def __init__(self) -> None:
        super().__init__(logger, CommParams, tag="horovod")
        self._engine: _engine.Engine | None = None

    def log_handler(self) -> logging.Handler:
        """**Local.** Return what writes lines for people to standard error."""
        return StandardError()

    def read_settings(self, environ: Mapping[str, str]) -> Settings:
        """**Local.** Return what ``environ`` says about the job; ValueError where it is wrong."""
        return read_settings(environ)

    def prepare(
        self, settings: Settings, topology: Topology, mpi_version: str
    ) -> Mapping[str, Any] | None:
        """**Rank 0 only.** Start the service, where it is wanted, and wait for its word, bounded.

        Returns:
            {parameter: value} that all ranks start with, where a log is replayed; else None.

        Raises:
            ValueError: The service refuses the job (a path, a live job on the same log, ...), or
                the log to be replayed cannot be read.
        """
        replayed = replayed_params(
            settings,
            size=topology.size,
            local_size=topology.local_size,
            versions=job_versions(mpi_version),
            host=socket.gethostname(),
        )
        if replayed is not None:
            self._check(settings.with_params(replayed), topology, mpi_version)
        elif settings["HOROVOD_AUTOTUNE"]:
            self._tune(settings, topology, mpi_version)
        return replayed

    def _check(self, settings: Settings, topology: Topology, mpi_version: str) -> None:
        """Start the comparison of the replayed settings with the default, if it is wanted."""
        if settings[REPLAY + "_CHECK"] and topology.size > 1:
            logger.setLevel(logging.INFO)
            self._is_check = True
            table = replayed_table(settings.params)
            start = of_table(settings.params, table)
            hello = make_hello(settings, topology, {}, mpi_version, check=start, table=table)
            self._launch(hello, start, topology.cores)

    def _tune(self, settings: Settings, topology: Topology, mpi_version: str) -> None:
        logger.setLevel(logging.INFO)
        inert = inert_parameters(topology)
        words, of_others = explored_words(settings)
        reason = nothing_to_tune(topology.size, settings.fixed, inert, words)
        if reason:
            self.state, self.text = "nothing to tune", reason
            self._status_line.line(f"nothing to tune: {reason}")
            return
        table, inert_in_nccl, said = nccl.explored(settings, topology, os.environ, self._no_nccl)
        table = with_words(table, words)
        for line in (self._start_up, said, of_others):
            if line:
                self._status_line.line(f"autotune: {line}")
        hello = make_hello(settings, topology, inert | inert_in_nccl, mpi_version, table=table)
        self._launch(hello, of_table(settings.params, table), topology.cores)

    def _launch(
        self, hello: protocol.Hello, start: Mapping[str, Any], cores: Collection[int]
    ) -> None:
        self._kind = settings_of(hello.table)
        self._start(hello, start, cores, SERVICE)

    _no_nccl = _start_up = ""

    def settle(
        self, settings: Settings | None, topology: Topology, exchange: Callable[[Any], list[Any]]
    ) -> None:
        """**Collective.** Find out what NCCL's start-up settings should be, where that can pay."""
        if settings is not None:
            self._no_nccl = nccl.offer_if_wanted(settings, topology, os.environ)
        self._start_up = nccl.settle(settings, topology, exchange, os.environ)

    def quota(self) -> float:
        """**Local.** Return how many cores' worth of time this host leaves the job; inf: all."""
        return quota()

    def attach(self, engine: _engine.Engine) -> None:
        """**Local.** Remember the engine: from here on steps are reported."""
        self._engine = engine

    def end_step(self) -> None:
        """**Local**, every rank alike. Tell the engine that a training step ended here."""
        if self._engine is not None and self._engine.end_step() and self._service is not None:
            self._pump()

    def _finished(self) -> Finished | None:
        if self._engine is None:
            return None
        records, signatures = self._engine.drain_steps()
        return Finished(
            signatures=[
                protocol.Signature(signature=number, operations=tuple(operations))
                for number, operations in signatures
            ],
            checks=[
                protocol.ResultCheck(epoch=epoch, name=name, ok=ok, worst_error=worst, reason=why)
                for epoch, name, ok, worst, why in self._engine.drain_checks()
            ],
            records=cast("list[protocol.StepRecord]", records),
        )

    def _put_in_force(self, change: Change) -> None:
        if self._engine is not None:
            self._engine.propose(change.epoch, _engine.Params(**change.params))

    @property
    def _is_training(self) -> bool:
        return self._engine is not None

    def _end(self) -> None:
        self._engine = None
