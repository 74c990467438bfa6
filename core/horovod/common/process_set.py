"""A process set: a subset of the ranks that communicate among themselves.

The class, and how ``hvd.init(process_sets=...)`` is read and agreed on. The engine numbers the
sets: 0 is the set of all ranks, and a number is given out once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

if TYPE_CHECKING:
    from horovod.common.world import World

Ranks = tuple[int, ...]


def _sorted_ranks(ranks: Any) -> list[int]:
    try:
        numbers = [operator.index(rank) for rank in ranks]
    except TypeError:
        raise ValueError(
            f"ProcessSet: expected a sequence of global ranks or an mpi4py communicator, got "
            f"{ranks!r}"
        ) from None
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"ProcessSet: expected every rank once, got {numbers}")
    return sorted(numbers)


class ProcessSet:
    """A set of ranks. It can be used between its registration and ``hvd.shutdown()``.

    Args:
        ranks_or_comm: Global ranks in any order, or an mpi4py communicator of them.

    Attributes:
        process_set_id: Number of the set in the engine, 0 for the global one; None while it is not
            registered.
        ranks: Sorted global ranks; None for the global set and for one from a communicator while
            they are not registered.
        mpi_comm: The communicator that it was made from, if any.

    Raises:
        ValueError: Something else than ranks or a communicator.
    """

    def __init__(self, ranks_or_comm: Iterable[SupportsIndex] | Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        self._own_rank: int | None = None
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
        else:
            self.ranks = _sorted_ranks(ranks_or_comm)

    def size(self) -> int | None:
        """**Local.** Return the number of ranks in the set, None while it is not registered."""
        return len(self.ranks or ()) if self._own_rank is not None else None

    def rank(self) -> int | None:
        """**Local.** Return this process's rank within the set, None while it is not registered.

        Raises:
            ValueError: This process is not in the set.
        """
        if self._own_rank is None:
            return None
        if not self.included():
            raise ValueError(f"rank {self._own_rank} is not in the process set {self.ranks}")
        return (self.ranks or []).index(self._own_rank)

    def included(self) -> bool | None:
        """**Local.** Return whether this process is in the set, None while it is not registered."""
        return None if self._own_rank is None else self._own_rank in (self.ranks or ())

    def attach(self, process_set_id: int, ranks: Sequence[int], own_rank: int) -> None:
        """**Local.** The engine registered the set; called by the runtime."""
        self.process_set_id, self.ranks, self._own_rank = process_set_id, list(ranks), own_rank

    def detach(self) -> None:
        """**Local.** The set was removed or the runtime ended; it may be registered again."""
        self.process_set_id, self._own_rank = None, None
        if self.mpi_comm is not None:
            self.ranks = None

    def __repr__(self) -> str:
        ranks = f"process_set_id={self.process_set_id}, ranks={self.ranks}"
        return f"ProcessSet({ranks}, mpi_comm={self.mpi_comm})"


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job: its number is always 0, its ranks are known while the job runs."""

    def __init__(self) -> None:
        super().__init__(())
        self.detach()

    def detach(self) -> None:
        self.process_set_id, self.ranks, self._own_rank = 0, None, None


global_process_set: ProcessSet = _GlobalProcessSet()


def read_static_sets(argument: object) -> list[ProcessSet]:
    """**Local.** Return the sets that ``hvd.init(process_sets=argument)`` means.

    Raises:
        ValueError: Something else than None, "dynamic", or a list of process sets or rank lists.
    """
    if argument is None or (isinstance(argument, str) and argument.lower() == "dynamic"):
        return []
    if isinstance(argument, str) or not isinstance(argument, Sequence):
        raise ValueError(
            "hvd.init(process_sets=...): expected None, 'dynamic' or a list of hvd.ProcessSet, "
            f"got {argument!r}"
        )
    sets = [each if isinstance(each, ProcessSet) else ProcessSet(each) for each in argument]
    registered = [each for each in sets if each.process_set_id is not None]
    if registered:
        raise ValueError(
            "hvd.init(process_sets=...): expected sets that are not registered yet, got "
            f"{registered[0]!r}; the global set exists anyway"
        )
    return sets


def requested_ranks(process_set: ProcessSet, world: World) -> Ranks:
    """**Local.** Return the ranks of ``world``, a job's, that the set asks for.

    Raises:
        ValueError: Some of them are not in the job, or there are none.
    """
    ranks = tuple(process_set.ranks or ())
    if process_set.mpi_comm is not None:
        ranks = world.ranks_of(process_set.mpi_comm)
    wrong = [rank for rank in ranks if not 0 <= rank < world.size]
    if wrong or not ranks:
        what = f"rank {wrong[0]}" if wrong and wrong[0] >= 0 else "ranks that are not in the job"
        raise ValueError(
            f"process set {list(ranks)}: expected ranks from 0 to {world.size - 1}, got "
            + (what if ranks else "none")
        )
    return tuple(sorted(ranks))


def agree_static_sets(reports: Sequence[Sequence[tuple[Ranks, bool]]]) -> list[list[Ranks]]:
    """**Local**, every rank alike. Return, per position of the list, the sets to be registered.

    One set per position, except where every rank gave a communicator of its own (of
    ``MPI_Comm_split``): then one per communicator.

    Args:
        reports: By rank: the ranks of each set, and whether it came from a communicator.

    Raises:
        ValueError: The ranks disagree, or a set is there twice.
    """
    lengths = [len(report) for report in reports]
    agreed = [_agree(position) for position in zip(*reports, strict=False)]
    if len(set(lengths)) > 1 or None in agreed:
        first = next((r for r, report in enumerate(reports) if report != reports[0]), 0)
        raise ValueError(
            "process_sets must be the same on all ranks, in the same order: got "
            f"{_shown(reports[0])} on rank 0, {_shown(reports[first])} on rank {first}"
        )
    sets = [ranks for position in agreed for ranks in position or ()]
    every_rank = tuple(range(len(reports)))
    for i, ranks in enumerate(sets):
        if ranks in sets[:i] or ranks == every_rank:
            other = "the global process set" if ranks == every_rank else "another one"
            raise ValueError(f"process_sets: {list(ranks)} has the same ranks as {other}")
    return [position or [] for position in agreed]


def _agree(position: Sequence[tuple[Ranks, bool]]) -> list[Ranks] | None:
    """Return the sets that the ranks (one entry per rank) ask for, None if they disagree."""
    asked = [ranks for ranks, _ in position]
    if len(set(asked)) == 1:
        return [asked[0]]
    split = all(from_comm for _, from_comm in position)
    if split and all(asked[member] == ranks for ranks in asked for member in ranks):
        return sorted(set(asked)) if all(r in asked[r] for r in range(len(asked))) else None
    return None


def _shown(report: Sequence[tuple[Ranks, bool]]) -> list[list[int]]:
    return [list(ranks) for ranks, _ in report]
