"""Rank 0's talk with the tuner's service: what any runtime needs to be tuned, whatever it tunes.

The service is a process of its own (``autotune.service``). A runtime says ``Hello``, hands over
finished steps and makes the changes that the service wants. Nothing here waits for the service on
the training thread, except once, bounded, for its first word; nothing here communicates with other
ranks, and nothing here ends a job: without the service it goes on under the best known setting.

A ``Session`` is filled in twice: ``horovod.tuning.session`` and ``autotune.ddp.session``.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.errors import ProtocolError
from autotune.service import protocol
from autotune.service.child_process import ServiceProcess, child_environment, reap_previous
from autotune.service.epochs import Change, EpochLedger
from autotune.service.status_line import StatusLine
from autotune.trial import Setting

SERVICE = ("-P", "-m", "autotune.service")
"""Arguments of this Python that run the service (-P: not a folder 'autotune' beside the script)."""
READY_SECONDS = 10.0
"""How long the start waits for the service."""
FINISH_SECONDS = 2.0
"""How long the end waits for the service's last lines."""
PUMP_SECONDS = 0.05
"""How often messages are looked for where no explicit step ends."""

State = Literal["off", "nothing to tune", "starting", "tuning", "done", "lost"]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What has happened in training since the last time, in the order of the protocol."""

    signatures: Sequence[protocol.Signature] = ()
    checks: Sequence[protocol.ResultCheck] = ()
    records: Sequence[protocol.StepRecord] = ()


class Session:
    """One job's tuning, as rank 0 sees it; idle where nothing was launched.

    A subclass says what has finished (``_finished``) and makes changes (``_put_in_force``).

    Attributes:
        state: How it stands.
        text: The last progress line (before the first one, the last line of any kind), or the
            reason of the state.
    """

    def __init__(self, logger: logging.Logger, kind: type[Setting], *, tag: str) -> None:
        """Be idle.

        Args:
            logger: Takes the lines for people.
            kind: The kind of setting that is tuned.
            tag: What begins a line that is rewritten on a terminal.
        """
        self.state: State = "off"
        self.text = ""
        self._logger = logger
        self._kind = kind
        self._service: ServiceProcess | None = None
        self._status_line = StatusLine(logger, tag=tag)
        self._is_check = False
        self._epochs = EpochLedger({})
        self._next_pump = 0.0
        self._pumping = threading.Lock()
        self._has_progress = self._has_steps = False

    # ---- what a runtime fills in -----------------------------------------------------------------

    def _finished(self) -> Finished | None:
        """Return what is new; None: training has not begun or is over."""
        raise NotImplementedError

    def _put_in_force(self, change: Change) -> None:
        """Have ``change`` made between two steps on all ranks, soon; never waits."""
        raise NotImplementedError

    @property
    def _is_training(self) -> bool:
        """Whether the runtime takes changes: the start is over, the end has not come."""
        raise NotImplementedError

    # ---- what a runtime calls --------------------------------------------------------------------

    @property
    def is_served(self) -> bool:
        """Whether there is a service to talk to."""
        return self._service is not None

    def finish(self) -> None:
        """**Local.** Hand over the last steps, let the service close its logs, bounded."""
        service = self._service
        if service is None:
            self._end()
            return
        try:
            with self._pumping:
                self._send_steps()
                self._end()
                service.send(protocol.encode(protocol.Finish()))
                self._read_until_end(time.monotonic() + FINISH_SECONDS)
        except Exception as error:
            self._logger.warning("the tuner's service could not be ended properly: %s", error)
        finally:
            self._status_line.end()
            self._end()
            self._service = None
            service.close()

    def forget(self) -> None:
        """**Local.** Let go of the service in a forked child."""
        if self._service is not None:
            self._service.forget()
        self._service = None

    def tick(self) -> None:
        """**Local.** Look for messages now and then, where no explicit step does."""
        if self._service is not None and time.monotonic() >= self._next_pump:
            self._pump()

    # ---- below -----------------------------------------------------------------------------------

    def _end(self) -> None:
        """Take note that training is over."""

    def _start(
        self,
        hello: protocol.Hello,
        start: Mapping[str, Any],
        cores: Collection[int],
        service: Sequence[str] = SERVICE,
    ) -> None:
        """Start the service and wait for its word, bounded.

        Args:
            hello: The job.
            start: The setting that the job starts with.
            cores: Those that the ranks of this host may use together; none: the inherited ones.
            service: Arguments of this Python that run the service.

        Raises:
            ValueError: The service refuses the job (a path, a live job on the same log, ...).
        """
        self._epochs = EpochLedger(start)
        self.state = "starting"
        command = (sys.executable, *service, *map(str, sorted(cores)))
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
                self._logger.warning(
                    "the tuner's service is slow to start; training starts without it"
                )
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
        found = self._finished() if self._service is not None else None
        if found is None or self._service is None:
            return
        for signature in found.signatures:
            self._service.send(protocol.encode(signature))
        for check in found.checks:
            self._service.send(protocol.encode(check))
        if found.records or not self._has_steps:
            self._has_steps = bool(found.records)
            self._propose(self._epochs.observe(found.records))
            steps = protocol.Steps(records=tuple(found.records))
            self._service.send(protocol.encode(steps), droppable=True)
        self._service.flush()

    def _receive(self) -> None:
        service = self._service
        if service is None:
            return
        try:
            for line in service.receive():
                self._take(protocol.decode(line, self._kind))
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
        """Raise at the start; a refusal that comes later than that could wait is a warning."""
        service, self._service = self._service, None
        self.state, self.text = "lost", text
        if service is not None:
            service.close()
        if not self._is_training:
            raise ValueError(text)
        self._logger.warning("the job is not tuned: %s", text)

    def _propose(self, change: Change | None) -> None:
        if change is not None and self._is_training:
            self._put_in_force(change)

    def _read_until_end(self, deadline: float) -> None:
        while self._service is not None and not self._service.broken:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._service.wait(left)
            for line in self._service.receive():
                self._take(protocol.decode(line, self._kind))

    def _lose(self, why: str) -> None:
        """Go on without the service, under the best known setting; say so once."""
        service, self._service = self._service, None
        self.state, self.text = "lost", why
        if service is not None:
            service.close()
        self._propose(self._epochs.without_tuner())
        name = "the incumbent" if self._epochs.has_safe else "the settings it started with"
        self._logger.warning("the tuner's service %s; training goes on with %s", why, name)
