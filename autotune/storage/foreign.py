"""Reads trial logs as CSV: ours, of any table, and those of every Horovod release, by their header.

Horovod's files differ by release: 5 columns, then ``cache_enabled`` (6), then ``torus_allreduce``
(7); a stray blank before the fourth field; values outside any search range (cycle 0, threshold 0 or
0.00014 MiB); and, where the job ended early, no best line. Line numbers in warnings count from 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.errors import InvalidSettingError, LogError
from autotune.space import HOROVOD
from autotune.tables import SETTINGS
from autotune.trial import CommParams, Setting, Trial, TrialState

_REQUIRED = {"cycle_time_ms", "tensor_fusion_threshold", "score"}
"""Columns that every log of Horovod has; one of ours has all of the table's or these."""
_HOROVODS = _REQUIRED | {"hierarchical_allreduce", "hierarchical_allgather"}
_KNOWN = {*HOROVOD.columns, "cache_enabled", "torus_allreduce"}
_HOROVOD_CACHE_CAPACITY = 1024  # what cache_enabled=1 means
_BOM = b"\xef\xbb\xbf"
_MOST_WARNINGS = 5
_Row = tuple[tuple[str, ...], Trial]


@dataclass(frozen=True, kw_only=True)
class CsvContent:
    """What a CSV log says.

    Attributes:
        own: Written by this package (else by a Horovod release, or there is no header yet).
        trials: One per usable row, in order; without the best line.
        best: The best line, if the log is final.
        lines: All whole rows as text.
        warnings: Sentences about what could not be used.
        damage: The same about the last line: whether the log is final is then not known.
    """

    own: bool
    trials: tuple[Trial, ...] = ()
    best: Trial | None = None
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    damage: str = ""


def parse_csv(content: bytes, path: str) -> CsvContent:
    """Return what ``content`` says; a last line without a newline is ignored.

    Args:
        content: The file.
        path: Its name, for messages.

    Raises:
        LogError: The first line is not the header of an autotune log.
    """
    text = content.removeprefix(_BOM).decode("utf-8", "replace").replace("\r\n", "\n")
    if not text.strip():
        return CsvContent(own=True)
    header, _, body = text.partition("\n")
    columns = [name.strip().strip('"') for name in header.split(",")]
    kind = _kind_of(columns)
    if kind is None or len(set(columns)) != len(columns):
        raise LogError(
            f"{path}: not an autotune log: expected a first line with the columns "
            f"{', '.join(sorted(_REQUIRED))}, got {header[:60]!r}"
        )
    *whole, rest = body.split("\n")
    lines = [(number, line) for number, line in enumerate(whole, 2) if line.strip()]
    found = _parse_rows(kind, columns, lines)
    if not rest.strip():
        return found
    why = "it has no newline at its end, so it may be cut off"
    return replace(found, damage=_last_line(2 + len(whole), why))


def _kind_of(columns: Sequence[str]) -> type[Setting] | None:
    """Return the kind of setting that rows with these columns hold; None: this is no log."""
    for kind in sorted(SETTINGS.values(), key=lambda one: -len(one.table.columns)):
        if set(kind.table.columns).issubset(columns):
            return kind
    return CommParams if _REQUIRED.issubset(columns) else None


