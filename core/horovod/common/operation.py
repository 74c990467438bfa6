"""What an operation is, whatever framework its tensors are of: its description and its name.

A front end describes an operation by ``How``, takes its name and its kind from here, and keeps what
it has prepared for operations that come back by that description.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol, TypeVar

from horovod import _engine
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.reduce_ops import ENGINE_NAMES, Sum

MOST_KEPT = 10_000
"""Names or factors may change from call to call; then what is kept would grow without end."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class How(NamedTuple):
    """How an operation is to be done: everything about it but its tensors; equal on all ranks.

    Operations of equal descriptions are the same one, come back. It is a tuple because it is made
    and looked up for every tensor: a tuple is hashed and compared without a call into Python.

    Attributes:
        operation: As the engine calls it, e.g. "allreduce".
        name: What the script calls it; None where it does not.
        process_set: Its members take part.
        op: The reduction, if it is one.
        prescale: Factor before the reduction, a plain number: a tensor may be another one later.
        postscale: Factor after it.
        root_rank: Global rank of the sender of a broadcast.
        wire_type: The engine's name of the type as which float32 tensors travel.
        may_compress: They may travel shorter where the parameters in force say so.
    """

    operation: str
    name: str | None = None
    process_set: ProcessSet = global_process_set
    op: int = Sum
    prescale: float = 1.0
    postscale: float = 1.0
    root_rank: int = 0
    wire_type: str | None = None
    may_compress: bool = False


class Kept(dict[Key, Value]):
    """What is made once and found again, until the engine ends or there is too much of it."""

    def __init__(self) -> None:
        super().__init__()
        _all_kept.append(self)

    def keep(self, key: Key, value: Value) -> None:
        """**Local.** Keep ``value`` by ``key``."""
        if len(self) >= MOST_KEPT:
            self.clear()
        self[key] = value


class Forgetful(Protocol):
    """What belongs to the script, and knows something that is only true for one engine."""

    def forget(self) -> None:
        """**Local.** The engine has ended; the next one may have other ranks."""


_all_kept: list[Kept[Any, Any]] = []
_forgetful: weakref.WeakSet[Any] = weakref.WeakSet()
_unnamed: Counter[tuple[int, str]] = Counter()
"""{(number of the process set, operation): operations so far to which the script gave no name}"""


def set_number(process_set: ProcessSet) -> int:
    """**Local.** Return the engine's number of ``process_set``.

    Raises:
        ValueError: The set is not registered.
    """
    number = process_set.process_set_id
    if number is None:
        raise ValueError(
            f"{process_set!r} is not registered: call hvd.add_process_set() on all ranks, or pass "
            "it to hvd.init(process_sets=[...])"
        )
    return number


def full_name(operation: str, name: str | None, number: int) -> str:
    """**Local**, every rank alike. Return the engine's name of an operation.

    Args:
        operation: What it is, e.g. "allreduce" or "grouped_allreduce".
        name: What the script calls it; None: it gets the next number of its kind.
        number: The engine's number of its process set.
    """
    if name is not None:
        return f"{operation}.{name}"
    count = _unnamed[number, operation]
    _unnamed[number, operation] = count + 1
    return f"{operation}.noname.{count}"


def take_name_back(operation: str, name: str | None, number: int) -> None:
    """**Local.** Undo ``full_name``: an operation that was refused does not count."""
    if name is None:
        _unnamed[number, operation] -= 1


def make_kind(how: How, number: int, dtype: str, *, on_device: bool = False) -> _engine.Kind:
    """**Local.** Return the engine's description of operations like this one.

    Args:
        how: What is to be done.
        number: The engine's number of its process set.
        dtype: The engine's name of the tensors' type.
        on_device: The tensors are in the memory of a GPU.
    """
    return _engine.Kind(
        operation=how.operation,
        dtype=dtype,
        reduce_op=ENGINE_NAMES[how.op],
        root_rank=how.root_rank,
        prescale=how.prescale,
        postscale=how.postscale,
        named=how.name is not None,
        process_set=number,
        on_device=on_device,
        wire_type=how.wire_type,
        may_compress=how.may_compress,
    )


def forget_names() -> None:
    """**Local.** Begin to count unnamed operations anew."""
    _unnamed.clear()


def forget() -> None:
    """**Local.** Forget names, and what is kept for an engine that has ended."""
    forget_names()
    for kept in _all_kept:
        kept.clear()
    for each in list(_forgetful):
        each.forget()


def forget_with_the_engine(forgetful: Forgetful) -> None:
    """**Local.** Have ``forgetful.forget()`` called when an engine has ended, while it lives."""
    _forgetful.add(forgetful)
