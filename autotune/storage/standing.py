"""What the numbers of one run come to: its best so far, its answer, the latest of each trial."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autotune.errors import InvalidSettingError
from autotune.storage.sqlite_reader import RunContent
from autotune.trial import Certificate, Gain, Sample, Standing, Trial, TrialState


def best_so_far(trials: Iterable[Trial], samples: Iterable[Sample] = ()) -> Trial | None:
    """Return the complete trial with the highest score, the earlier one of equals.

    For logs in which the job itself has not said what it holds for the best.

    Args:
        trials: Of one run, by trial_id.
        samples: What is known of their readings: the mean of a trial's is its score. They count
            only where no trial has a gain: raw readings of different times do not compare.
    """
    trials = list(trials)
    readings: dict[int, list[float]] = {}
    for sample in samples if not any(trial.gain for trial in trials) else ():
        readings.setdefault(sample.trial_id, []).append(sample.score)

    def score(trial: Trial) -> float:
        known = readings.get(trial.trial_id, [trial.score])
        return sum(known) / len(known)

    complete = (trial for trial in trials if trial.state is TrialState.COMPLETE)
    return max(complete, key=score, default=None)


def standing_of(stored: RunContent) -> Standing | None:
    """Return what an unfinished run holds for the best: by its own word, else by score.

    A certificate is proof, also where the job was killed before it could end the run.
    """
    if stored.best is not None:
        return None
    certificate = stored.certificate
    for trial in stored.trials if certificate is not None and certificate.certified else ():
        if certificate is not None and trial.trial_id == certificate.trial_id:
            return Standing(best=trial, gain=trial.gain, proven=True)
    if stored.standing is not None:
        return stored.standing
    best = best_so_far(stored.trials, stored.samples)
    return None if best is None else Standing(best=best, gain=best.gain)


def safe_best(trials: Iterable[Trial], standing: Standing | None) -> Trial | None:
    """Return the setting that an unfinished run answers with: the default as long as in doubt."""
    if standing is None:
        return None
    if standing.proven:
        return standing.best
    complete = (trial for trial in trials if trial.state is TrialState.COMPLETE)
    return next((trial for trial in complete if trial.trial_id == 0), standing.best)


def certified_gain(certificate: Certificate | None) -> Gain | None:
    """Return the certificate's gain; None: there is no certificate, or it has none."""
    if certificate is None:
        return None
    estimate, low, high = certificate.gain, certificate.gain_low, certificate.gain_high
    try:
        return Gain(estimate=estimate, low=low, high=high)
    except (InvalidSettingError, TypeError):  # it came to no number
        return None


def latest(
    trials: Iterable[Trial], best: Trial | None, certificate: Certificate | None
) -> tuple[Trial, ...]:
    """Return the trials with the score and the gain that are known of them at last.

    Args:
        trials: As they were recorded.
        best: One of them with what its job knew of it when it was last asked.
        certificate: The comparison in pairs: the last word on the trial that it compared.
    """
    known = {trial.trial_id: trial for trial in trials}
    if best is not None and best.trial_id in known:
        known[best.trial_id] = best
    gain = certified_gain(certificate)
    compared = known.get(certificate.trial_id) if certificate is not None else None
    if compared is not None and compared.gain is not None and gain is not None:
        is_best = best is not None and best.trial_id == compared.trial_id
        default = known.get(0, compared)
        score = compared.score if is_best else (1 + gain.estimate) * default.score
        known[compared.trial_id] = replace(compared, score=score, gain=gain)
    return tuple(known.values())
