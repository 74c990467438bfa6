"""A configuration with what is known about it: read from a log or a saved result, and compared.

A *saved result* is what ``autotune best LOG --format json`` prints. It is read wherever a log is,
so a job's answer can be kept, and replayed, without its log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from autotune.errors import InvalidSettingError, LogError
from autotune.exact import exact, exact_mib
from autotune.space import BY_NAME, PARAMETERS
from autotune.storage.reader import LogView, read_log
from autotune.trial import CommParams

SCORE_UNIT = "bytes/us, higher is better"
ORDER = tuple(BY_NAME[setting.name] for setting in fields(CommParams))
"""The parameters in the order in which people read them."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A configuration and what is known about it.

    Attributes:
        params: The configuration.
        score: bytes/us, or None.
        finished: Tuning was finalised.
        gain: Certified relative gain in step time over the default, as (estimate, low, high).
        certified: Whether the gain is certified; None: not known.
        job: Where it was found, JSON-safe: ranks, local size, hosts, versions.
        warnings: Sentences for people, from reading the log.
    """

    params: CommParams
    score: float | None = None
    finished: bool = True
    gain: tuple[float, float, float] | None = None
    certified: bool | None = None
    job: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def environment(params: CommParams) -> dict[str, str]:
    """Return {environment variable: text} that puts ``params`` in force."""
    return {
        parameter.env: parameter.format(getattr(params, parameter.name)) for parameter in PARAMETERS
    }


def launcher_values(params: CommParams) -> dict[str, str | bool]:
    """Return the values as the launcher's flags and config file take them: MiB, ms, entries."""
    values: dict[str, str | bool] = {}
    for parameter in ORDER:
        value = getattr(params, parameter.name)
        if parameter.name == "fusion_threshold_bytes":
            values[parameter.name] = exact_mib(value)
        elif parameter.type is bool:
            values[parameter.name] = bool(value)
        else:
            values[parameter.name] = exact(value) if parameter.type is float else str(value)
    return values


def gain_text(result: Result) -> str:
    """Return the gain with its interval for people, e.g. ``+12.1 % (5.0 to 19.4), certified``."""
    if result.gain is None:
        return "not known"
    gain, low, high = (f"{100 * value:+.1f}" for value in result.gain)
    verdict = "certified" if result.certified else "not certified: the default is kept"
    return f"{gain} % over the default ({low} to {high}), {verdict}"


def result_of(view: LogView) -> Result:
    """Return the log's answer with what is known about it.

    Raises:
        NoAnswerError: The log holds no complete trial.
    """
    best, certificate, run = view.answer(), view.certificate, view.run
    gain = certificate and (certificate.gain, certificate.gain_low, certificate.gain_high)
    job = run and {
        "size": run.size,
        "local_size": run.local_size,
        "cross_size": run.cross_size,
        "host": run.host,
        "versions": dict(run.versions),
    }
    warnings = view.warnings
    if not view.finished:
        count = f"{len(view.trials)} trial{'' if len(view.trials) == 1 else 's'}"
        text = f"{view.path}: tuning has not finished; this is the best of {count} so far"
        warnings = (*warnings, text)
    return Result(
        params=best.params,
        score=best.score,
        finished=view.finished,
        gain=gain if gain and None not in gain else None,
        certified=certificate.certified if certificate else None,
        job=job or {},
        warnings=warnings,
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
    params = CommParams.from_dict({name: content[name] for name in BY_NAME})
    names: Sequence[str] = ("gain", "gain_low", "gain_high")
    gain = tuple(float(content[name]) for name in names) if "gain" in content else None
    score, job = content.get("score"), content.get("job", {})
    if not isinstance(job, Mapping):
        raise TypeError(f"job: expected an object, got {job!r}")
    return Result(
        params=params,
        score=None if score is None else float(score),
        finished=content.get("finished") is True,
        gain=gain,  # type: ignore[arg-type]
        certified=content.get("certified"),
        job=dict(job),
    )
