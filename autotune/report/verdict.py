"""Is tuned faster, and how sure? The answer in words, for every kind of log."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from autotune.result import NOT_CERTIFIED, setting_text
from autotune.storage.reader import LogView
from autotune.storage.standing import certified_gain
from autotune.trial import Certificate, Gain, Trial, TrialState

READING_NOISE = 0.05
"""Coefficient of variation of a single reading in Horovod's public logs, about."""


class Kind(enum.StrEnum):
    """What a log can say about the gain."""

    FASTER = "faster"
    """The certificate says that the best setting is faster."""
    NOT_PROVEN = "not proven"
    """It was compared in pairs and not proven faster: the default stays."""
    NOTHING_COMPARED = "nothing compared"
    """Tuning has finished without a comparison: the default stays."""
    BEYOND_DOUBT = "beyond doubt"
    """Unfinished; better than the default beyond doubt, without a certificate."""
    UNFINISHED = "unfinished"
    """Unfinished: the default is the answer as long as in doubt."""
    ONE_RANK = "one rank"
    """A job of one rank communicates with nobody."""
    NO_DATABASE = "no database"
    """A CSV of ours without its database: gains are not known."""
    FOREIGN = "foreign"
    """A log of Horovod: single readings, no default among them."""
    EMPTY = "empty"
    """No trial yet."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to the first question.

    Attributes:
        kind: What the log can say.
        answer: In one or two words.
        text: In a sentence.
        notes: What else is to be known about it, a sentence each.
        gain: The gain that is spoken of, with its interval; None: none is known.
        compared: The gain is that of a comparison in pairs.
    """

    kind: Kind
    answer: str
    text: str
    notes: tuple[str, ...] = ()
    gain: Gain | None = None
    compared: bool = False


def percent(value: float) -> str:
    """Return a share in per cent with its sign: ``+3.1 %``."""
    return f"{100 * value:+.1f} %".replace("-0.0", "+0.0")


def share(value: float) -> str:
    """Return a share in per cent without a sign: ``3.1 %``."""
    return f"{100 * value:.1f} %"


def between(gain: Gain) -> str:
    """Return an interval: ``between +23.9 and +38.2 %``."""
    return f"between {percent(gain.low).removesuffix(' %')} and {percent(gain.high)}"


def judge(view: LogView) -> Verdict:
    """Return what a log says about the gain over the default."""
    if view.run is not None and view.run.size == 1:
        return _one_rank(view)
    if view.best is None:
        return _empty(view)
    if view.kind == "horovod":
        return _foreign(view)
    certificate = view.certificate
    if view.finished:
        return _no_database(view) if certificate is None else _certified(view, certificate)
    if view.standing is None:
        return _no_database(view)
    return _unfinished(view)


def _certified(view: LogView, certificate: Certificate) -> Verdict:
    gain = certified_gain(certificate)
    if not certificate.pairs:
        bound = "" if gain is None or not gain.high else f" (at most {percent(gain.high)})"
        return Verdict(
            kind=Kind.NOTHING_COMPARED,
            answer="No",
            text=f"No setting is worth having over the default here{bound}; the default stays.",
            notes=(
                f"Why: {certificate.reason}.",
                "Nothing was compared in pairs, because there was nothing to prove.",
            ),
            gain=None,
        )
    risk = f"1 in {1 / certificate.alpha:.0f} jobs" if certificate.alpha > 0 else "no job"
    notes = [
        f"Compared in {certificate.pairs} pairs of windows side by side, in random order, inside "
        "the job.",
        f"How sure: such a comparison certifies a setting that is not faster in at most {risk}, "
        "and the interval's lower end holds as surely, whenever the test stopped.",
    ]
    if certificate.certified and gain is not None:
        saved = f"a step takes {share(1 / (1 + gain.estimate))} of the default's time"
        return Verdict(
            kind=Kind.FASTER,
            answer="Yes",
            text=f"The tuned setting gains {percent(gain.estimate)} over the default, "
            f"{between(gain)}: {saved}.",
            notes=tuple(notes),
            gain=gain,
            compared=True,
        )
    seen = "" if gain is None else f" ({percent(gain.estimate)}, {between(gain)})"
    what = "The best other setting"
    for trial in view.trials:
        if trial.trial_id == certificate.trial_id != 0:
            what += f", {setting_text(trial.params, beside=view.trials[0].params)},"
    return Verdict(
        kind=Kind.NOT_PROVEN,
        answer="Not proven",
        text=f"{what} was compared with the default and not proven faster{seen}; the default "
        "stays.",
        notes=(*notes, f"The tuner's own words: {certificate.reason}."),
        gain=gain,
        compared=True,
    )