def _parse_rows(
    kind: type[Setting], columns: Sequence[str], lines: Sequence[tuple[int, str]]
) -> CsvContent:
    is_horovods = kind.table is HOROVOD
    own = not is_horovods or not (set(HOROVOD.columns) - _HOROVODS).isdisjoint(columns)
    known = _KNOWN if is_horovods else set(kind.table.columns)
    warnings = [f"column {name!r} is ignored" for name in columns if name not in known]
    damage = ""
    rows: list[_Row] = []
    for number, line in lines:
        try:
            rows.append((cells := _cells(line), _trial(len(rows), kind, columns, cells)))
        except ValueError as error:
            why = str(error).partition(";")[0]
            if number == lines[-1][0]:
                damage = _last_line(number, why)
            else:
                warnings.append(f"line {number} is ignored: {why}")
    if "torus_allreduce" in columns and any(_torus(columns, cells) for cells, _ in rows):
        warnings.append("torus_allreduce=1 in some rows has no counterpart here and is ignored")
    final = not damage and _is_final(rows, own=own)
    if final and rows[-1][1].state is TrialState.REJECTED:
        score = rows.pop()[0][columns.index("score")]
        damage = _last_line(lines[-1][0], f"score: expected a number of 0 or more, got {score!r}")
        final = False
    if len(warnings) > _MOST_WARNINGS:
        warnings[_MOST_WARNINGS:] = [f"... and {len(warnings) - _MOST_WARNINGS} more"]
    return CsvContent(
        own=own,
        trials=tuple(trial for _, trial in (rows[:-1] if final else rows)),
        best=_best_line(rows) if final else None,
        lines=tuple(line for _, line in lines),
        warnings=tuple(warnings),
        damage=damage,
    )


def _last_line(number: int, why: str) -> str:
    return f"line {number}, the last one, is ignored: {why}"


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.split(","))


def _is_final(rows: Sequence[_Row], *, own: bool) -> bool:
    """Return whether the last row repeats an earlier one.

    In a log of ours its setting is enough: no setting has two trial rows. Horovod reads a setting
    more than once when most parameters are fixed, so there the whole row has to be repeated, and
    its score is the highest of all, because that is how Horovod chooses.
    """
    if not rows:
        return False
    *earlier, (cells, last) = rows
    if own:
        return any(trial.params == last.params for _, trial in earlier)
    is_repeated = cells in [earlier_cells for earlier_cells, _ in earlier]
    return is_repeated and last.score == max(trial.score for _, trial in rows)


def _best_line(rows: Sequence[_Row]) -> Trial:
    """Return the last row's trial under the number of the one that it repeats."""
    last = rows[-1][1]
    earlier = next(trial for _, trial in rows if trial.params == last.params)
    return replace(last, trial_id=earlier.trial_id)


def _trial(
    trial_id: int, kind: type[Setting], columns: Sequence[str], cells: Sequence[str]
) -> Trial:
    """Return the trial of one row.

    Raises:
        ValueError: Not as many cells as columns, no number, or a value outside the valid domain.
    """
    if len(cells) != len(columns):
        raise ValueError(f"expected {len(columns)} fields, got {len(cells)}")
    row = dict(zip(columns, cells, strict=True))
    score = _number(row, "score")
    usable = math.isfinite(score) and score >= 0
    return Trial(
        trial_id=trial_id,
        params=_params(kind, row),
        state=TrialState.COMPLETE if usable else TrialState.REJECTED,
        score=score if usable else 0.0,
    )


def _params(kind: type[Setting], row: Mapping[str, str]) -> Setting:
    values: dict[str, object] = {}
    for name, parameter in kind.table.by_name.items():
        if parameter.column in row:
            values[name] = parameter.of_shown(_number(row, parameter.column))
    if kind.table is HOROVOD and "cache_enabled" in row and "cache_capacity" not in row:
        enabled = _number(row, "cache_enabled")
        if enabled not in (0, 1):
            raise InvalidSettingError(f"cache_enabled: expected 0 or 1, got {enabled:g}")
        values["cache_capacity"] = _HOROVOD_CACHE_CAPACITY if enabled else 0
    return kind.from_dict(values)


def _torus(columns: Sequence[str], cells: Sequence[str]) -> bool:
    return cells[columns.index("torus_allreduce")] == "1"


def _number(row: Mapping[str, str], column: str) -> float:
    text = row.get(column, "0")
    if "_" in text:  # float() takes 1_000
        raise ValueError(f"{column}: expected a number, got {text!r}")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{column}: expected a number, got {text[:40]!r}") from None
