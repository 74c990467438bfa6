"""EXPLORE's memory: the trials so far, what they say, and the plan for the next one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from autotune.bayes import BayesianOptimizer, Incumbent, SearchSpace
from autotune.events import Plan
from autotune.protocol import Settings
from autotune.scoring import Reading, pool
from autotune.storage.contract import Resume
from autotune.trial import CommParams, SampleKind, Trial, TrialState

WORTH_LOOKING = 0.005
"""Exploring ends when the next trial is expected to gain less than this."""
FEWEST_TRIALS = 8
REREAD_EVERY = 5
"""Trials between two readings of the default."""
REREADS_KEPT = 4
"""Further readings of one setting tell the surrogate nothing that is worth their cost."""
DEFAULT_READINGS_USED = 3


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
        return self._optimizer.incumbent()

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

    def add_default(self, reading: Reading) -> None:
        """Note what the default does now; scores that were carried over are put in proportion."""
        self._trials_since_default = 0
        self._default_readings = [*self._default_readings, reading][-DEFAULT_READINGS_USED:]
        if self._carried is not None:
            carried, self._carried = self._carried, None
            self._tell_carried(carried, reading.score)

    def add_trial(self, params: CommParams, *, score: float, state: TrialState) -> Trial:
        """Add a finished trial; one without a usable score is rejected."""
        state = state if score > 0 else TrialState.REJECTED
        trial = Trial(trial_id=len(self.trials), params=params, state=state, score=score)
        self.trials.append(trial)
        self._trials_since_default += 1
        self._tell(trial, score)
        return trial

    def add_reread(self, params: CommParams, score: float) -> bool:
        """Add a further reading of a setting; return False if it was read often enough."""
        if self._rereads[params] >= REREADS_KEPT:
            return False
        self._rereads[params] += 1
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

    def _tell(self, trial: Trial, score: float) -> None:
        if trial.state is TrialState.REJECTED:
            self._optimizer.reject(trial.params)
        else:
            self._optimizer.tell(trial.params, score)

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

    def request(self, pending: Sequence[CommParams] = ()) -> None:
        """Ask for a plan, given that ``pending`` is being tried, unless one is on its way."""
        if self._is_planning:
            return
        twin = self._optimizer.snapshot()
        self._wanted = lambda: _plan(twin, pending)
        self._is_planning, self.plan = True, None

    def work(self) -> Callable[[], Plan] | None:
        """Return the computation that was asked for, once."""
        wanted, self._wanted = self._wanted, None
        return wanted

    def accept(self, plan: Plan) -> None:
        """Take the result of ``work``."""
        self.plan, self._is_planning = plan, False
        self._optimizer.adopt(plan.constants)


def _plan(optimizer: BayesianOptimizer, pending: Sequence[CommParams]) -> Plan:
    optimizer.learn()
    return Plan(proposal=optimizer.ask(pending), constants=optimizer.constants)
