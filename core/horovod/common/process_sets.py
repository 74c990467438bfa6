"""Process sets: subsets of the ranks that communicate among themselves.

Only ``global_process_set`` (all ranks) exists in this version; everything else says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from horovod import basics

_NOT_YET = (
    "process sets other than hvd.global_process_set are not supported in this version: "
    "leave out process_set, process_sets and add_process_set"
)


class ProcessSet:
    """A set of ranks.

    Args:
        ranks: Global ranks; None stands for all ranks of the job.

    Attributes:
        process_set_id: 0 for the global set; None before initialisation.
        ranks: Sorted global ranks; None for the global set before ``hvd.init()``.
    """

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        if ranks is not None and not all(isinstance(rank, int) for rank in ranks):
            raise ValueError(f"ProcessSet: expected a sequence of global ranks, got {ranks!r}")
        self._ranks = None if ranks is None else sorted(ranks)
        self.process_set_id: int | None = None

    @property
    def ranks(self) -> list[int] | None:
        """**Local.** Sorted global ranks of the set."""
        if self._ranks is None and basics.is_initialized():
            return list(range(basics.size()))
        return self._ranks

    def size(self) -> int | None:
        """**Local.** Return the number of ranks in the set, None before ``hvd.init()``."""
        return len(self.ranks or ()) if basics.is_initialized() else None

    def rank(self) -> int | None:
        """**Local.** Return this process's rank within the set, None before ``hvd.init()``.

        Raises:
            ValueError: This process is not in the set.
        """
        if not basics.is_initialized():
            return None
        if not self.included():
            raise ValueError(f"rank {basics.rank()} is not in the process set {self.ranks}")
        return (self.ranks or []).index(basics.rank())

    def included(self) -> bool | None:
        """**Local.** Return whether this process is in the set, None before ``hvd.init()``."""
        return basics.rank() in (self.ranks or ()) if basics.is_initialized() else None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet()
global_process_set.process_set_id = 0


def require_global(process_set: ProcessSet) -> None:
    """**Local.** Raise unless ``process_set`` is the set of all ranks.

    Raises:
        NotImplementedError: Another set.
    """
    if process_set is not global_process_set:
        raise NotImplementedError(_NOT_YET)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Not supported in this version.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(_NOT_YET)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Return False for the global set, which cannot be removed.

    Raises:
        NotImplementedError: Another set: not supported in this version.
    """
    require_global(process_set)
    return False
