"""Environment variables: what one is, how they are read, and those of the runtime itself.

They are read once per ``hvd.init()``, strictly: a value that is not exactly what the variable wants
is an error that names variable, value, unit and range; nothing is silently read as 0. An empty
value counts as unset. ``horovod.tuning.settings`` adds the parameters' and the tuner's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.common import secret

_LAST_CORE = 1023
"""The last one that a ``cpu_set_t`` has room for."""
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
_LEVEL_SYNONYMS = {
    "warn": "warning",
    "err": "error",
    "critical": "fatal",
    "crit": "fatal",
    "off": "fatal",
    "none": "fatal",
    "notice": "info",
    "verbose": "debug",
}
"""Names of levels in other loggers, which job scripts pass on: the nearest of ours."""

IGNORED_VARIABLES = (
    "HOROVOD_TORUS_ALLREDUCE",
    "HOROVOD_BATCH_D2D_MEMCOPIES",
    "HOROVOD_ENABLE_ASYNC_COMPLETION",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE",
    "HOROVOD_DISABLE_NVTX_RANGES",
    "HOROVOD_ENABLE_XLA_OPS",
    "HOROVOD_MPI_THREADS_DISABLE",
)
"""Variables of Horovod without a meaning here; also every ``CCL_*`` and ``HOROVOD_CCL_*``."""


@dataclass(frozen=True, kw_only=True)
class Substitute:
    """What a variable's parser returns where the wish cannot be met and the job goes on.

    Attributes:
        value: What is used instead.
        remark: What rank 0 warns of, once.
    """

    value: Any
    remark: str


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One environment variable.

    Attributes:
        env: Its name.
        parse: Text to value or ``Substitute``; raises ValueError with the whole message.
        default: Value when unset.
        agree: All ranks must have the same value.
        parameter: Name of the communication parameter whose first value this is, if any.
    """

    env: str
    parse: Callable[[str], Any]
    default: Any = None
    agree: bool = True
    parameter: str | None = None


def _wrong(env: str, expected: str, text: str) -> ValueError:
    return ValueError(f"{env}: expected {expected}, got {text!r}; correct it or unset it")


