"""The settings of a job: the parameters' and the tuner's variables, and those of the runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from autotune.space import PARAMETERS, Parameter
from horovod.common.settings import (
    RUNTIME_VARIABLES,
    Settings,
    Substitute,
    Variable,
    parse_settings,
    real,
    switch,
    whole,
)

_TUNER = "HOROVOD_AUTOTUNE_"
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
        for p in PARAMETERS
    ),
    Variable(env="HOROVOD_AUTOTUNE", parse=switch("HOROVOD_AUTOTUNE"), default=False),
    Variable(env=_TUNER + "LOG", parse=str, agree=False),
    Variable(env=_TUNER + "DB", parse=str, agree=False),
    Variable(env=_TUNER + "REPLAY", parse=str),
    Variable(env=_TUNER + "REPLAY_CHECK", parse=switch(_TUNER + "REPLAY_CHECK"), default=False),
    Variable(
        env=_TUNER + "WARMUP_SAMPLES", parse=whole(_TUNER + "WARMUP_SAMPLES", 0, "samples", 10**6)
    ),
    Variable(
        env=_TUNER + "STEPS_PER_SAMPLE",
        parse=whole(_TUNER + "STEPS_PER_SAMPLE", 1, "steps", 10**6),
    ),
    Variable(
        env=_TUNER + "BAYES_OPT_MAX_SAMPLES",
        parse=whole(_TUNER + "BAYES_OPT_MAX_SAMPLES", 1, "trials", 10**4),
        default=20,
    ),
    Variable(
        env=_TUNER + "GAUSSIAN_PROCESS_NOISE",
        parse=real(_TUNER + "GAUSSIAN_PROCESS_NOISE", 0, 1, ""),
    ),
    Variable(
        env=_TUNER + "BUDGET",
        parse=real(_TUNER + "BUDGET", 0, 1, " (share of the time)"),
        default=0.05,
    ),
    Variable(env=_TUNER + "PRIOR", parse=switch(_TUNER + "PRIOR"), default=True),
    Variable(env=_TUNER + "SEED", parse=whole(_TUNER + "SEED", 0, "", 2**32 - 1)),
    *RUNTIME_VARIABLES,
)
"""Every environment variable that a job reads."""


def read_settings(environ: Mapping[str, str]) -> Settings:
    """**Local.** Return the settings that ``environ`` means.

    Raises:
        ValueError: A value is not exactly what its variable wants (all of them are named).
    """
    return parse_settings(VARIABLES, environ)
