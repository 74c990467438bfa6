"""Where the runtime and the tuner meet: the pipe to the service ends here, on rank 0.

The service is a process of its own (``autotune.service``). At ``init`` rank 0 starts it and waits,
bounded, for its word. While the job trains, every rank says where its training steps end; rank 0
also hands finished steps to the service and proposes to the engine what the service wants to try.
Nothing here waits for the service on the training thread, and nothing here communicates: the engine
carries parameter changes to the other ranks.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any, Literal, cast

from autotune.errors import ProtocolError
from autotune.service import protocol
from autotune.service.epochs import Change, EpochLedger
from horovod import _engine
from horovod.common.mpi import Topology
from horovod.common.settings import Settings
from horovod.tuning.job_description import (
    inert_parameters,
    job_versions,
    make_hello,
    nothing_to_tune,
)
from horovod.tuning.replaying import REPLAY, replayed_params
from horovod.tuning.service_process import ServiceProcess, child_environment, reap_previous
from horovod.tuning.settings import read_settings
from horovod.tuning.status_line import StatusLine

logger = logging.getLogger("horovod.autotune")

SERVICE = ("-P", "-m", "autotune.service")
"""Arguments of this Python that run the service (-P: not a folder 'autotune' beside the script)."""
READY_SECONDS = 10.0
"""How long init waits for the service."""
FINISH_SECONDS = 2.0
"""How long shutdown waits for the service's last lines."""
PUMP_SECONDS = 0.05
"""How often messages are looked for where no explicit step ends."""

State = Literal["off", "nothing to tune", "starting", "tuning", "done", "lost"]


