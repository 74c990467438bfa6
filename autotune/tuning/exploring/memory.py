"""What a job that resembles an earlier one starts with, and when that is dropped.

An earlier job's gains are told to the optimizer as readings that are worth little each: they say
where to look, and a few readings of one's own outweigh them. The first trial is the earlier job's
best setting. Other links and ranks make gains larger or smaller, but seldom another setting the
best: what the first trial gains says by how much all that is remembered is to be taken larger or
smaller, and where it gains next to nothing of what it did, all of it is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.bayes import BayesianOptimizer, SearchSpace
from autotune.trial import Setting, Trial, TrialState
from autotune.tuning.exploring.gains import log_ratio_of
from autotune.tuning.steps.brackets import LogRatio

if TYPE_CHECKING:
    from autotune.storage.contract import Remembered

DOUBT = 0.06
"""Standard deviation of a gain in this job, given that of an equal setting in one like it."""
LEAST_SHARE, CLEARLY = 0.45, 1.0
"""What is remembered is dropped where its best setting gains less than this share of what it did,
by so many standard errors."""
SCALES = (0.2, 3.0)
MOST_REMEMBERED = 24


@dataclass(frozen=True, kw_only=True)
class Recollection:
    """Gains of an earlier job that resembles this one.

    Attributes:
        ratios: Log ratio to the default of each setting, with the doubt of the transfer.
        best: The setting that the earlier job ended with.
        text: Where it comes from, and how it differs, for people.
    """

    ratios: Mapping[Setting, LogRatio]
    best: Setting
    text: str

    @classmethod
    def of(cls, memory: Remembered, space: SearchSpace) -> Recollection | None:
        """Return what ``memory`` says about the settings of ``space``; None: nothing.

        Settings are moved into the space: parameters that are not free here keep this job's value.
        """
        if memory.best is None:
            return None
        return cls.of_trials(memory.trials, memory.best, space, text=memory.why)

    @classmethod
    def of_trials(
        cls, trials: Iterable[Trial], best: Setting, space: SearchSpace, *, text: str
    ) -> Recollection | None:
        """Return what ``trials``, of which ``best`` was kept, say; arguments as ``of``."""
        ratios: dict[Setting, LogRatio] = {}
        for trial in trials:
            if trial.gain is None or trial.state is TrialState.REJECTED:
                continue
            params = moved(trial.params, space)
            if params == space.default or params in ratios:
                continue
            ratios[params] = replace(log_ratio_of(trial.gain), variance=DOUBT**2)
        best = moved(best, space)
        if best == space.default or best not in ratios or ratios[best].mean <= 0:
            return None
        nearest = sorted(ratios, key=lambda params: -ratios[params].mean)[:MOST_REMEMBERED]
        kept = {params: ratios[params] for params in nearest}
        return cls(ratios=kept | {best: ratios[best]}, best=best, text=text)

    def is_contradicted(self, reading: LogRatio) -> bool:
        """Return whether a reading of ``best`` in this job contradicts what is remembered."""
        high = reading.mean + CLEARLY * math.sqrt(reading.variance)
        return high < LEAST_SHARE * self.ratios[self.best].mean

    def scale(self, reading: LogRatio) -> float:
        """Return by what to multiply what is remembered, given a reading of ``best``."""
        known = self.ratios[self.best].mean
        low, high = SCALES
        return min(max(reading.mean / known, low), high) if known > 0 else 1.0


class WarmStart:
    """What is remembered, as one optimizer was told of it, while it holds."""

    def __init__(self, recollection: Recollection | None, optimizer: BayesianOptimizer) -> None:
        """Tell ``optimizer`` what is remembered; None: nothing."""
        self._recollection, self._optimizer = recollection, optimizer
        ratios = {} if recollection is None else recollection.ratios
        self._numbers = {
            params: optimizer.tell(params, ratio.mean, ratio.variance, is_hearsay=True)
            for params, ratio in ratios.items()
        }

    @property
    def is_used(self) -> bool:
        """Whether what an earlier job learned still counts."""
        return self._recollection is not None

    @property
    def first(self) -> Setting | None:
        """The best setting of the earlier job, until it was tried."""
        memory = self._recollection
        if memory is None or memory.best in self._optimizer.tried:  # its trial may not have ended
            return None
        return memory.best

    def judge(self, params: Setting, reading: LogRatio) -> None:
        """Drop what is remembered, or put it in proportion, when its best setting was read.

        Args:
            params: A setting.
            reading: The first one of it in this job.
        """
        memory = self._recollection
        if memory is None or params != memory.best:
            return
        if not memory.is_contradicted(reading):
            scale = memory.scale(reading)
            for other, number in self._numbers.items():
                ratio = memory.ratios[other]
                self._optimizer.amend(number, scale * ratio.mean, ratio.variance)
            return
        for number in self._numbers.values():
            self._optimizer.forget(number)
        self._recollection, self._numbers = None, {}


def moved(params: Setting, space: SearchSpace) -> Setting:
    """Return ``params`` with this job's value of every parameter that is not free in ``space``."""
    values = params.as_dict()
    return space.default.with_values({name: values[name] for name in space.names})
