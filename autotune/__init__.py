"""The tuner, from Python: read logs and results, name parameters, search by oneself.

Names are imported when they are used first, so ``import autotune`` costs nothing: the table of
parameters and logs need the standard library only, ``BayesianOptimizer`` and ``SearchSpace`` need
numpy and scikit-optimize. What is not exported here may change.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.bayes import BayesianOptimizer, Incumbent, Proposal, SearchSpace
    from autotune.errors import (
        AutotuneError,
        InvalidSettingError,
        LogBusyError,
        LogError,
        NoAnswerError,
        TimelineError,
    )
    from autotune.report.notebook import Log, load
    from autotune.result import Result, environment, read_result
    from autotune.space import PARAMETERS, Parameter
    from autotune.storage.reader import LogView, read_log
    from autotune.trial import Certificate, CommParams, Gain, Standing, Trial, TrialState

__all__ = [
    "PARAMETERS",
    "AutotuneError",
    "BayesianOptimizer",
    "Certificate",
    "CommParams",
    "Gain",
    "Incumbent",
    "InvalidSettingError",
    "Log",
    "LogBusyError",
    "LogError",
    "LogView",
    "NoAnswerError",
    "Parameter",
    "Proposal",
    "Result",
    "SearchSpace",
    "Standing",
    "TimelineError",
    "Trial",
    "TrialState",
    "environment",
    "load",
    "read_log",
    "read_result",
]

_HOMES = {
    "autotune.bayes": ("BayesianOptimizer", "Incumbent", "Proposal", "SearchSpace"),
    "autotune.errors": (
        *("AutotuneError", "InvalidSettingError", "LogBusyError", "LogError"),
        *("NoAnswerError", "TimelineError"),
    ),
    "autotune.report.notebook": ("Log", "load"),
    "autotune.result": ("Result", "environment", "read_result"),
    "autotune.space": ("PARAMETERS", "Parameter"),
    "autotune.storage.reader": ("LogView", "read_log"),
    "autotune.trial": ("Certificate", "CommParams", "Gain", "Standing", "Trial", "TrialState"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import an exported name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the exported names beside what the module has already."""
    return sorted({*globals(), *__all__})
