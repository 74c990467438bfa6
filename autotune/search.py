"""EXPLORE's memory: the trials so far, what they say, and the plan for the next one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from autotune.bayes import BayesianOptimizer, Incumbent, SearchSpace
from autotune.bayes.optimizer import Prior
from autotune.budget import price_steps
from autotune.events import Plan
from autotune.protocol import Settings
from autotune.scoring import CORRELATED, Reading, pool
from autotune.storage.contract import Resume
from autotune.trial import CommParams, SampleKind, Trial, TrialState
from autotune.warmup import steps_per_sample

WORTH_LOOKING = 0.005
"""Exploring ends when the next trial is expected to gain less than this."""
WORTH_READING = 0.004
"""Further readings of the best settings end when another one is expected to gain less than this."""
FEWEST_TRIALS = 6
REREAD_EVERY = 5
"""Trials between two readings of the default."""
REREADS_KEPT = 4
"""Further readings of one setting tell the surrogate nothing that is worth their cost."""
DEFAULT_READINGS_USED = 4
MOST_CONTENDER_READINGS = 4
NOISE_RANGE = (0.003, 0.2)


class Search:
    """Trials, optimizer and plan of one run.

    Attributes:
        trials: Finished trials, by trial_id.
        plan: What comes next; None until it is computed.
    """

    def __init__(self, space: SearchSpace, settings: Settings, *, rng: np.random.Generator) -> None:
        """Know nothing yet.

        Args:
            space: The settings that may be tried.
            settings: ``HOROVOD_AUTOTUNE_*``.
            rng: Decides the initial design.
        """
        self.trials: list[Trial] = []
        self.plan: Plan | None = None
        self._most = settings.max_samples
        self._full_steps = steps_per_sample(settings)
        self._contender_readings = 0
        self._incumbent: Incumbent | None = None
        self._optimizer = BayesianOptimizer(
            space, rng=rng, noise_variance=settings.noise, max_trials=settings.max_samples
        )
        self._wanted: Callable[[], Plan] | None = None
        self._is_planning = False
        self._carried: Resume | None = None
        self._default_readings: list[Reading] = []
        self._trials_since_default = 0
        self._rereads: Counter[CommParams] = Counter()

    # ---- what is known --------------------------------------------------------------------------

    @property
    def default(self) -> Reading:
        """The latest readings of the default, as one."""
        return pool(self._default_readings)

    @property
    def incumbent(self) -> Incumbent:
        """The best setting by posterior mean."""
        if self._incumbent is None:
            self._incumbent = self._optimizer.incumbent()
        return self._incumbent

    @property
    def best(self) -> Trial:
        """The incumbent's trial; before the default was read again, the best carried over."""
        if self._carried is not None:
            return max(self.trials, key=lambda t: (t.state is TrialState.COMPLETE, t.score))
        params = self.incumbent.params
        return next((trial for trial in self.trials if trial.params == params), self.trials[0])

    def carry_over(self, resume: Resume) -> None:
        """Take the trials of an earlier job; their scores count once the default was read again."""
        if resume.trials:
            self.trials = sorted(resume.trials, key=lambda trial: trial.trial_id)
            self._carried = resume

    def note_default(self, readings: Sequence[Reading]) -> None:
        """Note earlier windows of the default: they count for its step time, not as its trial."""
        self._default_readings = list(readings)

    def add_default(self, reading: Reading) -> None:
        """Note what the default does now; scores that were carried over are put in proportion."""
        self._trials_since_default = 0
        self._default_readings = [*self._default_readings, reading][-DEFAULT_READINGS_USED:]
        noise = self.default.spread * math.sqrt(CORRELATED / max(1, reading.steps))
        self._optimizer.noise = min(max(noise, NOISE_RANGE[0]), NOISE_RANGE[1])
        if self._carried is not None:
            carried, self._carried = self._carried, None
            self._tell_carried(carried, reading.score)

    def add_trial(self, params: CommParams, *, reading: Reading, state: TrialState) -> Trial:
        """Add a finished trial; one without a usable score is rejected."""
        state = state if reading.score > 0 else TrialState.REJECTED
        score = 0.0 if state is TrialState.REJECTED else reading.score
        trial = Trial(trial_id=len(self.trials), params=params, state=state, score=score)
        self.trials.append(trial)
        self._trials_since_default += 1
        self._tell(trial, score, share=reading.steps / self._full_steps)
        return trial

    def reject(self, params: CommParams) -> None:
        """Never propose or keep ``params`` again: their results are wrong."""
        self._incumbent = None
        self._optimizer.reject(params)

    def expect(self, prior: Prior) -> None:
        """Search around what ``prior`` expects."""
        self._optimizer.expect(prior)

    def add_reread(self, params: CommParams, score: float) -> bool:
        """Add a further reading of a setting; return False if it was read often enough."""
        if self._rereads[params] >= REREADS_KEPT or score <= 0:
            return False
        self._rereads[params] += 1
        self._incumbent = None
        self._optimizer.tell(params, score)
        return True

    def _tell_carried(self, carried: Resume, default_score: float) -> None:
        ratio = default_score / self.trials[0].score if self.trials[0].score > 0 else 1.0
        for trial in carried.trials:
            self._tell(trial, trial.score * ratio)
        params = {trial.trial_id: trial.params for trial in carried.trials}
        for sample in carried.samples:
            if sample.kind is SampleKind.REREAD and sample.trial_id in params:
                self.add_reread(params[sample.trial_id], sample.score * ratio)

    def _tell(self, trial: Trial, score: float, share: float = 1.0) -> None:
        self._incumbent = None
        if trial.state is TrialState.REJECTED:
            self._optimizer.reject(trial.params)
        else:
            self._optimizer.tell(trial.params, score, share)

    # ---- what comes next ------------------------------------------------------------------------

    @property
    def is_exhausted(self) -> bool:
        """Whether the plan says that another trial is not allowed or not worth its time."""
        if self.plan is None:
            return False
        count, proposal = len(self.trials), self.plan.proposal
        if proposal is None or count >= self._most:
            return True
        return count >= FEWEST_TRIALS and proposal.improvement < WORTH_LOOKING

    @property
    def wants_default(self) -> bool:
        """Whether it is time to read the default again."""
        return self._trials_since_default >= REREAD_EVERY

    def take_proposal(self) -> CommParams:
        """Return the planned setting, which is tried from now on, and ask for the next plan."""
        assert self.plan is not None and self.plan.proposal is not None
        params = self.plan.proposal.params
        self.request([params])
        return params

    def contender(self) -> Trial | None:
        """Return a trial that is worth another reading before the best one is chosen, or None."""
        if self._contender_readings >= MOST_CONTENDER_READINGS:
            return None
        for params, improvement in self._optimizer.rivals():
            if improvement < WORTH_READING:
                return None
            trial = next((trial for trial in self.trials if trial.params == params), None)
            if trial is not None and self._rereads[params] < REREADS_KEPT:
                self._contender_readings += 1
                return trial
        return None

    def request(self, pending: Sequence[CommParams] = ()) -> None:
        """Ask for a plan, given that ``pending`` is being tried, unless one is on its way."""
        if self._is_planning:
            return
        twin, window = self._optimizer.snapshot(), self._full_steps
        self._wanted = lambda: _plan(twin, pending, window)
        self._is_planning, self.plan = True, None

    def work(self) -> Callable[[], Plan] | None:
        """Return the computation that was asked for, once."""
        wanted, self._wanted = self._wanted, None
        return wanted

    def accept(self, plan: Plan) -> None:
        """Take the result of ``work``."""
        self.plan, self._is_planning = plan, False
        self._incumbent = None
        self._optimizer.adopt(plan.constants)


def _plan(optimizer: BayesianOptimizer, pending: Sequence[CommParams], window: int) -> Plan:
    optimizer.learn()
    proposal = optimizer.ask(pending, lambda ratios: price_steps(ratios, window) / window)
    return Plan(proposal=proposal, constants=optimizer.constants)
