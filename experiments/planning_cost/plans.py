"""Plans as a tuner asks for them in a job: nothing of them was computed yet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from autotune.storage.contract import Fresh
from autotune.trial import CommParams
from autotune.tuning.changes import Apply
from autotune.tuning.events import Event, Identified, Plan
from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.tuner import Phase, Tuner

OPERATIONS = [("allreduce", 5283)] * 65
INERT = {"hierarchical_allreduce": "one host", "hierarchical_allgather": "one host"}
MOST_STEPS = 5000


class Simulated:
    """A tuner and the job that it tunes: 11 ms a step at best, 5 % noise."""

    def __init__(self, seed: int) -> None:
        settings = TunerSettings(seed=seed, warmup_samples=1, budget=1.0)
        self.tuner = Tuner(settings=settings, seed=seed, size=2, inert=INERT)
        self._rng = np.random.default_rng(seed)
        self._params, self._epoch, self._steps = CommParams(), 0, 0
        self._take(self.tuner.open())

    def next_work(self) -> Callable[[], Plan] | None:
        """Make steps until a plan is wanted; None: tuning has ended."""
        while self.tuner.phase is not Phase.DONE and self._steps < MOST_STEPS:
            if (work := self.tuner.work()) is not None:
                return work
            self._take(self.tuner.observe([self._step()]))
        return None

    def accept(self, plan: Plan) -> None:
        """Hand a plan to the tuner."""
        self._take(self.tuner.accept(plan))

    def _step(self) -> StepRecord:
        octaves = math.log2(max(self._params.fusion_threshold_bytes, 2**15) / 2**20)
        decades = math.log10(max(self._params.cycle_time_ms, 0.01)) + 0.3
        wait_us = 5000 * (1 + 0.03 * octaves**2 + 0.2 * decades**2)
        wait_us *= 1 + 0.05 * self._rng.standard_normal()
        self._steps += 1
        return StepRecord(
            step=self._steps,
            count=1,
            duration_us=6000 + wait_us,
            payload_bytes=sum(size for _, size in OPERATIONS),
            exposed_us=wait_us,
            epoch=self._epoch,
            signature=7,
        )

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Apply):
                self._params, self._epoch = CommParams.from_dict(event.params), event.epoch
            elif isinstance(event, Identified):
                self._take(self.tuner.begin(OPERATIONS, Fresh()))


def wanted_plans() -> Iterator[Callable[[], Plan]]:
    """Yield computations that no one has made yet, without end.

    Two equal tuners go through the same job: one has its plans computed, so that both can go on,
    the plans of the other are what is yielded.
    """
    for seed in itertools.count():
        ahead, behind = Simulated(seed), Simulated(seed)
        while (work := ahead.next_work()) is not None:
            untouched = behind.next_work()
            assert untouched is not None
            plan = work()
            ahead.accept(plan)
            behind.accept(plan)
            yield untouched
