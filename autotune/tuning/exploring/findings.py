"""What is known: the trials of a run, and what they say of every setting.

All that is known of a setting is its log ratio to the default near it in time, with a variance; the
default itself is 0 by definition. Scores in bytes/us are only made for people: what the default
scored first, times one plus the gain.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from autotune.bayes import BayesianOptimizer, Incumbent
from autotune.bayes.optimizer import Simplified
from autotune.bayes.surrogate import Hyperparameters
from autotune.bayes.trend import Trend
from autotune.storage.contract import Resume
from autotune.trial import Gain, Setting, Standing, Trial, TrialState
from autotune.tuning.exploring.gains import gain_of, log_ratio_of
from autotune.tuning.exploring.memory import WarmStart
from autotune.tuning.steps.brackets import LogRatio

NOISY = 0.05
"""Noise of a reading that says nothing about itself."""
NOISE_RANGE = (0.003, 0.5)
DIGITS = 6
DEFAULT_VARIANCE = 1e-8
BEYOND_DOUBT = 4.0
"""Standard deviations by which a setting is better, or slower, than the default beyond doubt."""
CONFIRMED = 2
"""Readings of its own, at least, of a setting that is better beyond doubt."""


class Findings:
    """The trials of a run and the optimizer that was told of them.

    Whatever changes what the optimizer knows goes through here, so that ``incumbent`` is never
    older than its latest reading.

    Attributes:
        trials: Finished trials, by trial_id.
    """

    def __init__(self, optimizer: BayesianOptimizer, warm_start: WarmStart) -> None:
        """Know nothing yet but what ``warm_start`` has told ``optimizer``."""
        self.trials: list[Trial] = []
        self._optimizer, self._warm_start = optimizer, warm_start
        self._default = optimizer.space.default
        self._base_score = 0.0
        self._incumbent: Incumbent | None = None
        self._preliminary: tuple[Setting, int] | None = None
        self._readings: Counter[Setting] = Counter()

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
        return self.trial_of(self.incumbent.params) or self.trials[0]

    @property
    def noise(self) -> float:
        """Standard deviation of a typical reading's log ratio."""
        return self._optimizer.noise

    @noise.setter
    def noise(self, value: float) -> None:
        self._optimizer.noise = min(max(value, NOISE_RANGE[0]), NOISE_RANGE[1])

    @property
    def trouble(self) -> str | None:
        """Why what is known is worse than it should be, in one sentence; None where it is not."""
        return self._optimizer.trouble

    @property
    def standing(self) -> Standing | None:
        """What is held for the best so far, its score and gain as known now; None: no trial."""
        if not self.trials:
            return None
        best, known = self.best, self.incumbent
        if best.trial_id == 0:
            return Standing(best=best)
        mean, std = math.log1p(known.gain), known.std
        gain = gain_of(mean, std)
        is_confirmed = self._readings[best.params] >= CONFIRMED
        return Standing(
            best=replace(best, score=self.score_of(gain.estimate), gain=gain),
            gain=gain,
            proven=is_confirmed and mean > BEYOND_DOUBT * std,
        )

    @property
    def safe(self) -> Setting:
        """The setting that training can go on with: the best one if proven, else the default."""
        standing = self.standing
        is_proven = standing is not None and standing.proven
        return standing.best.params if standing is not None and is_proven else self._default

    def gain(self, params: Setting) -> Gain | None:
        """Return the gain of a setting that was read, by all that is known; None: the default."""
        return None if params == self._default else gain_of(*self.posterior(params))

    def is_slower(self, params: Setting) -> bool:
        """Return whether a setting that was read is slower than the default beyond doubt."""
        mean, std = self.posterior(params)
        return mean < -BEYOND_DOUBT * std

    def score_of(self, gain: float) -> float:
        """Return a gain over the default as a score, bytes/us, to six digits."""
        return float(f"{self._base_score * (1 + gain):.{DIGITS}g}")

    def add_default(self, score: float) -> Trial:
        """Add trial 0: the default, with the score that all others are put in proportion to."""
        self._base_score = score = float(f"{score:.{DIGITS}g}")
        self._tell(self._default, LogRatio(mean=0.0, variance=DEFAULT_VARIANCE))
        trial = Trial(trial_id=0, params=self._default, score=score)
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

    def add_reading(self, params: Setting, reading: LogRatio, *, preliminary: bool) -> None:
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
            if self._readings[params] == 1:
                self._warm_start.judge(params, reading)
                self._incumbent = None

    def add_trial(self, params: Setting, *, state: TrialState) -> Trial:
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

    def reject(self, params: Setting) -> Trial | None:
        """Never propose or keep ``params`` again: their results are wrong.

        Returns:
            Their trial as it is now, if that had not been rejected before.
        """
        self._incumbent = None
        self._optimizer.reject(params)
        known = self.trial_of(params)
        if known is None or known.state is TrialState.REJECTED:
            return None
        self.trials[known.trial_id] = known.rejected
        return known.rejected

    def expect(self, trend: Trend) -> None:
        """Search around what ``trend`` expects."""
        self._optimizer.expect(trend)

    def _tell(self, params: Setting, reading: LogRatio) -> int:
        self._incumbent = None
        return self._optimizer.tell(params, reading.mean, reading.variance)

    def posterior(self, params: Setting) -> tuple[float, float]:
        """Return mean and standard deviation of a setting's log ratio, by all that is known."""
        mean, std = self._optimizer.posterior([params])
        return float(mean[0]), float(std[0])

    @property
    def tried(self) -> list[Setting]:
        """Settings that were read, or rejected; the trial of the last one may not have ended."""
        return self._optimizer.tried

    def trial_of(self, params: Setting) -> Trial | None:
        """Return the finished trial of a setting, if there is one."""
        return next((trial for trial in self.trials if trial.params == params), None)

    # ---- what the optimizer makes of it ---------------------------------------------------------

    def readings(self, params: Setting) -> int:
        """Return how often a setting was read between two windows of the default."""
        return self._readings[params]

    def rivals(self) -> list[tuple[Setting, float]]:
        """Return settings with what another reading is expected to gain, best first."""
        return self._optimizer.rivals()

    def simplified(self, params: Setting) -> Simplified:
        """Return a setting with the default's value of all that has no effect."""
        return self._optimizer.simplified(params)

    def snapshot(self) -> BayesianOptimizer:
        """Return an independent optimizer that knows the same, to plan with."""
        return self._optimizer.snapshot()

    def adopt(self, constants: Hyperparameters | None) -> None:
        """Judge by constants that a snapshot has learned."""
        self._optimizer.adopt(constants)
        self._incumbent = None
