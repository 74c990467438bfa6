"""What the tuner says to people. Units and direction stand wherever a score is printed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from autotune.exact import rounded, value_text
from autotune.space import Table, Value
from autotune.storage.contract import Remembered
from autotune.trial import (
    Certificate,
    Gain,
    Setting,
    Standing,
    Trial,
    TrialState,
)
from autotune.tuning.budget import Account
from autotune.tuning.comparing.certify import MOST_PAIRS
from autotune.tuning.exploring.memory import Recollection
from autotune.tuning.steps.identify import LONGEST_GROUP, Observed
from autotune.tuning.steps.records import ResultCheck, TunerSettings
from autotune.tuning.steps.scoring import MIN_WINDOW_US
from autotune.tuning.steps.warmup import steps_per_sample, steps_to_first_sample

HIGHER = "bytes/us, higher is better"
WORTH_SAYING = 0.0005
"""Shares of the time below this are not printed, and gains nearer to none are said to be none: they
read 0.0 %."""
MOSTLY = 0.9
"""Share of training steps from which on the others are not worth a word."""


def params_text(params: Setting, names: Collection[str]) -> str:
    """Return the parameters ``names`` of a setting (all of them if ``names`` is empty)."""
    values = params.as_dict()
    shown = [one for one in params.reading_order() if not names or one.name in names]
    return ", ".join(value_text(parameter, values[parameter.name]) for parameter in shown)


def start_text(settings: TunerSettings) -> str:
    """Return what is known of the length of tuning while the step time is not."""
    return (
        f"autotune: needs at least {steps_to_first_sample(settings)} training steps for the first "
        f"sample, and makes at most {settings.max_samples} trials; a sample is "
        f"{steps_per_sample(settings)} steps, and at least {MIN_WINDOW_US / 1000:.0f} ms "
        "(HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES and HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE change that)"
    )


def length_text(step_us: float, *, steps: int) -> str:
    """Return how long tuning takes, once the default's step time is known."""
    return (
        f"autotune: at {rounded(step_us / 1000, 3)} ms a training step, as a rule within {steps} "
        "more steps; pauses to stay within HOROVOD_AUTOTUNE_BUDGET, and a step time that changes, "
        "take longer"
    )


def frozen_text(fixed: Mapping[str, Value], inert: Mapping[str, str], table: Table) -> list[str]:
    """Return one line for each parameter that is not explored, with the reason."""
    rows = table.by_name
    lines = [
        f"autotune: {name} stays at {rows[name].format(value)}: set explicitly "
        f"(unset {rows[name].env} to tune it)"
        for name, value in fixed.items()
    ]
    lines += [
        f"autotune: {name} is not explored: {reason}"
        for name, reason in inert.items()
        if name not in fixed
    ]
    return lines


def gain_text(gain: Gain) -> str:
    """Return a gain with its interval: ``+3.1 % (90 %: -1.0 to +7.4)``."""
    estimate, low, high = (f"{100 * part:+.1f}" for part in (gain.estimate, gain.low, gain.high))
    return f"{estimate} % (90 %: {low} to {high})"


def progress_text(trial: Trial, *, most: int, standing: Standing, names: Collection[str]) -> str:
    """Return the line that follows a finished trial: gains over the default near it in time."""
    head = f"autotune: trial {trial.trial_id} ({trial.trial_id + 1} of at most {most}): "
    head += params_text(trial.params, names)
    if trial.trial_id == 0:
        return f"{head}: the default, score {rounded(trial.score, 4)} {HIGHER}"
    how = "" if trial.state is TrialState.COMPLETE else f", {trial.state}"
    own = "no gain known"
    if trial.gain is not None:
        own = f"{gain_text(trial.gain)} over the default"
        if abs(trial.gain.estimate) < WORTH_SAYING:
            own += " (no difference seen)"
    return f"{head}: {own}{how}; {standing_text(standing, trial=trial, names=names)}"


