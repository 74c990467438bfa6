"""The settings of a job: the parameters' and the tuner's variables, and those of the runtime."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.space import PARAMETERS
from horovod.common.settings import (
    RUNTIME_VARIABLES,
    Settings,
    Variable,
    parse_settings,
    real,
    switch,
    whole,
)

_TUNER = "HOROVOD_AUTOTUNE_"

VARIABLES: tuple[Variable, ...] = (
    *(Variable(env=p.env, parse=p.parse, default=p.default, parameter=p.name) for p in PARAMETERS),
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
