"""The table of communication parameters: one row per parameter, the single source of every name.

Environment variables, launcher flags, CSV columns, SQLite columns, defaults and bounds all come
from a ``Table``. The one here is that of the runtime ``horovod``; what else is tuned has a table of
its own in ``autotune.tables``. Two domains are kept apart:

* the *valid* domain is what a user may set and what a foreign log may hold;
* the *search* domain is what the tuner proposes; it contains the default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from autotune.errors import InvalidSettingError

Value = int | float | bool
Scale = Literal["log2", "log", "linear", "choice", "bool", "listed"]

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One tunable parameter.

    Attributes:
        name: Field of ``CommParams``, key in JSON and column in SQLite.
        unit: Unit of the value, for people ("bytes", "ms", "entries", "0 or 1").
        type: Python type of the value.
        default: Value when neither the user nor the tuner says anything.
        valid_low, valid_high: Closed valid domain, in ``unit``.
        search_low, search_high: Closed search domain, in ``unit``.
        scale: How the search domain is mapped to [0, 1].
        listed: Values proposed, with the scale "listed".
        names: Words for 0, 1, 2, ...; (): numbers.
        zero_is_special: 0 is a search point of its own beside the range.
        zero_word: What people call it in a sentence ("cache off").
        zero_means: The value that 0 stands beside in the search; None: it continues the range at
            its low end.
        saturates_at: Where larger values begin to behave alike: at the "tensors" of a training
            step, or its "payload" in bytes; None: nowhere.
        word: What people call it in a sentence ("fusion 16 MiB").
        shown_unit: Unit in which people, the CSV and the launcher's option say the value; "": none.
        units_in_shown: How many of ``unit`` are one of ``shown_unit`` (2**20 bytes: one MiB).
        operation: The only operation that it acts on; None: all.
        sparing: Value that slows computation least; None: all alike.
        env: Environment variable that sets (and thereby fixes) the parameter.
        flag: Flag of ``horovodrun``.
        column: Column of the CSV log.
    """

    name: str
    unit: str
    type: type
    default: Value
    valid_low: float
    valid_high: float
    search_low: float
    search_high: float
    scale: Scale
    listed: tuple[Value, ...] = ()
    names: tuple[str, ...] = ()
    zero_is_special: bool = False
    zero_word: str = "off"
    zero_means: float | None = None
    saturates_at: Literal["tensors", "payload"] | None = None
    word: str
    shown_unit: str = ""
    units_in_shown: int = 1
    operation: str | None = None
    sparing: Value | None = None
    env: str
    flag: str
    column: str

    def check(self, value: object, *, source: str | None = None) -> Value:
        """Return ``value`` as this parameter's type.

        Args:
            value: A number or bool, in ``unit``.
            source: What to call the value in the message (default: the parameter's name).

        Raises:
            InvalidSettingError: Not a number, not whole where it must be, or outside the valid
                domain.
        """
        name = source or self.name
        if not isinstance(value, int | float):
            raise InvalidSettingError(self._message(name, value))
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or not self.valid_low <= number <= self.valid_high:
            raise InvalidSettingError(self._message(name, value))
        if self.type is float:
            return number
        if number != int(number):
            raise InvalidSettingError(self._message(name, value))
        return bool(number) if self.type is bool else int(value)

    def parse(self, text: str) -> Value:
        """Return the value that the environment variable's ``text`` means.

        Raises:
            InvalidSettingError: The text is not a number of this parameter's type and domain, e.g.
                ``HOROVOD_FUSION_THRESHOLD=64MB``.
        """
        stripped = text.strip()
        try:
            number: Value = float(stripped) if self.type is float else int(stripped, 10)
        except ValueError:
            raise InvalidSettingError(self._message(self.env, text)) from None
        return self.check(number, source=self.env)

    def of_shown(self, number: float, *, source: str | None = None) -> float:
        """Return the value that ``number`` of ``shown_unit`` means: a whole one where those differ.

        Args:
            number: The value as people, the CSV and the launcher's option say it.
            source: What to call it in the message (default: the column).

        Raises:
            InvalidSettingError: The number is not finite.
        """
        if self.units_in_shown == 1:
            return number
        if not math.isfinite(number):
            name = source or self.column
            raise InvalidSettingError(f"{name}: expected {self.shown_unit}, got {number}")
        return int(number * self.units_in_shown)

    def format(self, value: Value) -> str:
        """Return ``value`` as the environment variable wants it; ``parse`` inverts it."""
        return repr(float(value)) if self.type is float else str(int(value))

    def _message(self, name: str, value: object) -> str:
        low, high = f"{self.valid_low:.15g}", f"{self.valid_high:.15g}"
        kind = "a whole number" if self.type is int else "a number"
        expected = f"{kind} of {self.unit} between {low} and {high}"
        return (
            f"{name}: expected {self.unit if self.type is bool else expected}, got {value!r}; "
            f"unset it to let the tuner choose (default {self.format(self.default)})"
        )


