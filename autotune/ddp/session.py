"""Rank 0's talk with the tuner's service, for a job of DistributedDataParallel."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from autotune.service import protocol
from autotune.service.epochs import Change
from autotune.service.session import Finished
from autotune.service.session import Session as ServiceSession
from autotune.tables import settings_of
from autotune.tables.ddp import DdpParams

Taken = tuple[Collection[protocol.StepRecord], Collection[protocol.Signature]]

logger = logging.getLogger("autotune.ddp")

TALK_SECONDS, IDLE_TALK_SECONDS = 0.04, 1.0
"""How often the service hears of steps, while it tunes and after: shorter ones go together."""
TALK_STEPS = 3
"""Of longer steps so many go together while it tunes, counted from a change on: the window that is
read after a change is a multiple of them, so nothing is decided later for that."""


class Session(ServiceSession):
    """The tuning of one job, on rank 0; elsewhere it is never launched.

    Attributes:
        wanted: The latest change that the tuner wants; the ranks may not have agreed on it yet.
    """

    def __init__(self) -> None:
        super().__init__(logger, DdpParams, tag="ddp")
        self.wanted: Change | None = None
        self._is_training_now = False
        self._next_talk, self._untold = 0.0, 0
        self._signatures: list[protocol.Signature] = []
        self._checks: list[protocol.ResultCheck] = []
        self._records: list[protocol.StepRecord] = []

    def launch(
        self, hello: protocol.Hello, start: Mapping[str, Any], cores: Collection[int]
    ) -> None:
        """Start the service and wait for its word, bounded; from here on steps are taken.

        Raises:
            ValueError: The service refuses the job.
        """
        self._is_check = hello.check is not None
        self._kind = settings_of(hello.table)
        self._start(hello, start, cores)
        self._is_training_now = self._service is not None

    @property
    def is_live(self) -> bool:
        """Whether there is somebody to talk to."""
        return self._service is not None

    @property
    def is_idle(self) -> bool:
        """Whether no change is to come soon; a job that has changed is tuned again after all."""
        if self.state == "done":
            return self._epochs.is_final
        return self.state in ("lost", "off", "nothing to tune")

    def step_ended(self, steps: Callable[[], Taken], *, is_urgent: bool) -> bool:
        """Talk to the service where that is due.

        Args:
            steps: Returns the steps that have ended since it was called before, and what steps of
                new kinds reduce.
            is_urgent: The service hears of this one at once, as soon as it hears of any.

        Returns:
            Whether nothing is tried now, see ``is_idle``.
        """
        is_idle = self.state != "tuning" and self.is_idle
        service = self._service
        if service is None:
            return is_idle
        now = time.monotonic()
        self._untold += 1
        if now >= self._next_talk and (self._untold >= TALK_STEPS or is_urgent or is_idle):
            self._next_talk = now + (IDLE_TALK_SECONDS if is_idle else TALK_SECONDS)
            self._untold = 0
            self.add(*steps())
            self._pump()
        elif not is_idle and service.has_word:
            self._pump()
        return is_idle

    def changed(self) -> None:
        """Take note that another setting is in force from the next step on."""
        self._untold = 0

    def add(
        self, records: Collection[protocol.StepRecord], signatures: Collection[protocol.Signature]
    ) -> None:
        """Take finished steps, of which the service hears with the next talk."""
        self._records += records
        self._signatures += signatures

    def decline(self, change: Change, reason: str, *, name: str = "buckets") -> None:
        """Tell the service that a change was not made; ``name``: of what."""
        self._checks.append(
            protocol.ResultCheck(
                epoch=change.epoch, name=name, ok=False, worst_error=0.0, reason=reason
            )
        )

    def rule_out(self, reasons: Mapping[str, str]) -> None:
        """Have {parameter: reason} not explored; the service says so. Before a step has ended."""
        if self._service is not None:
            self._service.send(protocol.encode(protocol.Inert(reasons=dict(reasons))))

    def give_up(self, reason: str) -> None:
        """Have nothing changed any more, and let the service close its logs."""
        self.finish()
        if self.state != "done":
            self.state, self.text = "lost", reason

    def _finished(self) -> Finished | None:
        if not self._is_training_now:
            return None
        found = Finished(signatures=self._signatures, checks=self._checks, records=self._records)
        self._signatures, self._checks, self._records = [], [], []
        return found

    def _put_in_force(self, change: Change) -> None:
        self.wanted = change

    @property
    def _is_training(self) -> bool:
        return self._is_training_now

    def _end(self) -> None:
        self._is_training_now = False
