"""The price of exploring: time lost against the default, within a share of its time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from autotune.protocol import StepRecord
from autotune.scoring import Reading, step_us

FAR = 2.0
"""Steps beyond this multiple of what is typical for their setting are charged as typical ones."""


def typical_us(records: Sequence[StepRecord]) -> float:
    """Return the step time of a setting: the median, or the fastest of fewer than three."""
    times = [step_us(record) for record in records]
    return statistics.median(times) if len(times) > 2 else min(times)


def charge_us(records: Sequence[StepRecord], default_us: float) -> float:
    """Return the time that the steps of one setting lost against the default.

    An evaluation or a checkpoint between two steps is nobody's fault: such a step is charged as a
    typical one. A setting that is slow in every step pays for all of it.

    Args:
        records: Whole steps under one setting.
        default_us: Step time of the default.
    """
    if not records:
        return 0.0
    typical = typical_us(records)
    times = (step_us(record) for record in records)
    fair = [time if time <= FAR * typical else typical for time in times]
    counts = (record.count for record in records)
    return sum((time - default_us) * n for time, n in zip(fair, counts, strict=True))


class Account:
    """Books every training step against the default.

    ``allowance_us = share x (time of all steps under the default) - time lost``; steps under a
    setting faster than the default pay back.
    """

    def __init__(self, share: float) -> None:
        """Open the account with ``share`` of the default's time (0.05: five percent) to lose."""
        self._share = share
        self._default: Reading | None = None
        self._steps = 0
        self._epoch = 0
        self._records: list[StepRecord] = []
        self._closed_us = 0.0

    def rebase(self, default: Reading) -> None:
        """Charge against the default as just read."""
        self._default = default

    def book(self, record: StepRecord, *, is_default: bool) -> None:
        """Book a training step; under the default nothing is lost by definition."""
        self._steps += record.count
        if record.epoch != self._epoch:
            self._closed_us, self._records = self.lost_us, []
            self._epoch = record.epoch
        if self._default is not None and not is_default and record.duration_us > 0:
            self._records.append(record)

    @property
    def lost_us(self) -> float:
        """Time lost so far, in microseconds; negative: time gained."""
        return self._closed_us + charge_us(self._records, self._default_us)

    @property
    def allowance_us(self) -> float:
        """Time that exploring may still lose; negative: overdrawn."""
        return self._share * self._default_us * self._steps - self.lost_us

    @property
    def _default_us(self) -> float:
        return self._default.step_us if self._default is not None else 0.0
