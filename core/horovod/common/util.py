"""Small helpers that scripts and libraries import from here.

Libraries ask these questions without an ``init``, some of them to find out whether Horovod is
installed at all: a name that is missing here means to them that it is not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from importlib import util as _importlib_util
from itertools import pairwise
from typing import TypeVar

from horovod.common.basics import (
    ccl_built as _ccl_built,
)
from horovod.common.basics import (
    cuda_built as _cuda_built,
)
from horovod.common.basics import (
    ddl_built as _ddl_built,
)
from horovod.common.basics import (
    gloo_built as _gloo_built,
)
from horovod.common.basics import (
    mpi_built as _mpi_built,
)
from horovod.common.basics import (
    nccl_built as _nccl_built,
)
from horovod.common.basics import (
    rocm_built as _rocm_built,
)

T = TypeVar("T")

EXTENSIONS = ("torch",)
"""Frameworks that this build serves."""


def gpu_available(ext_base_name: str = "torch", verbose: bool = False) -> bool:
    """**Local.** Return whether tensors on GPUs can be communicated; arguments as Horovod's."""
    return _cuda_built() and extension_available(ext_base_name)


def mpi_built(verbose: bool = False) -> bool:
    """**Local.** As ``hvd.mpi_built``."""
    return _mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """**Local.** As ``hvd.gloo_built``."""
    return _gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """**Local.** As ``hvd.nccl_built``."""
    return _nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """**Local.** As ``hvd.ddl_built``."""
    return _ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """**Local.** As ``hvd.ccl_built``."""
    return _ccl_built()


def cuda_built(verbose: bool = False) -> bool:
    """**Local.** As ``hvd.cuda_built``."""
    return _cuda_built()


def rocm_built(verbose: bool = False) -> bool:
    """**Local.** As ``hvd.rocm_built``."""
    return _rocm_built()


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """**Local.** Return whether the framework ``ext_base_name`` is installed and served."""
    return ext_base_name in EXTENSIONS and _importlib_util.find_spec(ext_base_name) is not None


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
