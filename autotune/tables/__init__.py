"""The tables of parameters that can be tuned, by name: a further one is a file and a row here."""

from __future__ import annotations

from autotune.errors import InvalidSettingError
from autotune.space import Parameter
from autotune.tables.ddp import DdpParams
from autotune.tables.further import COMPRESSION, FURTHER, choices, kind_with
from autotune.tables.nccl import CommNcclParams, DdpNcclParams
from autotune.trial import CommParams, Setting

_WORDS = {
    CommParams: COMPRESSION,
    DdpParams: FURTHER,
    CommNcclParams: COMPRESSION,
    DdpNcclParams: FURTHER,
}
"""{kind of setting: what is explored with it by the user's word}."""

_KINDS: tuple[type[Setting], ...] = (
    *_WORDS,
    *(kind_with(one, chosen) for one, words in _WORDS.items() for chosen in choices(words)[1:]),
)

SETTINGS: dict[str, type[Setting]] = {one.table.name: one for one in _KINDS}
"""{name of the table: its kind of setting}."""


def settings_of(table: str) -> type[Setting]:
    """Return the kind of setting whose table has this name.

    Raises:
        InvalidSettingError: No such table; it is of a later version.
    """
    if table not in SETTINGS:
        known = ", ".join(SETTINGS)
        raise InvalidSettingError(
            f"table of parameters: expected one of {known}, got {table!r}; update this package"
        )
    return SETTINGS[table]


def every_parameter() -> dict[str, Parameter]:
    """Return {name: row} of all tables; a name means the same wherever it stands."""
    return {name: row for one in SETTINGS.values() for name, row in one.table.by_name.items()}
