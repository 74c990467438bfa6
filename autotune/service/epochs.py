"""The runtime's half of the epochs: which change comes next, whoever has asked for it.

The service numbers changes of the parameters and sends them as ``Apply``; a change on trial the
runtime takes back by itself, and without the service it goes on with what is known to be safe. A
runtime keeps one ``EpochLedger``, shows it every message and every finished step, and makes the
changes that it returns, in order. It knows nothing of pipes, engines or processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.tuning.changes import Apply, Done, is_beyond
from autotune.tuning.steps.records import StepRecord


@dataclass(frozen=True, kw_only=True)
class Change:
    """Put ``params`` in force, as ``epoch``, between two steps on all ranks."""

    epoch: int
    params: Mapping[str, Any]


class EpochLedger:
    """Numbers of changes only grow; what is older than the latest one is ignored.

    Attributes:
        epoch: Of the latest change; 0: what the job started with.
        safe: The setting to go on with where the tuner is no more.
        has_safe: The tuner has said what is safe; else it is what the job started with.
    """

    def __init__(self, start: Mapping[str, Any]) -> None:
        """Begin with epoch 0 under the parameters ``start``."""
        self.epoch = 0
        self.safe: Mapping[str, Any] = start
        self.has_safe = False
        self._limited: Apply | None = None
        self._final_epoch: int | None = None

    @property
    def is_final(self) -> bool:
        """Whether tuning is over and its result is the latest change."""
        return self.epoch == self._final_epoch

    def take(self, message: Apply | Done) -> Change | None:
        """Take what the service says; return the change to make, or None where it is old."""
        if isinstance(message, Done):
            self._now_safe(message.params)
            self._final_epoch = message.epoch
        elif message.incumbent is not None:
            self._now_safe(message.incumbent)
        if message.epoch <= self.epoch:
            return None
        self._limited = message if isinstance(message, Apply) else None
        return self._change(message.epoch, message.params)

    def observe(self, records: Iterable[StepRecord]) -> Change | None:
        """Take finished steps; return the change that takes a setting on trial back, or None.

        That is due where a step under it has waited for communication beyond its limit.
        """
        limited = self._limited
        if limited is None:
            return None
        for record in records:
            if is_beyond(limited, record):
                self._limited = None
                return self._change(limited.epoch + 1, limited.incumbent or self.safe)
        return None

    def without_tuner(self) -> Change | None:
        """Return the change to what is safe; None: nothing was ever changed."""
        self._limited = None
        return self._change(self.epoch + 1, self.safe) if self.epoch > 0 else None

    def _now_safe(self, params: Mapping[str, Any]) -> None:
        self.safe, self.has_safe = params, True

    def _change(self, epoch: int, params: Mapping[str, Any]) -> Change:
        self.epoch = epoch
        return Change(epoch=epoch, params=params)
