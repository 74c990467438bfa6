"""A tuned configuration in every form that a production job takes it in.

A format is a function from a ``Result`` to text, registered under its name in ``FORMATS``. Every
format is exact: bytes and floats come back from the text as they were.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from autotune.cli import snippets
from autotune.errors import InvalidSettingError
from autotune.exact import exact, rounded, rounded_shown
from autotune.result import (
    SCORE_UNIT,
    Result,
    environment,
    gain_text,
    launcher_arguments,
    launcher_values,
    start_up_of,
)
from autotune.space import HOROVOD, MIB, Table
from autotune.tables.further import COMPRESSION, words_named

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"


def render(result: Result, format_name: str) -> str:
    """Return ``result`` in a format, without a newline at its end.

    Raises:
        InvalidSettingError: No such format, or it cannot put settings of this table in force.
    """
    if format_name not in FORMATS:
        raise InvalidSettingError(
            f"format: expected one of {', '.join(FORMATS)}, got {format_name!r}"
        )
    table = result.params.table
    offered = formats_of(table)
    if format_name not in offered:
        raise InvalidSettingError(
            f"format: expected one of {', '.join(offered)}, got {format_name!r}: the log is of the "
            f"table {table.name!r}{_how(table)}"
        )
    return FORMATS[format_name](result)


def formats_of(table: Table) -> tuple[str, ...]:
    """Return the formats that settings of a table come in."""
    return table.formats or tuple(name for name in FORMATS if name not in OF_OTHERS)


def _how(table: Table) -> str:
    return f", whose settings are put in force by {table.outside}" if table.outside else ""


def _text(result: Result) -> str:
    rows = []
    for parameter in result.params.reading_order():
        value = getattr(result.params, parameter.name)
        unit = "" if parameter.type is bool else f" {parameter.unit}"
        if parameter.names:
            unit = f" ({rounded_shown(parameter, value, 6)})"
        row = f"{parameter.name:24}{parameter.format(value).removesuffix('.0')}{unit}"
        if parameter.units_in_shown != 1:
            row += f" ({rounded_shown(parameter, value, 6)} {parameter.shown_unit})"
        rows.append(row)
    if result.score is not None:
        rows.append(f"{'score':24}{rounded(result.score, 6)} {SCORE_UNIT}")
    if result.gain is not None or (result.job and not result.finished):
        rows.append(f"{'gain':24}{gain_text(result)}")
    rows.append(f"{'tuning':24}{'finished' if result.finished else 'not finished'}")
    return "\n".join(rows)


def _env(result: Result) -> str:
    pairs = {**environment(result.params), **start_up_of(result)}
    return "\n".join(f"{name}={text}" for name, text in pairs.items())


def _flags(result: Result) -> str:
    return " ".join(launcher_arguments(result.params))


def _yaml(result: Result) -> str:
    lines = ["params:"]
    for name, value in launcher_values(result.params).items():
        key = result.params.table.by_name[name].flag.removeprefix("--").replace("-", "_")
        lines.append(f"  {key}: {str(value).lower()}")
    return "\n".join(lines)


def _json(result: Result) -> str:
    content: dict[str, Any] = {**result.params.as_dict(), "score": result.score}
    table = result.params.table
    if table is not HOROVOD:
        content = {"table": table.name, **content}
    content |= {"score_unit": SCORE_UNIT, "finished": result.finished}
    if result.gain is not None:
        content["certified"] = result.certified
        content |= dict(zip(("gain", "gain_low", "gain_high"), result.gain, strict=True))
    if result.promising is not None:
        content["promising"] = result.promising.as_dict()
    if result.job:
        content["job"] = dict(result.job)
    return json.dumps(content, indent=2)


def _ddp(result: Result) -> str:
    """Return arguments of DistributedDataParallel's constructor; what it does by itself is None."""
    params = result.params
    words = words_named(params.as_dict())
    hooks = [word for word in words if word in COMPRESSION]
    cap, first = (getattr(params, name) for name in ("bucket_cap_bytes", "first_bucket_bytes"))
    shown = "None" if not cap else _mib(cap)
    lines = ["# " + _sentence(result)]
    if first:
        lines.append(f"# first bucket {_mib(first)} MiB: only autotune replay can set it")
    lines += [f"from {_HOOKS} import default_hooks" for _ in hooks]
    lines += [
        f"{'model = ' if hooks else ''}DistributedDataParallel(",
        "    model,",
        f"    bucket_cap_mb={shown},",
        f"    gradient_as_bucket_view={params.gradient_as_bucket_view},",  # type: ignore[attr-defined]
    ]
    lines += ["    static_graph=True,"] if "static_graph" in words else []
    lines.append(")")
    if "bf16" in hooks:
        lines.append(
            "# builds of PyTorch without NCCL refuse this hook; autotune replay can set it"
        )
    lines += [
        f"model.register_comm_hook(None, default_hooks.{word}_compress_hook)" for word in hooks
    ]
    if cap:
        which = ", the bucket alone" if words else ""
        lines.append(f"# Trainer of Hugging Face{which}:")
        lines.append(f"--ddp_bucket_cap_mb {max(1, round(cap / MIB))}")
    return "\n".join(lines)


def _sentence(result: Result) -> str:
    state = "finished" if result.finished else "NOT finished"
    return f"found by autotune; tuning {state}; gain {gain_text(result)}"


def _mib(value: int) -> str:
    return exact(value / MIB)


OF_OTHERS = ("ddp", "nccl")
"""Formats that only the tables take which name them."""

FORMATS: dict[str, Callable[[Result], str]] = {
    "text": _text,
    "env": _env,
    "flags": _flags,
    "yaml": _yaml,
    "json": _json,
    "mpirun": snippets.mpirun,
    "mpiexec": snippets.mpiexec,
    "slurm": snippets.slurm,
    "pbs": snippets.pbs,
    "k8s": snippets.k8s,
    "nccl": snippets.nccl,
    "ddp": _ddp,
}
"""{name: function from a result to its text}; ``autotune best --format`` offers these."""
