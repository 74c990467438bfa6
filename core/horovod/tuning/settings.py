"""The settings of a job: the parameters' and the tuner's variables, and those of the runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from autotune.service.variables import VARIABLES as TUNER_VARIABLES
from autotune.space import Parameter
from autotune.tables.further import refusal_of, words_named
from horovod.common.settings import (
    RUNTIME_VARIABLES,
    Settings,
    Substitute,
    Variable,
    parse_settings,
)
from horovod.tuning.table import ENGINE_PARAMETERS, EXPLORE

_MIB = 2**20
_LEAST_LIKELY_BYTES = 1024


def _parser(parameter: Parameter) -> Callable[[str], Any]:
    """Return the parser of a parameter's variable; bytes may be MiB copied out of a log."""
    return parameter.parse if parameter.unit != "bytes" else lambda text: _bytes(parameter, text)


def _bytes(parameter: Parameter, text: str) -> Any:
    try:
        value = parameter.parse(text)
    except ValueError as error:
        hint = _hint_of_mib(text)
        raise ValueError(f"{error}; {hint}" if hint else str(error)) from None
    if not 0 < value < _LEAST_LIKELY_BYTES:
        return value
    remark = f"{parameter.env}={text} means {text} bytes: if it is MiB, {_hint_of_mib(text)}"
    return Substitute(value=value, remark=remark)


def _hint_of_mib(text: str) -> str:
    try:
        in_bytes = float(text) * _MIB
    except ValueError:
        return ""
    if not (math.isfinite(in_bytes) and in_bytes >= 0):
        return ""
    return (
        f"a log has MiB: in bytes that is {int(in_bytes)}, or use 'autotune best LOG --format env'"
    )


VARIABLES: tuple[Variable, ...] = (
    *(
        Variable(env=p.env, parse=_parser(p), default=p.default, parameter=p.name)
        for p in ENGINE_PARAMETERS
    ),
    *(
        Variable(env=v.env, parse=v.parse, default=v.default, agree=v.agree)
        for v in TUNER_VARIABLES
    ),
    *RUNTIME_VARIABLES,
)
"""Every environment variable that a job reads."""


def read_settings(environ: Mapping[str, str]) -> Settings:
    """**Local.** Return the settings that ``environ`` means.

    Raises:
        ValueError: A value is not exactly what its variable wants (all of them are named).
    """
    settings = parse_settings(VARIABLES, environ)
    if why := refusal_of({*settings[EXPLORE], *words_named(settings.fixed)}):
        raise ValueError(f"{EXPLORE} and what is set by AUTOTUNE_*_GRADIENTS: {why}")
    return settings
