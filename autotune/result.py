"""A configuration with what is known about it: read from a log or a saved result, and compared.

A *saved result* is what ``autotune best LOG --format json`` prints. It is read wherever a log is,
so a job's answer can be kept, and replayed, without its log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import AutotuneError, InvalidSettingError, LogError
from autotune.exact import exact_shown, value_text
from autotune.nccl.start import settings_of as settings_of_start
from autotune.space import HOROVOD
from autotune.storage.reader import LogView, read_log
from autotune.storage.standing import certified_gain
from autotune.tables import settings_of
from autotune.trial import Gain, Setting

SCORE_UNIT = "bytes/us, higher is better"
NOT_CERTIFIED = "not certified yet"
"""Said of a gain until the comparison in pairs: an estimate with a nominal 90 % interval."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A configuration and what is known about it.

    Attributes:
        params: The configuration.
        score: bytes/us, or None.
        finished: Tuning was finalised.
        gain: Relative gain in step time over the default at the same time, as (estimate, low,
            high): the certificate's or, until there is one, of what looks best so far.
        certified: Whether the gain is certified; None: not certified yet, or not known.
        promising: What ``gain`` is about while it is not ``params``: no setting is better than the
            default beyond doubt yet, so the default is the answer.
        job: Where it was found, JSON-safe: ranks, local size, hosts, versions.
        warnings: Sentences for people, from reading the log.
    """

    params: Setting
    score: float | None = None
    finished: bool = True
    gain: tuple[float, float, float] | None = None
    certified: bool | None = None
    promising: Setting | None = None
    job: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def environment(params: Setting) -> dict[str, str]:
    """Return {environment variable: text} that puts ``params`` in force."""
    return {
        parameter.env: parameter.format(getattr(params, parameter.name))
        for parameter in params.table.parameters
    }


def start_up_of(result: Result) -> dict[str, str]:
    """Return {variable of NCCL: text} of what was in force when the result was found."""
    versions = result.job.get("versions")
    return settings_of_start(versions) if isinstance(versions, Mapping) else {}


def start_up_of_log(path: str) -> dict[str, str]:
    """Return ``start_up_of`` what a log says; {} where it says nothing or cannot be read."""
    try:
        return start_up_of(read_result(path))
    except AutotuneError:
        return {}


def launcher_values(params: Setting) -> dict[str, str | bool]:
    """Return the values as the launcher's flags and config file take them: MiB, ms, entries."""
    values: dict[str, str | bool] = {}
    for parameter in params.reading_order():
        value = getattr(params, parameter.name)
        is_switch = parameter.type is bool
        values[parameter.name] = bool(value) if is_switch else exact_shown(parameter, value)
    return values


def launcher_arguments(params: Setting) -> list[str]:
    """Return the arguments of ``horovodrun`` that put ``params`` in force."""
    arguments: list[str] = []
    for name, value in launcher_values(params).items():
        flag = params.table.by_name[name].flag
        if isinstance(value, bool):
            arguments.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            arguments += [flag, value]
    return arguments


def gain_text(result: Result) -> str:
    """Return the gain with its interval for people, e.g. ``+12.1 % (5.0 to 19.4), certified``."""
    if result.gain is None:
        return "not known" if result.finished or not result.job else NOT_CERTIFIED
    gain, low, high = (f"{100 * value:+.1f}" for value in result.gain)
    text = f"{gain} % over the default ({low} to {high})"
    if result.certified is not None or result.finished:
        verdict = (
            "certified"
            if result.certified
            else "not certified for another setting: the default is kept"
        )
        return f"{text}, {verdict}"
    if result.promising is not None:
        text = f"{setting_text(result.promising, beside=result.params)}: {text}"
    return f"{text}, {NOT_CERTIFIED}"


def interval_text(gain: Gain, *, unit: str = "") -> str:
    """Return a gain in per cent with its interval: ``+3.1 (-1.0 to +7.4)``."""
    estimate, low, high = (f"{100 * value:+.1f}" for value in (gain.estimate, gain.low, gain.high))
    return f"{estimate}{unit} ({low} to {high})"


def setting_text(params: Setting, *, beside: Setting) -> str:
    """Return in what a setting differs from another: ``fusion 4 MiB, cycle 0.5 ms``."""
    values, other = params.as_dict(), beside.as_dict()
    changed = [one for one in params.reading_order() if values[one.name] != other[one.name]]
    return ", ".join(value_text(parameter, values[parameter.name]) for parameter in changed)