def real(env: str, low: float, high: float, unit: str) -> Callable[[str], float]:
    """Return a parser of numbers from ``low`` to ``high``; ``unit`` as in " of seconds"."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise _wrong(env, f"a number{unit} between {low:.15g} and {high:.15g}", text)
        return value

    return parse


def switch(env: str) -> Callable[[str], bool]:
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


def log_level(text: str) -> int | Substitute:
    """Return the index of the level that ``text`` names, also by another logger's name.

    A level never ends a job: one that nobody knows is "warning", with a remark.
    """
    name = text.strip().lower()
    name = _LEVEL_SYNONYMS.get(name, name)
    if name in LOG_LEVELS:
        return LOG_LEVELS.index(name)
    levels = ", ".join(LOG_LEVELS)
    remark = f"HOROVOD_LOG_LEVEL={text}: not a level ({levels}); warning is used"
    return Substitute(value=LOG_LEVELS.index("warning"), remark=remark)


def _cores(text: str) -> tuple[int, ...]:
    cores = [core.strip() for core in text.split(",")]
    if not all(core.isdecimal() and len(core) < 10 and int(core) <= _LAST_CORE for core in cores):
        expected = f"core numbers up to {_LAST_CORE} such as 0,1 (one per local rank)"
        raise _wrong("HOROVOD_THREAD_AFFINITY", expected, text)
    return tuple(int(core) for core in cores)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 16):
        raise _wrong("HOROVOD_GLOO_RENDEZVOUS_PORT", "a port from 1 to 65535", text)
    return int(text)


def _fan_out(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise _wrong("HOROVOD_CONTROL_FANOUT", "a number of ranks, 0: the engine's choice", text)
    return int(text)


def _mpi_or_gloo(env: str) -> Callable[[str], str | Substitute]:
    def parse(text: str) -> str | Substitute:
        name = text.lower()
        if name in ("mpi", "gloo"):
            return name
        if name not in ("ccl", "ddl", "jsrun", "mlsl", "nccl"):
            raise _wrong(env, "mpi or gloo (own TCP)", text)
        remark = f"{env}={text}: this build has no {name}; the job uses what started it"
        return Substitute(value="", remark=remark)

    return parse


_HOUR = 3600.0

RUNTIME_VARIABLES: tuple[Variable, ...] = (
    Variable(
        env="HOROVOD_STALL_CHECK_DISABLE",
        parse=switch("HOROVOD_STALL_CHECK_DISABLE"),
        default=False,
    ),
    Variable(
        env="HOROVOD_STALL_CHECK_TIME_SECONDS",
        parse=real("HOROVOD_STALL_CHECK_TIME_SECONDS", 0, 24 * _HOUR, " of seconds"),
        default=60.0,
    ),
    Variable(
        env="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        parse=real("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0, 240 * _HOUR, " of seconds"),
        default=0.0,
    ),
    Variable(
        env="HOROVOD_LOG_LEVEL",
        parse=log_level,
        default=LOG_LEVELS.index("warning"),
        agree=False,
    ),
    Variable(env="HOROVOD_THREAD_AFFINITY", parse=_cores, default=(), agree=False),
    Variable(env="HOROVOD_CONTROL_FANOUT", parse=_fan_out, default=0),
    Variable(
        env="HOROVOD_DISABLE_GROUP_FUSION",
        parse=switch("HOROVOD_DISABLE_GROUP_FUSION"),
        default=False,
    ),
    Variable(
        env="HOROVOD_DYNAMIC_PROCESS_SETS",
        parse=switch("HOROVOD_DYNAMIC_PROCESS_SETS"),
        default=False,
        agree=False,
    ),
    Variable(env="HOROVOD_HOSTNAME", parse=str, agree=False),
    Variable(env=secret.ENV, parse=secret.parse),
    Variable(env="HOROVOD_TIMELINE", parse=str, agree=False),
    Variable(
        env="HOROVOD_TIMELINE_MARK_CYCLES",
        parse=switch("HOROVOD_TIMELINE_MARK_CYCLES"),
        default=False,
        agree=False,
    ),
    Variable(
        env="HOROVOD_CONTROLLER",
        parse=_mpi_or_gloo("HOROVOD_CONTROLLER"),
        default="",
        agree=False,  # the ranks have met
    ),
    Variable(
        env="HOROVOD_CPU_OPERATIONS",
        parse=_mpi_or_gloo("HOROVOD_CPU_OPERATIONS"),
        default="",
        agree=False,
    ),
    Variable(
        env="HOROVOD_GLOO_TIMEOUT_SECONDS",
        parse=real("HOROVOD_GLOO_TIMEOUT_SECONDS", 1e-3, 240 * _HOUR, " of seconds"),
        agree=False,
    ),
    Variable(env="HOROVOD_ELASTIC_CHECKPOINT", parse=str),
    Variable(env="HOROVOD_GLOO_IFACE", parse=str, agree=False),
    Variable(env="HOROVOD_GLOO_RENDEZVOUS_ADDR", parse=str, agree=False),
    Variable(
        env="HOROVOD_GLOO_RENDEZVOUS_PORT",
        parse=_port,
        agree=False,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one rank.

    Attributes:
        variables: What could be set.
        values: {variable: value}, every one of ``variables``.
        explicit: Variables that the user set.
        remarks: What rank 0 warns of: wishes that are not met.
        ignored: Variables that are set and mean nothing here.
    """

    variables: Sequence[Variable]
    values: Mapping[str, Any]
    explicit: frozenset[str]
    remarks: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __getitem__(self, env: str) -> Any:
        return self.values[env]

    @property
    def params(self) -> dict[str, Any]:
        """{parameter name: value} that the job starts with."""
        return {v.parameter: self.values[v.env] for v in self.variables if v.parameter}

    @property
    def fixed(self) -> dict[str, Any]:
        """{parameter name: value} of the parameters that the user set explicitly."""
        explicit = {v.parameter for v in self.variables if v.env in self.explicit}
        return {name: value for name, value in self.params.items() if name in explicit}

    def with_params(self, params: Mapping[str, Any] | None) -> Settings:
        """Return these settings with other starting values, by parameter name; None: no others.

        What is explicit stays what it is: a replayed value is not one that the user set.
        """
        if params is None:
            return self
        replaced = {
            v.env: params.get(v.parameter, self.values[v.env])
            for v in self.variables
            if v.parameter
        }
        return replace(self, values={**self.values, **replaced})

    @property
    def to_agree(self) -> dict[str, Any]:
        """{variable: value} that must be the same on all ranks; of a secret its fingerprint."""
        return {v.env: _to_compare(self.values[v.env]) for v in self.variables if v.agree}


