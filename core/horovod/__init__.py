"""Horovod's PyTorch API (``import horovod.torch as hvd``) on an engine that tunes itself.

Importing this package starts nothing: no MPI, no thread, no torch. ``hvd.init()`` does.
"""

from importlib import metadata as _metadata
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from horovod.runner import run as run

__version__ = "0.29.0"


def _refuse_the_original() -> None:
    """Raise when the original Horovod is installed beside us: both own the name ``horovod``."""
    try:
        original = _metadata.version("horovod")
    except _metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"hvd-autotune and the original horovod {original} are installed side by side and "
        "both provide the package 'horovod': run 'pip uninstall horovod' and then "
        "'pip install --force-reinstall --no-deps hvd-autotune'"
    )


_refuse_the_original()


def __getattr__(name: str) -> _Any:
    """Return ``run``; what it needs is imported on first use."""
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from horovod.runner import run

    return run
