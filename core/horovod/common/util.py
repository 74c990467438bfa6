"""Small helpers that scripts and libraries import from here.

Libraries ask these questions without an ``init``, some of them to find out whether Horovod is
installed at all: a name that is missing here means to them that it is not.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from horovod.common import basics as _basics
from horovod.common.packages import is_installed as _is_installed

T = TypeVar("T")

EXTENSIONS = ("torch", "tensorflow")
"""Frameworks that this build serves."""


def gpu_available(ext_base_name: str = "torch", verbose: bool = False) -> bool:
    """**Local.** Return whether tensors on GPUs can be communicated; arguments as Horovod's."""
    return _basics.cuda_built() and extension_available(ext_base_name)


def _with_verbose(question: Callable[[], T]) -> Callable[..., T]:
    """Return ``question`` as Horovod's helper of its name, which takes ``verbose``."""

    def ask(verbose: bool = False) -> T:
        return question()

    ask.__name__, ask.__doc__ = question.__name__, f"**Local.** As ``hvd.{question.__name__}``."
    return ask


mpi_built = _with_verbose(_basics.mpi_built)
gloo_built = _with_verbose(_basics.gloo_built)
nccl_built = _with_verbose(_basics.nccl_built)
ddl_built = _with_verbose(_basics.ddl_built)
ccl_built = _with_verbose(_basics.ccl_built)
cuda_built = _with_verbose(_basics.cuda_built)
rocm_built = _with_verbose(_basics.rocm_built)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """**Local.** Return whether the framework ``ext_base_name`` is installed and served."""
    return ext_base_name in EXTENSIONS and _is_installed(ext_base_name)


def check_extension(ext_name: str, *arguments: object) -> None:
    """**Local.** Do nothing where this build serves ``ext_name``, e.g. "horovod.torch".

    Args:
        ext_name: Module of the framework.
        *arguments: Horovod's, without a meaning here.

    Raises:
        ImportError: It does not.
    """
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(
            f"{ext_name} is not available: this package serves {', '.join(EXTENSIONS)} "
            "(horovodrun --check-build says what is missing)"
        )


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """**Local.** Set environment ``variables`` within this context; None: unset it."""
    before = {name: os.environ.get(name) for name in variables}
    _set_variables(variables)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: dict[str, str | None]) -> None:
    for name, text in variables.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(text)


def is_iterable(value: object) -> bool:
    """**Local.** Return whether ``iter(value)`` works."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def split_list(items: Sequence[T], parts: int) -> list[list[T]]:
    """Return ``items`` in ``parts`` consecutive lists whose lengths differ by at most one.

    **Local.** Longer lists come first; with fewer items than parts the last lists are empty.

    Raises:
        ValueError: ``parts`` is not positive.
    """
    if parts < 1:
        raise ValueError(f"split_list: expected at least 1 part, got {parts}")
    length, longer = divmod(len(items), parts)
    bounds = [i * length + min(i, longer) for i in range(parts + 1)]
    return [list(items[low:high]) for low, high in pairwise(bounds)]


def num_rank_is_power_2(size: int) -> bool:
    """**Local.** Return True when ``size`` (a number of ranks) is a power of two."""
    return size > 0 and size & (size - 1) == 0


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """**Local.** Return whether version ``ver`` is ``target`` or newer, by their numbers alone.

    Raises:
        ValueError: One of them does not begin with a number.
    """
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers with which ``version`` begins: 2.16.0rc1 is (2, 16)."""
    found = re.match(r"\d+(\.\d+)*", version)
    if not found:
        raise ValueError(f"expected a version such as 2.16.1, got {version!r}")
    numbers = [int(part) for part in found[0].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