def _unfinished(view: LogView) -> Verdict:
    standing, count = view.standing, _trials(len(view.trials))
    assert standing is not None
    default = view.trials[0].params
    if standing.best.params == default or standing.gain is None:
        return Verdict(
            kind=Kind.UNFINISHED,
            answer="Not known yet",
            text=f"Tuning has not finished; of {count} so far the default is the best.",
            notes=(_resume(view),),
        )
    gain, setting = standing.gain, setting_text(standing.best.params, beside=default)
    ends = between(gain).removeprefix("between ").replace(" and ", " to ")
    spoken = f"{percent(gain.estimate)}, 90 % interval {ends}"
    if standing.proven:
        return Verdict(
            kind=Kind.BEYOND_DOUBT,
            answer="Yes, as far as it goes",
            text=f"Tuning has not finished, but {setting} is better than the default beyond doubt "
            f"({spoken}), {NOT_CERTIFIED}.",
            notes=(_resume(view),),
            gain=gain,
        )
    return Verdict(
        kind=Kind.UNFINISHED,
        answer="Not known yet",
        text=f"Tuning has not finished. The most promising of {count} is {setting} ({spoken}), "
        f"{NOT_CERTIFIED}.",
        notes=(
            "It is the best of several noisy readings, so its gain is likely to be smaller than it "
            "looks; the default is the answer until a comparison in pairs says otherwise.",
            _resume(view),
        ),
        gain=gain,
    )


def _resume(view: LogView) -> str:
    return "The same job with the same log goes on where this one ended."


def _no_database(view: LogView) -> Verdict:
    known = "Tuning has finished" if view.finished else "Tuning has not finished"
    if view.damage:
        known = "Whether tuning has finished is not known: the last line is damaged"
    best = view.answer()
    ratio = _over_default(view.trials, best)
    scores = "" if ratio is None else f" By the scores in the CSV it gains {percent(ratio)}."
    notes = ["Put the .db file back beside the CSV, or report on the .db file itself."]
    if any(trial.score > best.score for trial in view.trials) and view.finished:
        notes.append(
            "The answer is the log's last line. It counts what was read again and compared, so "
            "other trials may have higher scores."
        )
    return Verdict(
        kind=Kind.NO_DATABASE,
        answer="Not known from this file",
        text=f"{known}, but the gain's interval and whether it was certified are in the database "
        f"(.db), which is not beside this CSV.{scores}",
        notes=tuple(notes),
    )


def _over_default(trials: tuple[Trial, ...], best: Trial) -> float | None:
    default = trials[0] if trials else best
    if default.trial_id or best.trial_id == default.trial_id or default.score <= 0:
        return None
    return best.score / default.score - 1


def _foreign(view: LogView) -> Verdict:
    complete = [trial for trial in view.trials if trial.state is TrialState.COMPLETE]
    count = len(complete)
    luck = READING_NOISE * expected_maximum(count)
    return Verdict(
        kind=Kind.FOREIGN,
        answer="This log cannot say",
        text="Horovod's tuner reads every setting once, at different times, and never the default: "
        "no gain follows from its log.",
        notes=(
            f"The setting below has the highest of {count} readings. Such readings usually have "
            f"{share(READING_NOISE)} of noise: the highest of {count} equal settings would look "
            f"{share(luck)} better than they are, by luck alone.",
            "To know, train with this setting and without it, or tune anew with this package.",
        ),
    )


def expected_maximum(count: int) -> float:
    """Return about how far the largest of ``count`` normal values is above the mean, in sigmas.

    Source: Blom (1958), Statistical estimates and transformed beta-variables, for the quantile
    ``(n - 0.375) / (n + 0.25)`` of the largest one.
    """
    from statistics import NormalDist

    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def _one_rank(view: LogView) -> Verdict:
    return Verdict(
        kind=Kind.ONE_RANK,
        answer="No",
        text="The job has one rank: it communicates with nobody, so no setting can make it faster.",
        notes=("Tune with as many ranks as the job will have.",),
    )


def _empty(view: LogView) -> Verdict:
    if view.trials:
        text = f"None of {_trials(len(view.trials))} is complete, so there is no answer."
        return Verdict(kind=Kind.EMPTY, answer="Not known", text=text)
    return Verdict(
        kind=Kind.EMPTY,
        answer="Not known yet",
        text="The log holds no trial yet.",
        notes=(
            "That is so while the job warms up, and after a job with one rank, with every "
            "parameter set by hand, or that ended before the first reading; rank 0 says which in "
            "the job's output.",
        ),
    )


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"


def break_even_steps(lost_us: float, default_us: float, gain: float) -> float:
    """Return after how many steps under the tuned setting the time lost is made up for.

    Args:
        lost_us: Time that tuning lost.
        default_us: Step time of the default.
        gain: Of the tuned setting; 0 or less: infinitely many.
    """
    saved_us = default_us * gain / (1 + gain) if gain > 0 else 0.0
    if lost_us <= 0:
        return 0.0
    return lost_us / saved_us if saved_us > 0 else math.inf
