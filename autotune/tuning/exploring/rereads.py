"""Which trials are read once more before one is chosen, and how often."""

from __future__ import annotations

from autotune.trial import Trial
from autotune.tuning.exploring.findings import CONFIRMED, Findings
from autotune.tuning.exploring.memory import WarmStart

FEWEST_TRIALS = 6
"""Trials of a search, at least: before them no setting is confirmed."""
WORTH_READING = 0.005
"""Further readings of the best settings end when another one is expected to gain less than this."""
REREADS_KEPT = 4
"""Further readings of one setting tell the surrogate nothing that is worth their cost."""
CONTENDER_READINGS, NOISE_READ = (2, 8), 0.02
"""Further readings before the best setting is chosen: at most so many, one for each part of the
noise."""
WORTH_CONFIRMING = 2.0
"""Standard deviations above the default from which on a new best setting is read once more."""
MOST_CONFIRMATIONS = 1


class Rereads:
    """Chooses trials to read once more: a new best one, then those that may be the best."""

    def __init__(self, findings: Findings, warm_start: WarmStart) -> None:
        """Choose among ``findings``; what ``warm_start`` remembers was read before."""
        self._findings, self._warm_start = findings, warm_start
        self._contender_readings = self._confirmations = 0

    def to_confirm(self) -> Trial | None:
        """Return a new best setting that one more reading may prove, or None."""
        findings = self._findings
        best = findings.best
        is_new = best.trial_id > 0 and findings.readings(best.params) < CONFIRMED
        is_early = len(findings.trials) < FEWEST_TRIALS
        if not is_new or is_early or self._confirmations >= MOST_CONFIRMATIONS:
            return None
        mean, std = findings.posterior(best.params)
        if mean < max(WORTH_CONFIRMING * std, 2 * WORTH_READING):
            return None
        self._confirmations += 1
        return best

    def contender(self) -> Trial | None:
        """Return a trial that is worth another reading before the best one is chosen, or None."""
        findings, (fewest, most) = self._findings, CONTENDER_READINGS
        if self._warm_start.is_used:
            return None
        if self._contender_readings >= min(max(round(findings.noise / NOISE_READ), fewest), most):
            return None
        for params, improvement in findings.rivals():
            if improvement < WORTH_READING:
                return None
            trial = findings.trial_of(params)
            is_open = trial is not None and trial.trial_id > 0
            if is_open and findings.readings(params) <= REREADS_KEPT:
                self._contender_readings += 1
                return trial
        return None
