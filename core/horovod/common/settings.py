"""Every environment variable of the runtime: one table, read once per ``hvd.init()``, strictly.

A value that is not exactly what the variable wants is an error that names variable, value, unit
and range; nothing is silently read as 0. An empty value counts as unset. The five communication
parameters come from the table in ``autotune.space``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.space import PARAMETERS

_LAST_CORE = 1023
"""The last one that a ``cpu_set_t`` has room for."""
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One environment variable.

    Attributes:
        env: Its name.
        parse: Text to value; raises ValueError with the whole message.
        default: Value when unset.
        agree: All ranks must have the same value.
    """

    env: str
    parse: Callable[[str], Any]
    default: Any = None
    agree: bool = True


def _wrong(env: str, expected: str, text: str) -> ValueError:
    return ValueError(f"{env}: expected {expected}, got {text!r}; correct it or unset it")


def _whole(env: str, low: int, unit: str, high: int = 2**31 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text, 10)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            of = f" of {unit}" if unit else ""
            raise _wrong(env, f"a whole number{of} between {low} and {high}", text)
        return value

    return parse


def _real(env: str, low: float, high: float, unit: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise _wrong(env, f"a number{unit} between {low:.15g} and {high:.15g}", text)
        return value

    return parse


def _switch(env: str) -> Callable[[str], bool]:
    def parse(text: str) -> bool:
        try:
            value = int(text, 10)
        except ValueError:
            value = -1
        if value < 0:
            raise _wrong(env, "0 (off) or 1 (on)", text)
        return value > 0

    return parse


def _log_level(text: str) -> int:
    if text.lower() not in LOG_LEVELS:
        raise _wrong("HOROVOD_LOG_LEVEL", f"one of {', '.join(LOG_LEVELS)}", text)
    return LOG_LEVELS.index(text.lower())


def _cores(text: str) -> tuple[int, ...]:
    cores = [core.strip() for core in text.split(",")]
    if not all(core.isdecimal() and len(core) < 10 and int(core) <= _LAST_CORE for core in cores):
        expected = f"core numbers up to {_LAST_CORE} such as 0,1 (one per local rank)"
        raise _wrong("HOROVOD_THREAD_AFFINITY", expected, text)
    return tuple(int(core) for core in cores)


def _only_mpi(env: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() != "mpi":
            raise _wrong(
                env, "mpi, the only one that this build has (there is no gloo or ccl)", text
            )
        return "mpi"

    return parse


_HOUR = 3600.0
_TUNER = "HOROVOD_AUTOTUNE_"

VARIABLES: tuple[Variable, ...] = (
    *(Variable(env=p.env, parse=p.parse, default=p.default) for p in PARAMETERS),
    Variable(env="HOROVOD_AUTOTUNE", parse=_switch("HOROVOD_AUTOTUNE"), default=False),
    Variable(env=_TUNER + "LOG", parse=str, agree=False),
    Variable(env=_TUNER + "DB", parse=str, agree=False),
    Variable(env=_TUNER + "REPLAY", parse=str),
    Variable(env=_TUNER + "REPLAY_CHECK", parse=_switch(_TUNER + "REPLAY_CHECK"), default=False),
    Variable(
        env=_TUNER + "WARMUP_SAMPLES", parse=_whole(_TUNER + "WARMUP_SAMPLES", 0, "samples", 10**6)
    ),
    Variable(
        env=_TUNER + "STEPS_PER_SAMPLE",
        parse=_whole(_TUNER + "STEPS_PER_SAMPLE", 1, "steps", 10**6),
    ),
    Variable(
        env=_TUNER + "BAYES_OPT_MAX_SAMPLES",
        parse=_whole(_TUNER + "BAYES_OPT_MAX_SAMPLES", 1, "trials", 10**4),
        default=20,
    ),
    Variable(
        env=_TUNER + "GAUSSIAN_PROCESS_NOISE",
        parse=_real(_TUNER + "GAUSSIAN_PROCESS_NOISE", 0, 1, ""),
    ),
    Variable(
        env=_TUNER + "BUDGET",
        parse=_real(_TUNER + "BUDGET", 0, 1, " (share of the time)"),
        default=0.05,
    ),
    Variable(env=_TUNER + "PRIOR", parse=_switch(_TUNER + "PRIOR"), default=True),
    Variable(env=_TUNER + "SEED", parse=_whole(_TUNER + "SEED", 0, "", 2**32 - 1)),
    Variable(
        env="HOROVOD_STALL_CHECK_DISABLE",
        parse=_switch("HOROVOD_STALL_CHECK_DISABLE"),
        default=False,
    ),
    Variable(
        env="HOROVOD_STALL_CHECK_TIME_SECONDS",
        parse=_real("HOROVOD_STALL_CHECK_TIME_SECONDS", 0, 24 * _HOUR, " of seconds"),
        default=60.0,
    ),
    Variable(
        env="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        parse=_real("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0, 240 * _HOUR, " of seconds"),
        default=0.0,
    ),
    Variable(
        env="HOROVOD_LOG_LEVEL",
        parse=_log_level,
        default=LOG_LEVELS.index("warning"),
        agree=False,
    ),
    Variable(env="HOROVOD_THREAD_AFFINITY", parse=_cores, default=(), agree=False),
    Variable(
        env="HOROVOD_DISABLE_GROUP_FUSION",
        parse=_switch("HOROVOD_DISABLE_GROUP_FUSION"),
        default=False,
    ),
    Variable(
        env="HOROVOD_DYNAMIC_PROCESS_SETS",
        parse=_switch("HOROVOD_DYNAMIC_PROCESS_SETS"),
        default=False,
        agree=False,
    ),
    Variable(env="HOROVOD_HOSTNAME", parse=str, agree=False),
    Variable(env="HOROVOD_TIMELINE", parse=str, agree=False),
    Variable(
        env="HOROVOD_TIMELINE_MARK_CYCLES",
        parse=_switch("HOROVOD_TIMELINE_MARK_CYCLES"),
        default=False,
        agree=False,
    ),
    Variable(env="HOROVOD_CONTROLLER", parse=_only_mpi("HOROVOD_CONTROLLER"), default="mpi"),
    Variable(
        env="HOROVOD_CPU_OPERATIONS", parse=_only_mpi("HOROVOD_CPU_OPERATIONS"), default="mpi"
    ),
)


@dataclass(frozen=True)
class Settings:
    """The settings of one rank.

    Attributes:
        values: {variable: value}, every row of ``VARIABLES``.
        explicit: Variables that the user set.
    """

    values: Mapping[str, Any]
    explicit: frozenset[str]

    def __getitem__(self, env: str) -> Any:
        return self.values[env]

    @property
    def params(self) -> dict[str, Any]:
        """{parameter name: value} that the job starts with."""
        return {p.name: self.values[p.env] for p in PARAMETERS}

    @property
    def fixed(self) -> dict[str, Any]:
        """{parameter name: value} of the parameters that the user set explicitly."""
        return {p.name: self.values[p.env] for p in PARAMETERS if p.env in self.explicit}

    def with_params(self, params: Mapping[str, Any] | None) -> Settings:
        """Return these settings with other starting values, by parameter name; None: no others.

        What is explicit stays what it is: a replayed value is not one that the user set.
        """
        if params is None:
            return self
        replaced = {p.env: params[p.name] for p in PARAMETERS}
        return Settings({**self.values, **replaced}, self.explicit)

    @property
    def to_agree(self) -> dict[str, Any]:
        """{variable: value} that must be the same on all ranks."""
        return {v.env: self.values[v.env] for v in VARIABLES if v.agree}


def read_settings(environ: Mapping[str, str]) -> Settings:
    """**Local.** Return the settings that ``environ`` means.

    Raises:
        ValueError: A value is not exactly what its variable wants (all of them are named).
    """
    values: dict[str, Any] = {}
    explicit: set[str] = set()
    errors: list[str] = []
    for variable in VARIABLES:
        text = environ.get(variable.env, "").strip()
        values[variable.env] = variable.default
        if not text:
            continue
        explicit.add(variable.env)
        try:
            values[variable.env] = variable.parse(text)
        except ValueError as error:
            errors.append(str(error))
    if errors:
        raise ValueError("; ".join(errors))
    return Settings(values, frozenset(explicit))


@dataclass(frozen=True)
class RankReport:
    """What one rank tells all others at init: its values that must agree, or its error.

    ``start`` of rank 0, if given, is what all ranks start with, as {parameter name: value}.
    ``process_sets``: per set of ``hvd.init``, its ranks and whether they came from a communicator.
    """

    to_agree: Mapping[str, Any]
    error: str | None = None
    start: Mapping[str, Any] | None = None
    process_sets: tuple[tuple[tuple[int, ...], bool], ...] = ()


def find_error(reports: list[RankReport]) -> str | None:
    """**Local.** Return the one message that all ranks raise, or None; equal on every rank.

    Args:
        reports: By rank, of length size.
    """
    failed = [(rank, report.error) for rank, report in enumerate(reports) if report.error]
    if failed:
        first = failed[0][1]
        same = [rank for rank, error in failed if error == first]
        return f"{first} ({_ranks(same, len(reports))})"
    return _find_disagreement([report.to_agree for report in reports])


def _find_disagreement(values: list[Mapping[str, Any]]) -> str | None:
    for env in values[0]:
        by_value: dict[Any, list[int]] = {}
        for rank, row in enumerate(values):
            by_value.setdefault(row[env], []).append(rank)
        if len(by_value) > 1:
            found = ", ".join(
                f"{_show(value)} on {_ranks(ranks)}" for value, ranks in by_value.items()
            )
            return (
                f"{env} must be the same on all ranks: got {found}; pass it to all hosts: "
                f"'mpirun -x {env}' (Open MPI), 'mpiexec -genv {env} VALUE' (MPICH, Intel MPI), "
                f"'aprun -e {env}=VALUE', 'srun --export=ALL'"
            )
    return None


def _show(value: Any) -> str:
    if value is None:
        return "unset"
    return str(int(value)) if isinstance(value, bool) else str(value)


def _ranks(ranks: list[int], size: int | None = None) -> str:
    """Return how people call ``ranks``, out of ``size`` where that helps."""
    if len(ranks) == size:
        return f"on all {size} ranks" if size > 1 else "on the only rank"
    noun = "rank" if len(ranks) == 1 else "ranks"
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    return f"{noun} {shown}" + (f" of {size}" if size else "")
