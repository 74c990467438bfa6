"""Parameters that are explored by the user's word only: some change what training computes.

``HOROVOD_AUTOTUNE_EXPLORE`` names them. Their columns follow the score, and those of NCCL where
that is tuned, too; a log in which they were not explored has none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import make_dataclass, replace
from typing import Any, cast

from autotune.space import Parameter, Table
from autotune.trial import Setting


def _switch(name: str, *, word: str, env: str) -> Parameter:
    return Parameter(
        name=name,
        unit="0 or 1",
        type=bool,
        default=False,
        valid_low=0,
        valid_high=1,
        search_low=0,
        search_high=1,
        scale="bool",
        word=word,
        env=env,
        flag=f"--{name.replace('_', '-')}",
        column=name,
    )


COMPRESSION: Mapping[str, Parameter] = {
    "fp16": _switch("fp16_gradients", word="fp16 gradients", env="AUTOTUNE_FP16_GRADIENTS"),
    "bf16": _switch("bf16_gradients", word="bf16 gradients", env="AUTOTUNE_BF16_GRADIENTS"),
}
"""{the user's word: its parameter}. Gradients in float32 travel in that type, and are added up in
float32 where this package's engine does it. Only one of them is explored in a job: a step takes as
long with either, and which one training bears is not for a tuner to say."""

OF_DDP: Mapping[str, Parameter] = {
    "static_graph": _switch("static_graph", word="static graph", env="AUTOTUNE_DDP_STATIC_GRAPH"),
}
"""Those that only a DistributedDataParallel has."""

FURTHER: Mapping[str, Parameter] = {**COMPRESSION, **OF_DDP}
"""All of them, in the order of the columns."""


def refusal_of(words: Collection[str]) -> str:
    """Return why these words cannot stand together, or ""."""
    wrong = [word for word in words if word not in FURTHER]
    if wrong:
        return f"expected one or more of {', '.join(FURTHER)}, got {wrong[0]!r}"
    both = [word for word in COMPRESSION if word in words]
    return f"expected one of {' and '.join(both)}, got both" if len(both) > 1 else ""


def words_named(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words whose parameters {parameter: value} puts in force."""
    return tuple(word for word, row in FURTHER.items() if values.get(row.name))


def words_of(table: Table) -> tuple[str, ...]:
    """Return the words whose parameters a table has."""
    return tuple(word for word, row in FURTHER.items() if row.name in table.by_name)


_made: dict[str, type[Setting]] = {}


def kind_with(base: type[Setting], words: tuple[str, ...]) -> type[Setting]:
    """Return the kind of setting that has the parameters of these words beside those of ``base``.

    Args:
        base: A kind without any of them.
        words: In the order of ``FURTHER``.
    """
    if not words:
        return base
    name = "+".join((base.table.name, *words))
    if name not in _made:
        _made[name] = _make(kind_with(base, words[:-1]), words[-1])
    return _made[name]


def _make(narrower: type[Setting], word: str) -> type[Setting]:
    row, table = FURTHER[word], narrower.table
    members = {
        "__module__": __name__,
        "table": replace(
            table,
            name=f"{table.name}+{word}",
            parameters=(*table.parameters, row),
            after_score=table.after_score + 1,
        ),
    }
    name = f"{narrower.__name__}With{word.title().replace('_', '')}"
    fields = [(row.name, bool, row.default)]
    kind = make_dataclass(
        name, fields, bases=(narrower,), namespace=members, frozen=True, kw_only=True
    )
    return cast("type[Setting]", kind)


def extended(base: type[Setting], words: Iterable[str]) -> type[Setting]:
    """Return ``kind_with`` of words in any order."""
    given = set(words)
    return kind_with(base, tuple(word for word in FURTHER if word in given))


def choices(words: Collection[str]) -> list[tuple[str, ...]]:
    """Return every choice of ``words`` that can stand together, none of them first."""
    found: list[tuple[str, ...]] = [()]
    for word in words:
        found += [(*one, word) for one in found if not refusal_of((*one, word))]
    return found