def standing_text(
    standing: Standing, *, names: Collection[str], trial: Trial | None = None, pairs: int = 0
) -> str:
    """Return what is the best so far.

    Args:
        standing: What is held for the best.
        names: Parameters that are tuned.
        trial: The one that was spoken of just before, with all that is known of it.
        pairs: Pairs of windows in which the best was compared with the default.
    """
    best, gain = standing.best, standing.gain
    if best.trial_id == 0 or gain is None:
        return "best so far: the default"
    if trial is not None and best.trial_id == trial.trial_id:
        what = "this one"
    else:
        what = f"{params_text(best.params, names)} at {gain_text(gain)}"
    compared = f"not proven in {pairs} pairs of windows" if pairs else "not certified yet"
    return f"best so far: {what}, {compared}"


def trouble_text(trouble: str) -> str:
    """Return what is said where the surrogate is not what it should be."""
    return f"autotune: proposals may be worse than usual: {trouble}"


REPAY = "autotune: pauses under the default until the time lost is within HOROVOD_AUTOTUNE_BUDGET"


def headroom_reason(bound: float, *, is_undisturbed: bool) -> str:
    """Return why tuning ends right after the default was read, or one setting more.

    Args:
        bound: Largest gain that a setting can have.
        is_undisturbed: A setting under which nothing is hidden was read, too.
    """
    also = ", nor does the computation go faster when none is hidden" if is_undisturbed else ""
    return (
        f"nothing to gain: the training thread hardly waits for communication{also}, so no "
        f"setting can gain more than {bound:.2%}"
    )


def not_worth_reason(incumbent: Trial, gain: Gain, *, names: Collection[str]) -> str:
    """Return why the best setting that was found is not even compared with the default."""
    return (
        f"default kept: the best other setting ({params_text(incumbent.params, names)}) is "
        f"expected to gain too little to be worth a comparison: {gain_text(gain)}"
    )


def certify_text(
    incumbent: Trial,
    *,
    gain: Gain | None,
    readings: int,
    names: Collection[str],
    inert: Sequence[str],
) -> str:
    """Return what is said when the paired comparison begins.

    It may be of another setting than the line before called the best: some were read again since.

    Args:
        incumbent: What is compared with the default.
        gain: Its gain, by all that is known.
        readings: How often it was read itself.
        names: Parameters that are tuned.
        inert: Those of them that were found to have no effect: they have their default.
    """
    effect = f" (no effect, so as in the default: {', '.join(inert)})" if inert else ""
    known = "" if gain is None else f"; known so far: {gain_text(gain)}"
    if known and readings:  # else they were another job's
        known += f", by {readings} reading{'s' * (readings != 1)} of it"
    return (
        f"autotune: compares {params_text(incumbent.params, names)}{effect} with the default "
        f"in at most {MOST_PAIRS} pairs of windows{known}"
    )


def result_text(best: Trial, *, reason: str, names: Collection[str]) -> str:
    """Return the last line of a finished run."""
    what = "the default stays" if best.trial_id == 0 else "stays"
    return (
        f"autotune: done: {what} in force: {params_text(best.params, names)} "
        f"(score {rounded(best.score, 4)} {HIGHER}); {reason}"
    )


RETUNE = "autotune: the job has changed: tunes again"
ANOTHER_STEP = "autotune: the training step is another one than the one tuned for: tunes again"


DRIFT = "autotune: the step time has changed since tuning"


def drift_text(*, is_default: bool, retunes: bool) -> str:
    """Return what is said when the step time is no longer what it was after tuning.

    Args:
        is_default: The default is in force.
        retunes: The job is tuned again; else the result is compared with the default.
    """
    text = DRIFT
    if not retunes:
        return f"{text}; compares the result with the default"
    if is_default:
        return f"{text}, while the default was in force"
    return f"{text}, and so has the time that steps wait for communication"


def memory_text(memory: Recollection, *, names: Collection[str]) -> str:
    """Return where a search begins that remembers an earlier job."""
    return (
        f"autotune: begins with what an earlier job learned ({memory.text}): "
        f"{params_text(memory.best, names)} first"
    )


def default_kept_text(memory: Remembered) -> str:
    """Return what is said of an earlier job that has no better setting to begin with."""
    return (
        f"autotune: an earlier job that resembles this one ended with the default ({memory.why}): "
        "the search takes nothing over from it"
    )


MEMORY_DROPPED = (
    "autotune: what the earlier job learned does not hold here: it is dropped, and the search "
    "begins anew"
)


