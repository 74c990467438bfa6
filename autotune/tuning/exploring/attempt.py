"""One setting under evaluation: its window, what ends it early, and its bracket."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.trial import Setting, Trial
from autotune.tuning.budget import Account
from autotune.tuning.steps.brackets import Bracket
from autotune.tuning.steps.records import StepRecord
from autotune.tuning.steps.scoring import Reading, Window, is_hopeless, step_us

STEPS_IN_FLIGHT = 2
"""Steps that are still made under a setting after it was given up, at most."""


@dataclass(frozen=True, kw_only=True)
class NextTrial:
    """What is to be tried, now or as soon as the budget suffices.

    Attributes:
        params: The setting.
        trial: Its trial, where it is read once more; None: a new one.
        ratio: Step time over the default's that it may turn out to have.
        count: Which attempt at it this is, from 1 on.
    """

    params: Setting
    trial: Trial | None = None
    ratio: float = 1.0
    count: int = 1


class Attempt:
    """One window of one setting, between two of the default.

    Attributes:
        params, trial, count: As in ``NextTrial``.
        window: Its window.
        bracket: What its first edge says, once its window has ended.
        was_cut: Its window ended early.
    """

    def __init__(self, what: NextTrial, *, epoch: int, steps: int, limit_us: float) -> None:
        """Read a setting that is in force now.

        Args:
            what: The setting.
            epoch: Of the change that has put it in force.
            steps: Steps of its window.
            limit_us: Longest time that a step of it may wait for communication.
        """
        self.params, self.trial, self.count = what.params, what.trial, what.count
        self.window = Window(epoch=epoch, steps=steps)
        self.bracket: Bracket | None = None
        self.was_cut = False
        self._limit_us = limit_us

    def read(
        self, record: StepRecord, *, default: Reading, account: Account, may_be_taken_back: bool
    ) -> bool:
        """Take a training step; return whether the window has ended.

        Args:
            record: The step.
            default: What the default does now.
            account: What exploring may lose.
            may_be_taken_back: The runtime may have gone back by itself, as the next epoch.
        """
        self.window.add(record)
        is_taken_back = may_be_taken_back and record.epoch == self.window.epoch + 1
        self.was_cut = is_taken_back or self._is_lost(record, default, account)
        return self.was_cut or self.window.is_full

    @property
    def records(self) -> list[StepRecord]:
        """What was seen of it: the window's records, or those before them where it has none."""
        return self.window.records or self.window.judged or self.window.settled

    def _is_lost(self, record: StepRecord, default: Reading, account: Account) -> bool:
        """Return whether the setting is to be given up before its window is full.

        It is slower than the default beyond noise, or the budget does not suffice.
        """
        if record.epoch != self.window.epoch:
            return False
        if record.exposed_us > self._limit_us * record.count:
            return True
        # The steps that come before a change takes effect would overdraw the account. What a step
        # does beside waiting (an evaluation, a checkpoint) does not come again in the next one.
        waited = record.exposed_us / record.count - default.exposed_us / max(1, default.steps)
        excess = min(step_us(record) - default.step_us, waited)
        if excess > 0 and account.allowance_us < STEPS_IN_FLIGHT * excess:
            return True
        return is_hopeless(self.window.judged, default=default, rival_us=default.step_us)
