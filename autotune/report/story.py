"""All that a report of one log says, as values: six answers, the history, the job.

Nothing here knows HTML, matplotlib or a terminal; the page, the notebook and the comparison of
several logs show the same story.
"""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.errors import AutotuneError
from autotune.report.evidence import Curve, Evidence, Pair, Price, Waiting
from autotune.report.explain import Explanation, explain, tensor_sizes
from autotune.report.verdict import Kind, Verdict, break_even_steps, judge
from autotune.result import Result, environment, launcher_arguments, result_of
from autotune.space import HOROVOD
from autotune.storage.locking import Holder, holder
from autotune.storage.reader import LogView, read_log
from autotune.storage.readings import Readings, read_readings
from autotune.storage.standing import latest
from autotune.trial import Gain, RunState, Setting, Trial


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What to run, in three ways that mean the same.

    Attributes:
        params: The setting.
        is_default: It is the default, so nothing need be set.
        command: By the log.
        variables: By the environment: shell lines.
        options: By ``horovodrun``; empty: it cannot.
    """

    params: Setting
    is_default: bool
    command: str
    variables: tuple[str, ...]
    options: str


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What tuning cost.

    Attributes:
        price: Time lost in readings of other settings.
        budget: Share that it was allowed to lose, where the log says it.
        break_even: Steps under the tuned setting that make up for it: (most probable, fewest,
            most); None: nothing was kept that could.
    """

    price: Price
    budget: float | None
    break_even: tuple[float, float, float] | None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One trial in the history.

    Attributes:
        trial: With the score and the gain that are known of it at last.
        at_s: When it ended, in seconds since the first reading began; None: not known.
        windows: How often it was read.
    """

    trial: Trial
    at_s: float | None
    windows: int


@dataclass(frozen=True, kw_only=True)
class Story:
    """What is known of one log.

    Attributes:
        path: As the user named it.
        view: The log.
        holder: Who writes to it now, as far as this host can see.
        made_at: When this was read, in ISO 8601, UTC.
        verdict: Is tuned faster, and how sure?
        pairs: Windows that were compared side by side.
        compared: The setting that they compare with the default; None: there are none.
        replay: What to run; None: there is no answer.
        explanation: Why, and what does not matter; None: too little is known.
        default, tuned: What a step waits for, under the default and the other setting, by windows
            that were read side by side.
        throughout: The same under the default by all of its windows.
        cost: What tuning cost; None: not known.
        attempts: The history.
        drift: The default's step time over time; None: not known.
        tensors, payload_bytes: Collectives of a training step and their bytes; 0: not known.
        warnings: Sentences for people.
    """

    path: str
    view: LogView
    holder: Holder | None
    made_at: str
    verdict: Verdict
    pairs: tuple[Pair, ...] = ()
    compared: Trial | None = None
    replay: Replay | None = None
    explanation: Explanation | None = None
    default: Waiting | None = None
    tuned: Waiting | None = None
    throughout: Waiting | None = None
    cost: Cost | None = None
    attempts: tuple[Attempt, ...] = ()
    drift: Curve | None = None
    tensors: int = 0
    payload_bytes: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether a job writes to the log."""
        return self.holder is not None and not self.view.finished

    @property
    def headroom(self) -> float:
        """What would be gained if the default waited for nothing; 0: not known."""
        if self.default is None or self.default.share >= 1:
            return 0.0
        return 1 / (1 - self.default.share) - 1

    @property
    def other(self) -> Trial | None:
        """The setting that the story is about beside the default, if there is one."""
        return other_of(self.view)


def read_story(path: str, *, explains: bool = True) -> Story:
    """Return what the log at ``path`` says; arguments as ``tell``.

    Raises:
        LogError: It cannot be read, or is no autotune log.
    """
    return tell(read_log(path), explains=explains)


def tell(view: LogView, *, explains: bool = True) -> Story:
    """Return what a log says.

    Args:
        view: The log.
        explains: Ask the surrogate why; that takes a second.

    Raises:
        LogError: Its database cannot be read.
    """
    verdict = judge(view)
    story = Story(
        path=view.path,
        view=view,
        holder=holder(os.path.realpath(view.path)) or _holder_of(view.database),
        made_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        verdict=verdict,
        warnings=view.warnings,
    )
    if view.best is None:
        return story
    result, trials, other = result_of(view), known_trials(view), other_of(view)
    evidence = Evidence(_readings(view))
    number = other.trial_id if other is not None else 0
    # A comparison that goes on, or was cut off, may be of another setting than the best so far.
    compared = number if view.finished else evidence.compared_at_last()
    pairs = evidence.pairs(compared, view.certificate) if compared else ()
    default = evidence.waiting(0, beside=number or None)
    sizes = tensor_sizes(view.run.fingerprint) if view.run is not None else []
    return replace(
        story,
        pairs=pairs,
        compared=next((trial for trial in trials if pairs and trial.trial_id == compared), None),
        replay=_replay(view, result),
        explanation=_explanation(
            trials,
            view,
            other,
            pairs if compared == number else (),
            readings=evidence.read_gains(),
            around=result.params,
        )
        if explains
        else None,
        default=default,
        tuned=evidence.waiting(number, beside=number) if number else None,
        throughout=evidence.waiting(0),
        cost=_cost(view, evidence, default, verdict),
        attempts=_attempts(trials, evidence),
        drift=evidence.default_curve(),
        tensors=len(sizes),
        payload_bytes=sum(sizes),
    )


