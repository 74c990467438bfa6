"""EXPLORE's memory: the trials so far, what they say, and the plan for the next ones.

All that is known of a setting is its log ratio to the default near it in time, with a variance; the
default itself is 0 by definition. Scores in bytes/us are only made for people: what the default
scored first, times one plus the gain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autotune.bayes import BayesianOptimizer, Incumbent, Proposal, SearchSpace
from autotune.bayes.prior import Prior
from autotune.storage.contract import Resume
from autotune.trial import CommParams, Gain, Standing, Trial, TrialState
from autotune.tuning.brackets import LogRatio
from autotune.tuning.budget import price_steps
from autotune.tuning.certify import FEWEST_PAIRS
from autotune.tuning.events import Plan
from autotune.tuning.memory import Recollection
from autotune.tuning.records import TunerSettings
from autotune.tuning.scoring import SETTLE_STEPS
from autotune.tuning.warmup import steps_per_sample, window_steps

WORTH_LOOKING = 0.006
"""Exploring ends when the next trial is expected to gain less than this."""
NOISE_PER_TRIAL = 10.0
MOST_WORTH = 0.01
"""... or less than this part of one reading's noise, which cannot be told apart anyway, up to this.
"""
WORTH_READING = 0.005
"""Further readings of the best settings end when another one is expected to gain less than this."""
FEWEST_TRIALS = 6
"""Trials of a search, at least."""
REMEMBERED_TRIALS, WORTH_LOOKING_BEYOND = 5, 0.015
"""Trials of a search that remembers an earlier job, while that holds, at most; and the gain that
another one has to promise: the default and what was best there may do."""
REREADS_KEPT = 4
"""Further readings of one setting tell the surrogate nothing that is worth their cost."""
CONTENDER_READINGS, NOISE_READ = (2, 8), 0.02
"""Further readings before the best setting is chosen: at most so many, one for each part of the
noise."""
NOISY = 0.05
"""Noise of a reading that says nothing about itself."""
NOISE_RANGE = (0.003, 0.5)
DIGITS = 6
DEFAULT_VARIANCE = 1e-8
NINETY = 1.81
"""Standard deviations on each side of a 90 % interval: Student's t with 10 degrees of freedom, as
noise and surrogate are estimated from few readings themselves."""
BEYOND_DOUBT = 4.0
"""Standard deviations by which a setting is better than the default beyond doubt ..."""
CONFIRMED = 2
"""... in so many readings of its own, at least."""
SLOWER = 3.0
"""Standard deviations by which a setting is slower than the default beyond noise."""
WORTH_CONFIRMING = 2.0
"""Standard deviations above the default from which on a new best setting is read once more."""
MOST_CONFIRMATIONS = 1


class Search:
    """Trials, optimizer and plan of one run.

    Attributes:
        space: The settings that may be tried.
        trials: Finished trials, by trial_id.
        plan: What comes next; None until it is computed.
        was_misled: What an earlier job had learned was dropped; the caller says so and resets it.
    """

    def __init__(
        self,
        space: SearchSpace,
        settings: TunerSettings,
        *,
        rng: np.random.Generator,
        proposals_per_plan: int = 1,
        recollection: Recollection | None = None,
    ) -> None:
        """Know nothing yet but what is remembered.

        Args:
            space: The settings that may be tried.
            settings: ``HOROVOD_AUTOTUNE_*``.
            rng: Decides the initial design.
            proposals_per_plan: Settings that one plan proposes.
            recollection: What an earlier job that resembles this one has learned.
        """
        self.space = space
        self.trials: list[Trial] = []
        self.plan: Plan | None = None
        self._settings = settings
        self._most = settings.max_samples
        self._per_plan = proposals_per_plan
        self._base_score = 0.0
        self._incumbent: Incumbent | None = None
        self._optimizer = BayesianOptimizer(
            space, rng=rng, noise_variance=settings.noise, max_trials=settings.max_samples
        )
        self._recollection = recollection
        self._remembered = {} if recollection is None else recollection.tell(self._optimizer)
        self._preliminary: tuple[CommParams, int] | None = None
        self._readings: Counter[CommParams] = Counter()
        self._contender_readings = self._confirmations = 0
        self._wanted: Callable[[], Plan] | None = None
        self._is_planning = False
        self._is_simplified = False
        self.was_misled = False

    # ---- what is known --------------------------------------------------------------------------

    @property
    def incumbent(self) -> Incumbent:
        """The best setting by posterior mean, of the finished trials."""
        if self._incumbent is None:
            finished = [trial.params for trial in self.trials]
            self._incumbent = self._optimizer.incumbent(finished)
        return self._incumbent

    @property
    def best(self) -> Trial:
        """The incumbent's trial."""
        return self._trial_of(self.incumbent.params) or self.trials[0]

    @property
    def noise(self) -> float:
        """Standard deviation of a typical reading's log ratio."""
        return self._optimizer.noise

    @noise.setter
    def noise(self, value: float) -> None:
        self._optimizer.noise = min(max(value, NOISE_RANGE[0]), NOISE_RANGE[1])

    @property
    def standing(self) -> Standing | None:
        """What is held for the best so far; None: there is no trial."""
        if not self.trials:
            return None
        best, known = self.best, self.incumbent
        if best.trial_id == 0:
            return Standing(best=best)
        mean, std = math.log1p(known.gain), known.std
        is_confirmed = self._readings[best.params] >= CONFIRMED
        return Standing(
            best=best,
            gain=gain_of(mean, std),
            proven=is_confirmed and mean > BEYOND_DOUBT * std,
        )

    def gain(self, params: CommParams) -> Gain | None:
        """Return the gain of a setting that was read, by all that is known; None: the default."""
        return None if params == self.space.default else gain_of(*self._posterior(params))

    def is_slower(self, params: CommParams) -> bool:
        """Return whether a setting that was read is slower than the default beyond noise."""
        mean, std = self._posterior(params)
        return mean < -SLOWER * std

    def score_of(self, gain: float) -> float:
        """Return a gain over the default as a score, bytes/us, to six digits."""
        return float(f"{self._base_score * (1 + gain):.{DIGITS}g}")

    def add_default(self, score: float) -> Trial:
        """Add trial 0: the default, with the score that all others are put in proportion to."""
        self._base_score = score = float(f"{score:.{DIGITS}g}")
        self._tell(self.space.default, LogRatio(mean=0.0, variance=DEFAULT_VARIANCE))
        trial = Trial(trial_id=0, params=self.space.default, score=score)
        self.trials.append(trial)
        return trial

    def carry_over(self, resume: Resume) -> None:
        """Take the trials of an earlier part of this job, with what they say."""
        for trial in sorted(resume.trials, key=lambda trial: trial.trial_id):
            if trial.trial_id == 0:
                self.add_default(trial.score)
                continue
            self.trials.append(trial)
            if trial.state is TrialState.REJECTED:
                self.reject(trial.params)
            else:
                self._tell(trial.params, self._carried(trial))

    def _carried(self, trial: Trial) -> LogRatio:
        """Return a trial's reading: from its interval, or from its score where it has none."""
        if trial.gain is not None:
            return log_ratio_of(trial.gain)
        ratio = trial.score / self._base_score if self._base_score > 0 and trial.score > 0 else 1.0
        return LogRatio(mean=math.log(ratio), variance=max(self.noise, NOISY) ** 2)

    def add_reading(self, params: CommParams, reading: LogRatio, *, preliminary: bool) -> None:
        """Add a reading; a preliminary one is replaced by the next one of the same setting."""
        known, self._preliminary = self._preliminary, None
        if known is not None and known[0] == params:
            self._optimizer.amend(known[1], reading.mean, reading.variance)
            self._incumbent = None
            index = known[1]
        else:
            index = self._tell(params, reading)
        if preliminary:
            self._preliminary = (params, index)
        else:
            self._readings[params] += 1
            self._see_whether_memory_holds(params, reading)

    def add_trial(self, params: CommParams, *, state: TrialState) -> Trial:
        """Add a finished trial whose readings were added; without one it is rejected."""
        gain = self.gain(params) if self._readings[params] else None
        if gain is None or state is TrialState.REJECTED:
            state, gain = TrialState.REJECTED, None
            self.reject(params)
        score = self.score_of(gain.estimate) if gain is not None else 0.0
        trial = Trial(trial_id=len(self.trials), params=params, state=state, score=score, gain=gain)
        self.trials.append(trial)
        self._incumbent = None
        return trial

    def reject(self, params: CommParams) -> None:
        """Never propose or keep ``params`` again: their results are wrong."""
        self._incumbent = None
        self._optimizer.reject(params)

    def expect(self, prior: Prior) -> None:
        """Search around what ``prior`` expects."""
        self._optimizer.expect(prior)

    def _tell(self, params: CommParams, reading: LogRatio) -> int:
        self._incumbent = None
        return self._optimizer.tell(params, reading.mean, reading.variance)

    def _posterior(self, params: CommParams) -> tuple[float, float]:
        mean, std = self._optimizer.posterior([params])
        return float(mean[0]), float(std[0])

    def _trial_of(self, params: CommParams) -> Trial | None:
        return next((trial for trial in self.trials if trial.params == params), None)

    # ---- memory ---------------------------------------------------------------------------------

    def _see_whether_memory_holds(self, params: CommParams, reading: LogRatio) -> None:
        """Drop what is remembered, or put it in proportion, when its best setting was read."""
        memory = self._recollection
        if memory is None or params != memory.best or self._readings[params] > 1:
            return
        if not memory.is_contradicted(reading):
            scale = memory.scale(reading)
            for other, index in self._remembered.items():
                ratio = memory.ratios[other]
                self._optimizer.amend(index, scale * ratio.mean, ratio.variance)
            return
        for index in self._remembered.values():
            self._optimizer.forget(index)
        self.was_misled = True
        self._recollection, self._remembered, self._incumbent = None, {}, None

    @property
    def is_remembering(self) -> bool:
        """Whether what an earlier job learned still counts."""
        return self._recollection is not None

    # ---- what comes next ------------------------------------------------------------------------

    def steps_to_done(self, step_us: float) -> int:
        """Return the training steps until tuning is over, about, at most.

        Pauses for the budget, and readings that are taken again, are not among them.

        Args:
            step_us: Step time of the default.
        """
        trials = max(0, self._most - len(self.trials))
        windows = 2 * (trials + CONTENDER_READINGS[1]) + 2 * FEWEST_PAIRS
        return windows * (window_steps(self._settings, step_us) + SETTLE_STEPS)

    @property
    def is_exhausted(self) -> bool:
        """Whether the plan says that another trial is not allowed or not worth its time."""
        if self.plan is None:
            return False
        count, proposals = len(self.trials), self.plan.proposals
        if not proposals or count >= self._most:
            return True
        if self.is_remembering:
            is_read = self._remembered_first() is None
            is_worth_it = proposals[0].improvement >= WORTH_LOOKING_BEYOND
            return is_read and (count >= REMEMBERED_TRIALS or not is_worth_it)
        worth = min(max(WORTH_LOOKING, self.noise / NOISE_PER_TRIAL), MOST_WORTH)
        return count >= FEWEST_TRIALS and proposals[0].improvement < worth

    @property
    def needs_plan(self) -> bool:
        """Whether a plan has to be computed before the next trial."""
        return self.plan is None

    def take_proposal(self) -> Proposal:
        """Return the planned trial, which begins now."""
        assert self.plan is not None and self.plan.proposals
        first, *others = self.plan.proposals
        self.plan = replace(self.plan, proposals=tuple(others)) if others else None
        return first

    def to_confirm(self) -> Trial | None:
        """Return a new best setting that one more reading may prove, or None."""
        best = self.best
        is_new = best.trial_id > 0 and self._readings[best.params] < CONFIRMED
        is_early = len(self.trials) < FEWEST_TRIALS
        if not is_new or is_early or self._confirmations >= MOST_CONFIRMATIONS:
            return None
        mean, std = self._posterior(best.params)
        if mean < max(WORTH_CONFIRMING * std, 2 * WORTH_READING):
            return None
        self._confirmations += 1
        return best

    def contender(self) -> Trial | None:
        """Return a trial that is worth another reading before the best one is chosen, or None."""
        fewest, most = CONTENDER_READINGS
        if self.is_remembering:
            return None
        if self._contender_readings >= min(max(round(self.noise / NOISE_READ), fewest), most):
            return None
        for params, improvement in self._optimizer.rivals():
            if improvement < WORTH_READING:
                return None
            trial = self._trial_of(params)
            is_open = trial is not None and trial.trial_id > 0
            if is_open and self._readings[params] <= REREADS_KEPT:
                self._contender_readings += 1
                return trial
        return None

    def simplified(self) -> CommParams | None:
        """Return the incumbent with the default's value of all that has no effect, once.

        None: it has no such parameter, or that setting was tried already.
        """
        if self._is_simplified or self.is_remembering or self.best.trial_id == 0:
            return None
        self._is_simplified = True
        params = self._optimizer.simplified(self.best.params).params
        return None if self._trial_of(params) is not None else params

    def choose(self) -> tuple[Trial, list[str]]:
        """Return the trial to be compared with the default, and what has no effect in it.

        Of settings that cannot be told apart it is the one nearest to the default.
        """
        best = self.best
        if best.trial_id == 0:
            return best, []
        found = self._optimizer.simplified(best.params)
        params, names = found.params, list(found.no_effect)
        simpler = self._trial_of(params)
        if simpler is None or simpler.state is TrialState.REJECTED:
            return best, []
        if simpler.trial_id > 0 and simpler is not best:
            mine, _ = self._posterior(best.params)
            others, _ = self._posterior(simpler.params)
            if others < mine - WORTH_READING:
                return best, []
        return (simpler, names) if simpler.trial_id > 0 else (best, [])

    def request(self) -> None:
        """Ask for a plan, unless one is on its way."""
        if self._is_planning:
            return
        twin, window, count = self._optimizer.snapshot(), steps_per_sample(self._settings), 1
        if len(self.trials) > 1:
            count = min(self._per_plan, max(1, self._most - len(self.trials)))
        first = self._remembered_first()
        self._wanted = lambda: _plan(twin, window, count, first)
        self._is_planning, self.plan = True, None

    def _remembered_first(self) -> CommParams | None:
        """Return the best setting of the earlier job, until it was tried."""
        memory = self._recollection
        if memory is None or memory.best in self._optimizer.tried:  # its trial may not have ended
            return None
        return memory.best

    def work(self) -> Callable[[], Plan] | None:
        """Return the computation that was asked for, once."""
        wanted, self._wanted = self._wanted, None
        return wanted

    def accept(self, plan: Plan) -> None:
        """Take the result of ``work``."""
        self.plan, self._is_planning = plan, False
        self._incumbent = None
        self._optimizer.adopt(plan.constants)


def gain_of(mean: float, std: float) -> Gain:
    """Return the gain of a log ratio with its 90 % interval."""
    return Gain(
        estimate=math.expm1(mean),
        low=math.expm1(mean - NINETY * std),
        high=math.expm1(min(mean + NINETY * std, 20.0)),
    )


def log_ratio_of(gain: Gain) -> LogRatio:
    """Return the log ratio of a gain that was shown."""
    low, high = (math.log(max(1 + value, 1e-6)) for value in (gain.low, gain.high))
    std = max((high - low) / (2 * NINETY), math.sqrt(DEFAULT_VARIANCE))
    return LogRatio(mean=math.log(max(1 + gain.estimate, 1e-6)), variance=std**2)


def _plan(optimizer: BayesianOptimizer, window: int, count: int, first: CommParams | None) -> Plan:
    optimizer.learn()

    def price(ratios: np.ndarray) -> np.ndarray:
        return price_steps(ratios, window) / window

    proposals = optimizer.ask_many((), price, count)
    if first is not None:
        proposals = [optimizer.proposal(first), *proposals[:-1]]
    return Plan(
        proposals=tuple(proposals), constants=optimizer.constants, trouble=optimizer.trouble
    )
