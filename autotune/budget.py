"""The price of exploring: time lost against the default, within a share of its time."""

from __future__ import annotations

from autotune.protocol import StepRecord
from autotune.scoring import Reading, step_us

FAR = 2.0
"""Beyond this multiple of the default's step only the time spent waiting for communication is
charged: an evaluation between two steps is nobody's fault."""


class Account:
    """Books every training step against the default.

    ``allowance_us = share x (time of all steps under the default) - time lost``; steps under a
    setting faster than the default pay back.

    Attributes:
        lost_us: Time lost so far, in microseconds; negative: time gained.
    """

    def __init__(self, share: float) -> None:
        """Open the account with ``share`` of the default's time (0.05: five percent) to lose."""
        self._share = share
        self._default: Reading | None = None
        self._steps = 0
        self.lost_us = 0.0

    def rebase(self, default: Reading) -> None:
        """Charge from now on against the default as just read."""
        self._default = default

    def book(self, record: StepRecord, *, is_default: bool) -> None:
        """Book a training step; under the default nothing is lost by definition."""
        self._steps += record.count
        if self._default is None or is_default:
            return
        excess = step_us(record) - self._default.step_us
        if excess > (FAR - 1) * self._default.step_us:
            waited = record.exposed_us / record.count
            excess = min(excess, max(0.0, waited - self._default.exposed_us / self._default.steps))
        self.lost_us += excess * record.count

    @property
    def allowance_us(self) -> float:
        """Time that exploring may still lose; negative: overdrawn."""
        base = self._default.step_us * self._steps if self._default else 0.0
        return self._share * base - self.lost_us