def _attempts(trials: tuple[Trial, ...], evidence: Evidence) -> tuple[Attempt, ...]:
    ends = evidence.trial_ends_s()
    return tuple(
        Attempt(
            trial=trial,
            at_s=ends.get(trial.trial_id),
            windows=evidence.windows_of(trial.trial_id),
        )
        for trial in trials
    )


def _holder_of(database: str | None) -> Holder | None:
    return None if database is None else holder(os.path.realpath(database))


def _readings(view: LogView) -> Readings:
    if view.database is None or view.run is None:
        return Readings()
    return read_readings(view.database, view.run.run_id)


def known_trials(view: LogView) -> tuple[Trial, ...]:
    """Return the trials of a log, each with what is known of it at last."""
    best = view.standing.best if view.standing is not None else view.best
    return latest(view.trials, best, view.certificate)


def other_of(view: LogView) -> Trial | None:
    """Return the setting that is spoken of beside the default; None: there is none.

    That is what was compared or is to be; without that the trial with the highest gain.
    """
    trials = {trial.trial_id: trial for trial in known_trials(view)}
    certificate, standing = view.certificate, view.standing
    if certificate is not None and certificate.trial_id:
        return trials.get(certificate.trial_id)
    if standing is not None and standing.best.trial_id:
        return trials.get(standing.best.trial_id)
    known = [trial for trial in trials.values() if trial.gain is not None and trial.trial_id]
    if not known:
        return None
    return max(known, key=lambda trial: trial.gain.estimate if trial.gain else -1.0)


def _replay(view: LogView, result: Result) -> Replay:
    params = result.params
    variables = tuple(f"export {name}={text}" for name, text in environment(params).items())
    ranks = str(view.run.size) if view.run is not None else "N"
    ours = params.table is HOROVOD
    start = f"horovodrun -np {ranks} python" if ours else f"torchrun --nproc-per-node {ranks}"
    return Replay(
        params=params,
        is_default=params == type(params)(),
        command=f"autotune replay {shlex.quote(view.path)} -- {start} train.py",
        variables=variables,
        options=" ".join(launcher_arguments(params)) if ours else "",
    )


def _explanation(
    trials: tuple[Trial, ...],
    view: LogView,
    other: Trial | None,
    pairs: tuple[Pair, ...],
    *,
    readings: Mapping[int, tuple[float, float]],
    around: Setting,
) -> Explanation | None:
    if view.database is None or view.run is None or not trials:
        return None
    setting = other.params if other is not None else trials[0].params
    known = other.gain if other is not None else None
    try:
        return explain(
            trials,
            setting,
            around=around if view.finished else setting,
            fingerprint=view.run.fingerprint,
            readings=readings,
            known=known,
            std=_deviation_of(pairs),
        )
    except (AutotuneError, ArithmeticError):  # an old table of parameters, or a flat surrogate
        return None


def _deviation_of(pairs: tuple[Pair, ...]) -> float | None:
    """Return the standard error of the mean log ratio of the pairs; None: too few."""
    logs = [math.log1p(pair.gain) for pair in pairs if pair.gain > -1 and pair.gain < math.inf]
    if len(logs) < 3:
        return None
    mean = sum(logs) / len(logs)
    return math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1) / len(logs))


def _cost(
    view: LogView, evidence: Evidence, default: Waiting | None, verdict: Verdict
) -> Cost | None:
    price = evidence.price()
    if price is None or default is None or view.run is None:
        return None
    budget = view.run.settings.get("budget")
    is_kept = verdict.kind in (Kind.FASTER, Kind.BEYOND_DOUBT)
    return Cost(
        price=price,
        budget=float(budget) if isinstance(budget, int | float) else None,
        break_even=_break_even(price, default, verdict.gain if is_kept else None),
    )


def _break_even(
    price: Price, default: Waiting, gain: Gain | None
) -> tuple[float, float, float] | None:
    if gain is None:
        return None
    estimate, fewest, most = (
        break_even_steps(price.lost_us, default.step_us, one)
        for one in (gain.estimate, gain.high, gain.low)
    )
    return estimate, fewest, most


def state_text(story: Story) -> str:
    """Return whether the run goes on, has ended, or has finished."""
    view = story.view
    if view.damage:
        return "not known: the last line is damaged"
    if view.finished and story.holder is not None:
        return f"finished; in use by {story.holder}, which may be tuning again"
    if view.finished:
        return "finished"
    if story.holder is not None:
        return f"running: {story.holder}"
    if view.run is not None and view.run.state is RunState.RUNNING:
        return "unfinished: the job ended before the tuner, or runs on a host that cannot be seen"
    return "unfinished"
