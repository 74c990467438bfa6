"""The tuner's own environment variables: one row each, whichever runtime reads them.

An empty value counts as unset; a value that is not exactly what the variable wants is an error that
names variable, value, unit and range.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import InvalidSettingError
from autotune.storage.placeholders import expand
from autotune.tables.further import refusal_of
from autotune.tuning.steps.records import TunerSettings

PREFIX = "HOROVOD_AUTOTUNE"


@dataclass(frozen=True, kw_only=True)
class TunerVariable:
    """One environment variable.

    Attributes:
        env: Its name.
        parse: Text to value; raises ValueError with the whole message.
        default: Value when unset.
        agree: All ranks must have the same value.
        field: The field of ``TunerSettings`` that it sets, if any.
    """

    env: str
    parse: Callable[[str], Any]
    default: Any = None
    agree: bool = True
    field: str | None = None


def _wrong(env: str, expected: str, text: str) -> ValueError:
    return ValueError(f"{env}: expected {expected}, got {text!r}; correct it or unset it")


def _switch(env: str) -> Callable[[str], bool]:
    """Return a parser of 0 (off) and whole numbers above it (on)."""

    def parse(text: str) -> bool:
        try:
            value = int(text, 10)
        except ValueError:
            value = -1
        if value < 0:
            raise _wrong(env, "0 (off) or 1 (on)", text)
        return value > 0

    return parse


def _number(
    env: str, kind: type[int] | type[float], low: int, high: int, unit: str
) -> Callable[[str], int | float]:
    """Return a parser of numbers from ``low`` to ``high``; ``unit`` as in " of steps"."""
    what = "a whole number" if kind is int else "a number"

    def parse(text: str) -> int | float:
        try:
            value: int | float = int(text, 10) if kind is int else float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise _wrong(env, f"{what}{unit} between {low} and {high}", text)
        return value

    return parse


def _words(env: str) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of words with commas between them (``autotune.tables.further``)."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(sorted({word.strip() for word in text.split(",")}))
        if why := refusal_of(words):
            raise ValueError(f"{env}: {why}; correct it or unset it")
        return words

    return parse


def _setting(
    name: str,
    field: str,
    kind: type[int] | type[float],
    low: int,
    high: int,
    unit: str = "",
    default: Any = None,
) -> TunerVariable:
    env = f"{PREFIX}_{name}"
    parse = _number(env, kind, low, high, unit)
    return TunerVariable(env=env, parse=parse, default=default, field=field)


VARIABLES: tuple[TunerVariable, ...] = (
    TunerVariable(env=PREFIX, parse=_switch(PREFIX), default=False),
    TunerVariable(env=f"{PREFIX}_LOG", parse=str, agree=False),
    TunerVariable(env=f"{PREFIX}_DB", parse=str, agree=False),
    TunerVariable(env=f"{PREFIX}_EXPLORE", parse=_words(f"{PREFIX}_EXPLORE"), default=()),
    TunerVariable(env=f"{PREFIX}_REPLAY", parse=str),
    TunerVariable(
        env=f"{PREFIX}_REPLAY_CHECK", parse=_switch(f"{PREFIX}_REPLAY_CHECK"), default=False
    ),
    _setting("WARMUP_SAMPLES", "warmup_samples", int, 0, 10**6, " of samples"),
    _setting("STEPS_PER_SAMPLE", "steps_per_sample", int, 1, 10**6, " of steps"),
    _setting("BAYES_OPT_MAX_SAMPLES", "max_samples", int, 1, 10**4, " of trials", 20),
    _setting("GAUSSIAN_PROCESS_NOISE", "noise", float, 0, 1),
    _setting("BUDGET", "budget", float, 0, 1, " (share of the time)", 0.05),
    TunerVariable(
        env=f"{PREFIX}_PRIOR", parse=_switch(f"{PREFIX}_PRIOR"), default=True, field="prior"
    ),
    _setting("SEED", "seed", int, 0, 2**32 - 1),
)
"""Every variable of the tuner."""


def read_variables(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return {variable: value} of all of them.

    Raises:
        InvalidSettingError: Values that are not what their variables want; all of them are named.
    """
    values: dict[str, Any] = {}
    errors: list[str] = []
    for variable in VARIABLES:
        text = environ.get(variable.env, "").strip()
        try:
            values[variable.env] = variable.parse(text) if text else variable.default
        except ValueError as error:
            errors.append(str(error))
    if errors:
        raise InvalidSettingError("; ".join(errors))
    return values


def tuner_settings(values: Mapping[str, Any]) -> TunerSettings:
    """Return the tuner's settings, of values by variable."""
    return TunerSettings(**{row.field: values[row.env] for row in VARIABLES if row.field})


def log_path(given: str | None, variable: str, environ: Mapping[str, str]) -> str | None:
    """Return the path in ``variable`` with ``{job_id}`` and ``{host}`` filled in.

    Raises:
        AutotuneError: No queue says what the job's id is.
    """
    return given and expand(given, variable, environ, host=socket.gethostname())