@dataclass(frozen=True, kw_only=True)
class Table:
    """The parameters of one adapter: of what the tuner's settings are made there.

    Attributes:
        name: What logs and messages of the protocol call it.
        parameters: Its rows, in the order of the CSV's columns.
        after_score: So many of them, the last ones, have their columns after the score's: what is
            explored in some jobs only leaves a log's first columns what they are everywhere.
        formats: Formats of ``autotune best`` that put such a setting in force; () : all of them
            but those that other tables name.
        outside: What the table's settings are put in force with, for a sentence that refuses
            another format.
        change_steps: Steps after a change of the setting that are slower because of it.
        change_price: What a change costs in all, in steps of the default.
        step_end: What ends a training step there, after "a step ends with".
        remedy: What to do about steps of other kinds, after a semicolon; "": nothing can be done.
    """

    name: str
    parameters: tuple[Parameter, ...]
    after_score: int = 0
    formats: tuple[str, ...] = ()
    outside: str = ""
    change_steps: int = 0
    change_price: float = 0.0
    step_end: str = (
        "that of a DistributedOptimizer, else with hvd.autotune.step(), else where the collectives "
        "repeat"
    )
    remedy: str = "call hvd.autotune.pause() and resume() around what is not training"

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """{name: row}."""
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of the CSV."""
        names = [parameter.column for parameter in self.parameters]
        names.insert(len(names) - self.after_score, "score")
        return tuple(names)


PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        name="hierarchical_allreduce",
        unit="0 or 1",
        type=bool,
        default=False,
        valid_low=0,
        valid_high=1,
        search_low=0,
        search_high=1,
        scale="bool",
        word="hierarchical allreduce",
        operation="allreduce",
        env="HOROVOD_HIERARCHICAL_ALLREDUCE",
        flag="--hierarchical-allreduce",
        column="hierarchical_allreduce",
    ),
    Parameter(
        name="hierarchical_allgather",
        unit="0 or 1",
        type=bool,
        default=False,
        valid_low=0,
        valid_high=1,
        search_low=0,
        search_high=1,
        scale="bool",
        word="hierarchical allgather",
        operation="allgather",
        env="HOROVOD_HIERARCHICAL_ALLGATHER",
        flag="--hierarchical-allgather",
        column="hierarchical_allgather",
    ),
    Parameter(
        name="cache_capacity",
        unit="entries",
        type=int,
        default=1024,
        valid_low=0,
        valid_high=2**20,
        search_low=0,
        search_high=2**20,
        scale="choice",
        zero_is_special=True,
        saturates_at="tensors",
        word="cache",
        env="HOROVOD_CACHE_CAPACITY",
        flag="--cache-capacity",
        column="cache_capacity",
    ),
    Parameter(
        name="cycle_time_ms",
        unit="ms",
        type=float,
        default=1.0,
        valid_low=0,
        valid_high=10_000,
        search_low=0.1,
        search_high=100,
        scale="log",
        sparing=100.0,  # all waits for the computation's end
        word="cycle",
        shown_unit="ms",
        env="HOROVOD_CYCLE_TIME",
        flag="--cycle-time-ms",
        column="cycle_time_ms",
    ),
    Parameter(
        name="fusion_threshold_bytes",
        unit="bytes",
        type=int,
        default=64 * MIB,
        valid_low=0,
        valid_high=2**40,
        search_low=64 * 1024,
        search_high=512 * MIB,
        scale="log2",
        zero_is_special=True,
        saturates_at="payload",
        sparing=512 * MIB,
        word="fusion",
        shown_unit="MiB",
        units_in_shown=MIB,
        env="HOROVOD_FUSION_THRESHOLD",
        flag="--fusion-threshold-mb",
        column="tensor_fusion_threshold",
    ),
)

BY_NAME: dict[str, Parameter] = {parameter.name: parameter for parameter in PARAMETERS}
BY_ENV: dict[str, Parameter] = {parameter.env: parameter for parameter in PARAMETERS}
HOROVOD = Table(name="horovod", parameters=PARAMETERS)
"""The table of the runtime ``horovod``."""
