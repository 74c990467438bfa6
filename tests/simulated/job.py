"""A simulated job: step time as a function of the setting, with the noise that real steps have."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from autotune.service.epochs import Change, EpochLedger
from autotune.storage.contract import Fresh, Start
from autotune.trial import CommParams, Sample, Trial
from autotune.tuning.changes import Apply, Done
from autotune.tuning.events import Event, Identified, RunFinished
from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.tuner import Tuner

INERT = {"hierarchical_allreduce": "one host", "hierarchical_allgather": "one host"}
OPERATIONS = [("allreduce", 525_000)] * 46
TRAINING = 7

Surface = Callable[[CommParams], float]
"""Communication time of a step, in ms, that the training thread waits for."""


def bowl(params: CommParams, *, octave: float = 0.0, decade: float = -0.3) -> float:
    """30 ms at best, at a threshold of 1 MiB (2**octave) and a cycle of 0.5 ms (10**decade)."""
    x = math.log2(max(params.fusion_threshold_bytes, 2**15) / 2**20) - octave
    c = math.log10(params.cycle_time_ms) - decade
    return 30 * (1 + 0.05 * x * x + 0.35 * c * c) + (10 if params.cache_capacity == 0 else 0)


def flat(params: CommParams) -> float:
    """Nothing matters."""
    return 30.0


def best_at_default(params: CommParams) -> float:
    """Every change costs something."""
    return bowl(params, octave=6.0, decade=0.0)


def silent(params: CommParams) -> float:
    """Communication is hidden behind the backward pass."""
    return 0.1


SURFACES: dict[str, Surface] = {f.__name__: f for f in (bowl, flat, best_at_default, silent)}


@dataclass
class Job:
    """Drives a tuner with simulated steps of 50 ms of computation plus communication."""

    surface: Surface
    seed: int = 0
    noise: float = 0.05
    evaluate_every: int = 0
    latency_steps: int = 1
    compute_ms: float = 50.0
    steps: int = 0
    bad_steps: int = 0
    epoch: int = 0
    params: CommParams = field(default_factory=CommParams)
    events: list[Event] = field(default_factory=list)
    operations: Sequence[tuple[str, int]] = tuple(OPERATIONS)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(1000 + self.seed)
        self._correlated = 0.0
        self._payload_bytes = sum(size for _, size in self.operations)
        self._applies: list[tuple[int, Apply]] = []
        self._epochs = EpochLedger(self.params.as_dict())
        self.spoil: Callable[[StepRecord], Sequence[StepRecord]] = lambda record: [record]

    def step_ms(self, params: CommParams) -> float:
        return self.compute_ms + self.surface(params)

    def step(self) -> StepRecord:
        """Noise: CV 5 %, lag-1 autocorrelation 0.3, one step in 200 three times slower."""
        white = self.rng.standard_normal()
        self._correlated = 0.3 * self._correlated + math.sqrt(1 - 0.3**2) * white
        factor = 1 + self.noise * self._correlated
        if self.noise and self.rng.random() < 1 / 200:
            factor *= 3
        time_ms = self.step_ms(self.params) * factor
        self.bad_steps += self.step_ms(self.params) > 5 * self.step_ms(type(self.params)())
        exposed_ms = self.surface(self.params) * factor
        self.steps += 1
        if self.evaluate_every and self.steps % self.evaluate_every == 0:
            time_ms += 50 * self.step_ms(self.params)
        return StepRecord(
            step=self.steps,
            count=1,
            duration_us=1000 * time_ms,
            payload_bytes=self._payload_bytes,
            exposed_us=1000 * exposed_ms,
            epoch=self.epoch,
            signature=TRAINING,
        )

    def drive(self, tuner: Tuner, start: Start | None = None, *, most_steps: int = 6000) -> None:
        """Run until the tuner is done or ``most_steps`` were made."""
        start = start or Fresh()
        if not self.steps:
            self._take(tuner, tuner.open(), start)
        while self.done is None and self.steps < most_steps:
            self.advance(tuner, start)
        runs = self.trials
        while runs:  # a database holds a run to one trial of a setting
            first, *rest = runs
            end = next((i for i, one in enumerate(rest) if one.trial_id == 0), len(rest))
            settings = [one.params for one in (first, *rest[:end])]
            assert len(set(settings)) == len(settings), "a setting has two trials"
            runs = rest[end:]

    def advance(self, tuner: Tuner, start: Start | None = None) -> None:
        """Make one step, and let the tuner see it."""
        start = start or Fresh()
        while self._applies and self._applies[0][0] <= self.steps:
            _, message = self._applies.pop(0)
            self._make(self._epochs.take(message))
        record = self.step()
        self._make(self._epochs.observe([record]))
        self._take(tuner, tuner.observe(self.spoil(record)), start)

    def _make(self, change: Change | None) -> None:
        """Have a change in force from the next step on."""
        if change is not None:
            self.params, self.epoch = type(self.params).from_dict(change.params), change.epoch

    def _take(self, tuner: Tuner, events: list[Event], start: Start) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, Apply):
                self._applies.append((self.steps + self.latency_steps, event))
            if isinstance(event, Identified):
                self._take(tuner, tuner.begin(self.operations, start), start)
        if (work := tuner.work()) is not None:
            self._take(tuner, tuner.accept(work()), start)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def done(self) -> Done | None:
        return next(iter(self.of(Done)), None)

    @property
    def trials(self) -> list[Trial]:
        return self.of(Trial)

    @property
    def samples(self) -> list[Sample]:
        return self.of(Sample)

    @property
    def finished(self) -> RunFinished | None:
        return next(iter(self.of(RunFinished)), None)

    @property
    def true_gain(self) -> float:
        """Gain in true step time of what stays in force over the default."""
        assert self.done is not None
        chosen = type(self.params).from_dict(self.done.params)
        return self.step_ms(type(self.params)()) / self.step_ms(chosen) - 1


def new_tuner(seed: int = 0, **settings: object) -> Tuner:
    return Tuner(settings=TunerSettings(seed=seed, **settings), seed=seed, size=2, inert=INERT)


@functools.cache
def finished_job(surface: str, seed: int = 0) -> Job:
    run = Job(surface=SURFACES[surface], seed=seed)
    run.drive(new_tuner(seed))
    assert run.done is not None
    return run


@pytest.fixture(scope="session")
def finished():
    """``finished("bowl", 3)``: a job that was tuned to the end; shared, to be read only."""
    return finished_job


@pytest.fixture(scope="session")
def job():
    """Factory: ``job("bowl", seed=3)``."""

    def make(surface: str | Surface = "bowl", **options: object) -> Job:
        chosen = SURFACES[surface] if isinstance(surface, str) else surface
        return Job(surface=chosen, **options)

    return make


@pytest.fixture(scope="session")
def tuner():
    """Factory: a tuner of a job on one host with two ranks; a short one, unless told otherwise."""

    def make(seed: int = 0, **settings: object) -> Tuner:
        return new_tuner(seed, **({"max_samples": 9} | settings))

    return make