def result_of(view: LogView) -> Result:
    """Return the log's answer with what is known about it.

    Raises:
        NoAnswerError: The log holds no complete trial.
    """
    best, certificate, run = view.answer(), view.certificate, view.run
    standing = view.standing
    gain = certified_gain(certificate) or (standing.gain if standing is not None else None)
    is_safe = standing is None or standing.best.params == best.params
    job = run and {
        "size": run.size,
        "local_size": run.local_size,
        "cross_size": run.cross_size,
        "host": run.host,
        "versions": dict(run.versions),
    }
    warnings = view.warnings
    if not view.finished:
        warnings = (*warnings, f"{view.path}: {_unfinished_text(view, gain)}")
    return Result(
        params=best.params,
        score=best.score,
        finished=view.finished,
        gain=(gain.estimate, gain.low, gain.high) if gain else None,
        certified=certificate.certified if certificate else None,
        promising=None if standing is None or is_safe else standing.best.params,
        job=job or {},
        warnings=warnings,
    )


def _unfinished_text(view: LogView, gain: Gain | None) -> str:
    """Return what the answer of a log is worth that is not final."""
    count = f"{len(view.trials)} trial{'' if len(view.trials) == 1 else 's'}"
    if view.damage:
        return f"whether tuning has finished is not known; this is the best of {count}"
    standing, answer = view.standing, view.answer()
    if standing is None:
        return f"tuning has not finished; this is the best of {count} so far"
    worth = ""
    if gain is not None:
        estimate, low, high = (f"{100 * x:+.1f}" for x in (gain.estimate, gain.low, gain.high))
        worth = f", gain {estimate} % (90 %: {low} to {high} %)"
    if standing.proven:
        return (
            f"tuning has not finished; of {count} this is the most promising and better than the "
            f"default beyond doubt{worth}"
        )
    if standing.best.params == answer.params:
        return f"tuning has not finished; the answer is the default: the best of {count} so far"
    setting = setting_text(standing.best.params, beside=answer.params)
    return (
        "tuning has not finished; the answer is the default: no setting is better beyond doubt "
        f"yet; most promising of {count}: {setting}{worth}"
    )


def read_result(path: str) -> Result:
    """Return the answer of a log, or a result that was saved as JSON.

    Raises:
        LogError: Neither, or without an answer; the message names the path.
    """
    saved = _read_saved(path)
    return saved if saved is not None else result_of(read_log(path))


def differences(result: Result, *, size: int, local_size: int, versions: Mapping[str, str]) -> str:
    """Return in what a job differs from the one in which the result was found, '' if in nothing.

    What was found under other ranks or versions is a guess here, not a result.
    """
    job = result.job
    found: list[str] = []
    for name, text, here in (("size", "ranks", size), ("local_size", "ranks a host", local_size)):
        if job.get(name, here) != here:
            found.append(f"{job[name]} {text} there, {here} here")
    there = job.get("versions")
    for name, version in sorted(there.items() if isinstance(there, Mapping) else ()):
        if versions.get(name, version) != version:
            found.append(f"{name} {version} there, {versions[name]} here")
    return "; ".join(found)


def _read_saved(path: str) -> Result | None:
    """Return the saved result in the file; None: the file is something else."""
    if not os.path.isfile(path):
        return None  # the reader of logs says what is wrong
    try:
        with open(path, "rb") as file:
            if file.read(1) != b"{":
                return None
            content = json.loads(b"{" + file.read())
    except OSError:
        return None  # the reader of logs says what is wrong
    except (ValueError, RecursionError) as error:
        raise LogError(f"{path}: not a saved result ({error})") from None
    try:
        return _from_json(content)
    except (InvalidSettingError, KeyError, TypeError, ValueError) as error:
        raise LogError(
            f"{path}: not a saved result of 'autotune best --format json' ({error})"
        ) from None


def _from_json(content: Mapping[str, Any]) -> Result:
    kind = settings_of(content.get("table", HOROVOD.name))
    params = kind.from_dict({name: content[name] for name in kind.table.by_name})
    names: Sequence[str] = ("gain", "gain_low", "gain_high")
    gain = tuple(float(content[name]) for name in names) if "gain" in content else None
    score, job, promising = content.get("score"), content.get("job", {}), content.get("promising")
    if not isinstance(job, Mapping):
        raise TypeError(f"job: expected an object, got {job!r}")
    return Result(
        params=params,
        score=None if score is None else float(score),
        finished=content.get("finished") is True,
        gain=gain,  # type: ignore[arg-type]
        certified=content.get("certified"),
        promising=None if promising is None else kind.from_dict(promising),
        job=dict(job),
    )
