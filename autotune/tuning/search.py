"""EXPLORE's memory: the trials so far, what they say, and the plan for the next one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from autotune.bayes import BayesianOptimizer, Incumbent, SearchSpace
from autotune.bayes.prior import Prior
from autotune.storage.contract import Resume
from autotune.trial import CommParams, SampleKind, Trial, TrialState
from autotune.tuning.budget import price_steps
from autotune.tuning.certify import MOST_PAIRS
from autotune.tuning.events import Plan
from autotune.tuning.records import TunerSettings
from autotune.tuning.scoring import CORRELATED, SETTLE_STEPS, Reading, pool
from autotune.tuning.warmup import steps_per_sample, window_steps

WORTH_LOOKING = 0.005
"""Exploring ends when the next trial is expected to gain less than this."""
NOISE_PER_TRIAL = 8.0
"""... or less than this part of one window's noise: that much cannot be told apart anyway."""
WORTH_READING = 0.005
"""Further readings of the best settings end when another one is expected to gain less than this."""
FEWEST_TRIALS = 6
REREAD_EVERY = 5
"""Trials between two readings of the default."""
PAYLOAD_VARIES = 0.01
"""Bytes per step that vary by more than this make windows at different times incomparable."""
DRIFT, DRIFT_SIGMA = 0.04, 4.0
"""The default's score changed by more than both: this share, and so many standard errors."""
REREADS_KEPT = 4
"""Further readings of one setting tell the surrogate nothing that is worth their cost."""
DEFAULT_READINGS_USED = 4
PAIRED_READINGS_USED = 2
MOST_CONTENDER_READINGS = 4
LOUD = 0.04
"""Noise of one window from which on twice as many readings are spent on the choice."""
NOISE_RANGE = (0.003, 0.2)


