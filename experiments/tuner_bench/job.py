"""A simulated job: steps with the noise that real ones have, under a policy's settings.

A step's *work* is its time with that noise on a machine of constant speed; what time makes of it is
said in ``speed``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from claims import Claim
from kinds import KINDS, STATIONARY, Kind
from speed import Clock
from surfaces import FloatArray, Surface

from autotune.storage.contract import Remembered
from autotune.trial import CommParams

CV, CORRELATION = 0.05, 0.3
SLOW_EVERY, SLOW_FACTOR = 200, 3.0
CHUNK = 4096


class Noise:
    """Factors around 1: CV 5 %, lag-1 autocorrelation 0.3, one in 200 three times slower."""

    def __init__(self, rng: np.random.Generator, cv: float) -> None:
        self._rng, self._cv = rng, cv
        self._last = float(rng.standard_normal())
        self._factors: FloatArray = np.empty(0)

    def take(self, count: int) -> FloatArray:
        while len(self._factors) < count:
            self._factors = np.concatenate([self._factors, self._more()])
        taken, self._factors = self._factors[:count], self._factors[count:]
        return taken

    def _more(self) -> FloatArray:
        white = self._rng.standard_normal(CHUNK) * np.sqrt(1 - CORRELATION**2)
        series = itertools.accumulate(
            white.tolist(), lambda last, new: new + CORRELATION * last, initial=self._last
        )
        correlated = np.array(list(series)[1:])
        self._last = float(correlated[-1])
        slow = self._rng.random(CHUNK) < 1 / SLOW_EVERY
        factors = np.maximum(1 + self._cv * correlated, 0.2)
        result: FloatArray = np.where(slow & (self._cv > 0), SLOW_FACTOR * factors, factors)
        return result


@dataclass(kw_only=True)
class Job:
    """One job under a policy; the policy sees noisy steps only, the bench the truth.

    Attributes:
        surface: What is tuned.
        kind: What time does to it.
        cv: Noise of a step.
        steps: Steps made so far.
        now_us: Time since the start.
        params: The setting in force.
        changes: (step from which on, setting) in force.
        recommendations: (step, setting that the policy would keep from there on).
        abandoned: (step, excess time in us) of every abandoned trial, one step each.
        claims: What was said on the way about gains.
        memory: What is remembered of earlier jobs.
        exposed_us: What the training thread waited for communication in the steps made last.
    """

    surface: Surface
    rng: np.random.Generator
    kind: Kind = KINDS[STATIONARY]
    cv: float = CV
    steps: int = 0
    now_us: float = 0.0
    params: CommParams = field(default_factory=CommParams)
    changes: list[tuple[int, CommParams]] = field(default_factory=list)
    recommendations: list[tuple[int, CommParams]] = field(default_factory=list)
    abandoned: list[tuple[int, float]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    memory: tuple[Remembered, ...] = ()
    exposed_us: FloatArray = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        for_speed, for_evaluations = self.rng.spawn(2)
        self._noise = Noise(self.rng, self.cv)
        self._clock = Clock(self.kind.process(for_speed, self.surface.default_us))
        self._evaluations = for_evaluations
        self._offset = int(for_evaluations.integers(max(1, self.kind.evaluate_every)))
        self._slowness: list[FloatArray] = []
        self._position = 0
        self._left = 0
        self.changes.append((0, self.params))

    @property
    def payload_bytes(self) -> int:
        return sum(size for _, size in self.surface.operations)

    def put(self, params: CommParams) -> None:
        """Have ``params`` in force from the next step on."""
        if params != self.params:
            self.params, self._left = params, 0
            self.changes.append((self.steps, params))

    def recommend(self, params: CommParams) -> None:
        """Note what the policy would keep if the job ended now."""
        if not self.recommendations or self.recommendations[-1][1] != params:
            self.recommendations.append((self.steps, params))

    def run(self, count: int) -> FloatArray:
        """Make steps and return their times ``(count,)`` in microseconds."""
        truth = self.surface.truth(self.params)
        if truth.trace is None:
            works = truth.step_us * self._noise.take(count)
            exposed = truth.exposed_us / truth.step_us * works
        else:
            works = np.array([self._next_of(truth.trace) for _ in range(count)])
            exposed = np.maximum(0.0, works - (truth.step_us - truth.exposed_us))
        works = works + self._extra(count)
        ends = self._clock.ends(self.now_us, works)
        times: FloatArray = np.diff(ends, prepend=self.now_us)
        self._slowness.append(times / works)
        self.exposed_us = exposed * self._slowness[-1]
        self.steps += count
        self.now_us = float(ends[-1])
        return times

    def plan_for(self, seconds: float) -> None:
        """Have the machine compute a plan from now on, for ``seconds``."""
        if self.kind.planning > 1:
            self._clock.load(self.now_us, self.now_us + 1e6 * seconds, self.kind.planning)

    @property
    def slowness(self) -> FloatArray:
        """How much slower the machine was in each step ``(steps,)``."""
        if len(self._slowness) > 1:
            self._slowness = [np.concatenate(self._slowness)]
        return self._slowness[0] if self._slowness else np.empty(0)

    def _extra(self, count: int) -> FloatArray:
        """The work of evaluations that fall into the next steps."""
        extra = np.zeros(count)
        every = self.kind.evaluate_every
        if every:
            numbers = np.arange(self.steps, self.steps + count)
            struck = np.flatnonzero((numbers + self._offset) % every == every - 1)
            lengths = self._evaluations.uniform(*self.kind.evaluation, len(struck))
            extra[struck] = self.surface.default_us * lengths
        return extra

    def _next_of(self, trace: FloatArray) -> float:
        block = self.surface.block
        if self._left == 0:
            self._position = block * int(self.rng.integers(max(1, len(trace) // block)))
            self._left = block
        value = float(trace[self._position % len(trace)])
        self._position, self._left = self._position + 1, self._left - 1
        return value