class Session:
    """The tuning of one job on one rank; idle on all ranks but 0. Implements ``TunerLink``."""

    def __init__(self) -> None:
        self.state: State = "off"
        self.text = ""
        self._engine: _engine.Engine | None = None
        self._service: ServiceProcess | None = None
        self._status_line = StatusLine(logger)
        self._is_check = False
        self._epochs = EpochLedger({})
        self._next_pump = 0.0
        self._pumping = threading.Lock()
        self._has_progress = self._has_steps = False

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
            self._epochs, self._is_check = EpochLedger(settings.params), True
            hello = make_hello(settings, topology, {}, mpi_version, check=settings.params)
            self._launch(hello, topology.cores)

    def _tune(self, settings: Settings, topology: Topology, mpi_version: str) -> None:
        logger.setLevel(logging.INFO)
        self._epochs = EpochLedger(settings.params)
        inert = inert_parameters(topology)
        reason = nothing_to_tune(topology.size, settings.fixed, inert)
        if reason:
            self.state, self.text = "nothing to tune", reason
            self._status_line.line(f"nothing to tune: {reason}")
            return
        self._launch(make_hello(settings, topology, inert, mpi_version), topology.cores)

    def attach(self, engine: _engine.Engine) -> None:
        """**Local.** Remember the engine: from here on steps are reported."""
        self._engine = engine

    def finish(self) -> None:
        """**Local.** Hand over the last steps, let the service close its logs, bounded."""
        service = self._service
        if service is None:
            self._engine = None
            return
        try:
            with self._pumping:
                self._send_steps()
                self._engine = None
                service.send(protocol.encode(protocol.Finish()))
                self._read_until_end(time.monotonic() + FINISH_SECONDS)
        except Exception as error:
            logger.warning("the tuner's service could not be ended properly: %s", error)
        finally:
            self._status_line.end()
            self._engine = self._service = None
            service.close()

    def forget(self) -> None:
        """**Local.** Let go of the service in a forked child."""
        if self._service is not None:
            self._service.forget()
        self._service = None

    def end_step(self) -> None:
        """**Local**, every rank alike. Tell the engine that a training step ended here."""
        if self._engine is not None and self._engine.end_step() and self._service is not None:
            self._pump()

    def tick(self) -> None:
        """**Local.** Look for messages now and then, where no explicit step does."""
        if self._service is not None and time.monotonic() >= self._next_pump:
            self._pump()

    def _launch(self, hello: protocol.Hello, cores: Collection[int]) -> None:
        self.state = "starting"
        command = (sys.executable, *SERVICE, *map(str, sorted(cores)))
        try:
            reap_previous()
            self._service = ServiceProcess(command, child_environment(os.environ))
        except OSError as error:
            self._lose(f"cannot be started: {error}")
            return
        self._service.send(protocol.encode(hello))
        deadline = time.monotonic() + READY_SECONDS
        while self.state == "starting" and self._service is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                logger.warning("the tuner's service is slow to start; training starts without it")
                return
            self._service.wait(left)
            self._receive()

    def _pump(self) -> None:
        """Talk to the service, unless another thread of the script is doing so."""
        if not self._pumping.acquire(blocking=False):
            return
        try:
            self._next_pump = time.monotonic() + PUMP_SECONDS
            self._send_steps()
            self._receive()
        finally:
            self._pumping.release()

    def _send_steps(self) -> None:
        if self._engine is None or self._service is None:
            return
        records, signatures = self._engine.drain_steps()
        for number, operations in signatures:
            message = protocol.Signature(signature=number, operations=tuple(operations))
            self._service.send(protocol.encode(message))
        for epoch, name, ok, worst, reason in self._engine.drain_checks():
            check = protocol.ResultCheck(
                epoch=epoch, name=name, ok=ok, worst_error=worst, reason=reason
            )
            self._service.send(protocol.encode(check))
        if records or not self._has_steps:
            self._has_steps = bool(records)
            steps = cast("tuple[protocol.StepRecord, ...]", tuple(records))
            self._propose(self._epochs.observe(steps))
            self._service.send(protocol.encode(protocol.Steps(records=steps)), droppable=True)
        self._service.flush()

    def _receive(self) -> None:
        service = self._service
        if service is None:
            return
        try:
            for line in service.receive():
                self._take(protocol.decode(line))
        except ProtocolError as error:
            self._lose(f"broke the protocol: {error}")
        if service.broken and self._service is service:
            if self.state == "done" and self._epochs.is_final:
                self._service = None
                service.close()
            else:
                self._lose(f"ended ({service.last_words() or 'without a word'})")

    def _take(self, message: protocol.Message) -> None:
        match message:
            case protocol.Ready(lines=lines):
                self.state = "tuning"
                for text in lines:
                    self._status_line.line(text)
            case protocol.Refused(message=text):
                self._refuse(text)
            case protocol.Apply():
                self._propose(self._epochs.take(message))
            case protocol.Line(text=text, level=level):
                self.text = self.text if self._has_progress else text
                self._status_line.line(text, level)
            case protocol.Progress(text=text):
                self.text, self._has_progress = text, True
                self._status_line.show(text)
            case protocol.Done():
                self.state, self.text = "done", message.text
                self._propose(self._epochs.take(message))
                gave_way = self._is_check and not message.certified
                self._status_line.line(message.text, "warning" if gave_way else "info")
            case _:
                raise ProtocolError(f"unexpected message {type(message).__name__}")

    def _refuse(self, text: str) -> None:
        """Raise at init; a refusal that comes later than init could wait is only a warning."""
        service, self._service = self._service, None
        self.state, self.text = "lost", text
        if service is not None:
            service.close()
        if self._engine is None:
            raise ValueError(text)
        logger.warning("the job is not tuned: %s", text)

    def _propose(self, change: Change | None) -> None:
        if self._engine is not None and change is not None:
            self._engine.propose(change.epoch, _engine.Params(**change.params))

    def _read_until_end(self, deadline: float) -> None:
        while self._service is not None and not self._service.broken:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._service.wait(left)
            for line in self._service.receive():
                self._take(protocol.decode(line))

    def _lose(self, why: str) -> None:
        """Go on without the service, under the best known setting; say so once."""
        service, self._service = self._service, None
        self.state, self.text = "lost", why
        if service is not None:
            service.close()
        self._propose(self._epochs.without_tuner())
        name = "the incumbent" if self._epochs.has_safe else "the settings it started with"
        logger.warning("the tuner's service %s; training goes on with %s", why, name)
