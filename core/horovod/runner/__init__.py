"""``horovodrun`` and ``horovod.run``: start a job under the MPI that mpi4py loads.

Imports no torch and starts no MPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.runner.function import RankError, run

__all__ = ["RankError", "run"]


def __getattr__(name: str) -> Any:
    """Return ``run`` and ``RankError``; what they need is imported on first use.

    ``_HorovodArgs`` is what libraries fill for ``launch._run``.
    """
    if name == "_HorovodArgs":
        from horovod.runner.arguments import HorovodArgs

        return HorovodArgs
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from horovod.runner import function

    return getattr(function, name)