def reason_text(certificate: Certificate, account: Account, *, disturbed: int) -> str:
    """Return why tuning ended as it did, and what it has cost.

    Only a certified setting can have saved time, and no more than its gain may bring: what else
    looks saved is a machine that has become faster since the default was read.
    """
    share, gain = account.lost_share, certificate.gain_high if certificate.certified else 0.0
    parts = [certificate.reason]
    if share >= WORTH_SAYING:
        parts.append(f"tuning lost {share:.1%} of the time of {account.steps} steps")
    elif share <= -WORTH_SAYING and -share <= gain / (1 + gain):
        parts.append(f"tuning saved {-share:.1%} of the time of {account.steps} steps")
    if disturbed:
        parts.append(f"{disturbed} steps that it disturbed were not scored")
    return "; ".join(parts)


def wrong_text(check: ResultCheck, params: Setting, *, default: Setting) -> str:
    """Return what is said about a result that a second, independent reduction contradicts.

    Or about a setting that does not suit the job.
    """
    if check.reason:
        then = "the job goes on so" if params == default else "it will not be used again"
        return f"autotune: {params_text(params, ())} does not suit this job: {check.reason}: {then}"
    what = "the default; please report this" if params == default else "it will not be used again"
    return (
        f"autotune: wrong result of {check.name!r} (relative error {check.worst_error:.3g}) under "
        f"{params_text(params, ())}: {what}"
    )


def warmup_text(settings: TunerSettings, *, steps: int) -> str:
    """Return what a warm-up waits for; ``steps``: training steps that it still needs, about."""
    wanted = settings.warmup_samples
    why = "until the step time is steady"
    if wanted is not None:
        why = f"until {wanted} samples are thrown away (HOROVOD_AUTOTUNE_WARMUP_SAMPLES)"
    return f"autotune: warm-up: waits {why}: about {steps} more training steps"


def not_recognised_text(seen: Observed, table: Table) -> str:
    """Return why a job has no training step that can be tuned; ``table``: what would be tuned."""
    if seen.steps == 0:
        what = "nothing was communicated, and no training step has ended"
        if seen.communicates:
            what = "no training step has ended: the collectives that were run do not repeat"
        return f"{what}; a step ends with {table.step_end}"
    if seen.paused == seen.steps:
        return f"all {seen.steps} steps were paused: call hvd.autotune.resume() before training"
    if seen.paused + seen.silent == seen.steps:
        return f"none of the {seen.steps} steps communicates"
    if seen.recent < seen.needed:
        return (
            f"{seen.recent} of {seen.steps} communicate, and a training step is recognised after "
            f"{seen.needed} that run the same collectives"
        )
    same = "run the same collectives on tensors of the same shapes"
    if seen.trained:
        what = f"only {seen.trained} of {seen.steps} steps {same} as the training step"
    else:
        what = (
            f"no training step is recognised: of the last {seen.recent} steps at most "
            f"{seen.largest} {same}, and no group of up to {LONGEST_GROUP} steps repeats"
        )
    return f"{what} ({seen.kinds} kinds)" + (f"; {table.remedy}" if table.remedy else "")


def no_sample_text(seen: Observed, table: Table, *, more: int | None, is_known: bool) -> str:
    """Return what a job that was too short to be tuned says at exit.

    Args:
        seen: What it did.
        table: What would be tuned.
        more: Training steps that the first sample still needed; None: none was recognised.
        is_known: Whether the step time was known: else ``more`` is the least.
    """
    text = f"autotune: the job ended before the first sample: saw {seen.steps} steps"
    if more is None:
        return f"{text}: {not_recognised_text(seen, table)}"
    is_mixed = seen.trained < MOSTLY * (seen.steps - seen.needed)
    among = f", {seen.trained} of them training steps" if is_mixed else ""
    return (
        f"{text}{among}, needs {'about' if is_known else 'at least'} {more} more; lower "
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE or HOROVOD_AUTOTUNE_WARMUP_SAMPLES, or train longer"
    )


def unfinished_text(
    standing: Standing, *, done: int, most: int, pairs: int, names: Collection[str]
) -> str:
    """Return what a job that ended while tuning says at exit."""
    return (
        f"autotune: unfinished: the job ended after {done} of at most {most} trials; "
        f"{standing_text(standing, names=names, pairs=pairs)}"
    )