class Search:
    """Trials, optimizer and plan of one run.

    Attributes:
        space: The settings that may be tried.
        trials: Finished trials, by trial_id.
        plan: What comes next; None until it is computed.
    """

    def __init__(
        self, space: SearchSpace, settings: TunerSettings, *, rng: np.random.Generator
    ) -> None:
        """Know nothing yet.

        Args:
            space: The settings that may be tried.
            settings: ``HOROVOD_AUTOTUNE_*``.
            rng: Decides the initial design.
        """
        self.space = space
        self.trials: list[Trial] = []
        self.plan: Plan | None = None
        self._settings = settings
        self._most = settings.max_samples
        self._is_paired = False
        self._base_score = 0.0
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
        self._default_scores: list[float] = []
        self._told: list[tuple[int, float, float]] = []
        """(number of the reading, score, share of a full window) of all but the default."""

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
    def best_score(self) -> float:
        """The incumbent's score, as it would have been when the default was read first."""
        return self._reference * (1 + self.incumbent.gain)

    @property
    def best(self) -> Trial:
        """The incumbent's trial; before the default was read again, the best carried over."""
        if self._carried is not None:
            return self._carried.best or self.trials[0]
        params = self.incumbent.params
        return next((trial for trial in self.trials if trial.params == params), self.trials[0])

    def carry_over(self, resume: Resume) -> None:
        """Take the trials of an earlier job; their scores count once the default was read again."""
        if resume.trials:
            self.trials = sorted(resume.trials, key=lambda trial: trial.trial_id)
            self._carried = resume

    def add_default(self, reading: Reading, earlier: Sequence[Reading] = ()) -> None:
        """Note what the default does now; scores that were carried over are put in proportion.

        Args:
            reading: Of the default.
            earlier: Windows of it before: they count for its step time, not as its trial.
        """
        if self._varies(reading):
            self._is_paired = True
            self._default_readings = []
        self._base_score = self._base_score or reading.score
        self._trials_since_default = 0
        used = PAIRED_READINGS_USED if self._is_paired else DEFAULT_READINGS_USED
        self._default_readings = [*self._default_readings, *earlier, reading][-used:]
        noise = self.default.spread * math.sqrt(CORRELATED / max(1, reading.steps))
        self._optimizer.noise = min(max(noise, NOISE_RANGE[0]), NOISE_RANGE[1])
        self._tell_again()
        if self._carried is not None:
            carried, self._carried = self._carried, None
            self._tell_carried(carried, reading.score)

    @property
    def is_paired(self) -> bool:
        """Whether scores count against the default's latest window, which precedes every trial.

        So it is where the machine drifts, or where the bytes of a step vary.
        """
        return self._is_paired

    def _varies(self, reading: Reading) -> bool:
        if reading.payload_spread > PAYLOAD_VARIES:
            return True
        if self._is_paired or reading.score <= 0 or self._base_score <= 0:
            return False
        change = abs(math.log(reading.score / self._base_score))
        return change > max(DRIFT, DRIFT_SIGMA * math.sqrt(2) * reading.noise)

    def _in_proportion(self, score: float) -> float:
        """Return a score as it would have been when the default was read first."""
        if not self._is_paired or not self._default_readings:
            return score
        now = self._default_readings[-1].score
        return score * self._base_score / now if now > 0 else score

    def add_trial(self, params: CommParams, *, reading: Reading, state: TrialState) -> Trial:
        """Add a finished trial; one without a usable score is rejected.

        Args:
            params: The setting.
            reading: Of at least one step, unless ``state`` is REJECTED.
            state: How it ended.
        """
        state = state if reading.score > 0 else TrialState.REJECTED
        score = 0.0 if state is TrialState.REJECTED else reading.score
        trial = Trial(trial_id=len(self.trials), params=params, state=state, score=score)
        self.trials.append(trial)
        self._trials_since_default += 1
        told = self._in_proportion(score)
        full = window_steps(self._settings, reading.step_us)
        self._tell(trial, told, share=reading.steps / full)
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
        if not (self._is_paired and params == self.space.default):
            self._tell_score(params, self._in_proportion(score))
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
            self._tell_score(trial.params, score, share)

    def _tell_score(self, params: CommParams, score: float, share: float = 1.0) -> None:
        """Tell a score beside the default's; where that is known better now, all are told anew."""
        if params == self.space.default:
            if not self._default_scores:
                self._optimizer.tell(params, 0.0, 0.0)
            self._default_scores.append(score)
            self._tell_again()
            return
        ratio, variance = self._beside_default(score, share)
        self._told.append((self._optimizer.tell(params, ratio, variance), score, share))

    def _tell_again(self) -> None:
        for index, score, share in self._told:
            self._optimizer.amend(index, *self._beside_default(score, share))

    def _beside_default(self, score: float, share: float) -> tuple[float, float]:
        """Return the log ratio of a score over the default's, and its variance."""
        share = min(max(share, 0.05), 10.0)
        readings = 1 if self._is_paired else max(1, len(self._default_scores))
        variance = self._optimizer.noise**2 * (1 / share + 1 / readings)
        if not (score > 0 and self._reference > 0):
            return -math.inf, variance
        return math.log(score / self._reference), variance

    @property
    def _reference(self) -> float:
        usable = [score for score in self._default_scores if score > 0]
        return math.exp(sum(map(math.log, usable)) / len(usable)) if usable else 0.0

    # ---- what comes next ------------------------------------------------------------------------

    @property
    def steps_to_done(self) -> int | None:
        """Training steps until tuning is over, about, at most; None: the step time is not known.

        Pauses for the budget, and further readings of a default that drifts, are not among them.
        """
        if not self._default_readings:
            return None
        trials = max(0, self._most - len(self.trials))
        windows = trials + trials // REREAD_EVERY + MOST_CONTENDER_READINGS + 2 * MOST_PAIRS
        return windows * (window_steps(self._settings, self.default.step_us) + SETTLE_STEPS)

    @property
    def is_exhausted(self) -> bool:
        """Whether the plan says that another trial is not allowed or not worth its time."""
        if self.plan is None:
            return False
        count, proposal = len(self.trials), self.plan.proposal
        if proposal is None or count >= self._most:
            return True
        worth = max(WORTH_LOOKING, self._optimizer.noise / NOISE_PER_TRIAL)
        return count >= FEWEST_TRIALS and proposal.improvement < worth

    @property
    def wants_default(self) -> bool:
        """Whether it is time to read the default again."""
        return self._trials_since_default >= (1 if self._is_paired else REREAD_EVERY)

    def take_proposal(self) -> CommParams:
        """Return the planned setting, which is tried from now on, and ask for the next plan."""
        assert self.plan is not None and self.plan.proposal is not None
        params = self.plan.proposal.params
        self.request([params])
        return params

    def contender(self) -> Trial | None:
        """Return a trial that is worth another reading before the best one is chosen, or None."""
        most = MOST_CONTENDER_READINGS
        if self._optimizer.noise > LOUD:
            most *= 2
        if self._contender_readings >= most:
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
    return Plan(proposal=proposal, constants=optimizer.constants, trouble=optimizer.trouble)