def parse_settings(variables: Sequence[Variable], environ: Mapping[str, str]) -> Settings:
    """**Local.** Return the settings that ``environ`` means.

    Args:
        variables: What can be set.
        environ: The environment of this process.

    Raises:
        ValueError: A value is not exactly what its variable wants (all of them are named).
    """
    values: dict[str, Any] = {}
    explicit: set[str] = set()
    errors: list[str] = []
    remarks: list[str] = []
    for variable in variables:
        text = environ.get(variable.env, "").strip()
        values[variable.env] = variable.default
        if not text:
            continue
        explicit.add(variable.env)
        try:
            value = variable.parse(text)
        except ValueError as error:
            errors.append(str(error))
            continue
        if isinstance(value, Substitute):
            remarks.append(value.remark)
            value = value.value
        values[variable.env] = value
    if errors:
        raise ValueError("; ".join(errors))
    return Settings(
        variables=variables,
        values=values,
        explicit=frozenset(explicit),
        remarks=tuple(remarks),
        ignored=ignored_variables(environ),
    )


def ignored_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """**Local.** Return Horovod's variables in ``environ`` that mean nothing here."""
    prefixes = ("CCL_", "HOROVOD_CCL_")
    return tuple(
        name
        for name in sorted(environ)
        if environ[name].strip() and (name in IGNORED_VARIABLES or name.startswith(prefixes))
    )


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

    @property
    def values(self) -> tuple[Any, ...]:
        """The fields in order, as plain values."""
        start = None if self.start is None else dict(self.start)
        return dict(self.to_agree), self.error, start, self.process_sets


def find_error(reports: list[RankReport]) -> str | None:
    """**Local.** Return the one message that all ranks raise, or None; equal on every rank.

    Args:
        reports: By rank, of length size.
    """
    failed = [(rank, report.error) for rank, report in enumerate(reports) if report.error]
    if failed:
        first = failed[0][1]
        same = [rank for rank, error in failed if error == first]
        return f"{first} ({ranks_text(same, len(reports))})"
    return _find_disagreement([report.to_agree for report in reports])


def _find_disagreement(values: list[Mapping[str, Any]]) -> str | None:
    for env in values[0]:
        by_value: dict[Any, list[int]] = {}
        for rank, row in enumerate(values):
            by_value.setdefault(row[env], []).append(rank)
        if len(by_value) > 1:
            found = ", ".join(
                f"{_show(value)} on {ranks_text(ranks)}" for value, ranks in by_value.items()
            )
            return f"{env} must be the same on all ranks: got {found}; {_advice(env)}"
    return None


def _advice(env: str) -> str:
    if env == secret.ENV:
        return "set it on every host itself: launchers would carry it unencrypted"
    return (
        f"pass it to all hosts: 'mpirun -x {env}' (Open MPI), 'mpiexec -genv {env} VALUE' (MPICH, "
        f"Intel MPI), 'aprun -e {env}=VALUE', 'srun --export=ALL'"
    )


def _to_compare(value: Any) -> Any:
    return value.fingerprint if isinstance(value, secret.Secret) else value


def _show(value: Any) -> str:
    if value is None:
        return "unset"
    return str(int(value)) if isinstance(value, bool) else str(value)


def ranks_text(ranks: Sequence[int], size: int | None = None) -> str:
    """Return how people call ``ranks``, out of ``size`` where that helps."""
    if len(ranks) == size:
        return f"on all {size} ranks" if size > 1 else "on the only rank"
    noun = "rank" if len(ranks) == 1 else "ranks"
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    return f"{noun} {shown}" + (f" of {size}" if size else "")
