"""The processes of a job before there is an engine: who they are, and how they tell each other.

Two kinds: ranks that MPI has started and joins (``mpi``), and ranks that meet over TCP (``tcp``).
What starts a job knows only ``World``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from horovod import _engine


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Place of this rank in the job.

    Attributes:
        rank, size: Among all ranks.
        local_rank, local_size: Among the ranks of this host.
        cross_rank, cross_size: Among the ranks of equal local_rank, one per host.
        homogeneous: All hosts run the same number of ranks.
        hosts: Number of each rank's host, counted from 0 in the order of first ranks.
        host_names: Name of each rank's host, for people; one name may stand for several hosts.
        cores: Those that the ranks of this host may use together: a launcher may have bound each to
            its own. Empty where that is not known.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool
    hosts: tuple[int, ...]
    host_names: tuple[str, ...] = ()
    cores: frozenset[int] = frozenset()


CONNECT_SECONDS = 60.0
"""How long ranks look for each other when an engine is made."""


class World(Protocol):
    """Some processes that know each other, numbered from 0."""

    @property
    def kind(self) -> Literal["mpi", "tcp"]:
        """What joins them, and what moves the data of hosts' ranks."""

    @property
    def version(self) -> str:
        """What joins them, with its version: a part of what makes a result what it is."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def rank(self) -> int:
        """Of this process, 0 <= rank < size."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def allgather(self, value: Any) -> list[Any]:
        """**Collective.** Return every rank's ``value``, by rank.

        Args:
            value: Of plain values: None, bool, int, float, str, bytes, and tuples, lists, sets and
                dicts of such.
        """

    def wait(self) -> None:
        """**Collective.** Sleep until all ranks are here."""

    def bcast(self, value: Any) -> Any:
        """**Collective.** Return rank 0's ``value``, which is as of ``allgather``."""

    def find_hosts(self) -> tuple[int, ...]:
        """**Collective.** Return {rank: number of its host}: those that can share memory."""

    def host_name(self) -> str:
        """**Local.** Return what people call this host."""

    def clock(self) -> tuple[int, int]:
        """**Collective.** Return (this rank's steady clock minus rank 0's, largest error), ns."""

    def subset(self, comm: object) -> World:
        """**Collective** over its ranks. Return the world of a job.

        Args:
            comm: None (all), a list of ranks, or an mpi4py communicator.

        Raises:
            ValueError: ``comm`` is something else, or leaves this process out.
        """

    def ranks_of(self, comm: Any) -> tuple[int, ...]:
        """**Local.** Return the ranks here of an mpi4py communicator's processes, negative for one
        that is not here; ValueError where there is no MPI."""  # noqa: D205, D209

    def error(self) -> str | None:
        """**Local.** Return why the engine cannot work with it, or None."""

    def transport(
        self, key: bytes, hosts: Sequence[int], interfaces: str
    ) -> _engine.Transport | None:
        """**Collective.** Return what moves the data; None for one rank.

        Args:
            key: Of the job.
            hosts: Number of each rank's host.
            interfaces: Network interfaces that may be used, where that is up to us; "": all.

        Raises:
            RuntimeError: The ranks do not connect.
        """

    @property
    def connect_seconds(self) -> float:
        """How long its ranks look for each other when an engine is made."""

    @property
    def has_threads(self) -> bool:
        """Whether MPI provides THREAD_MULTIPLE."""

    def free(self) -> None:
        """**Collective.** The job has not started; nothing is on its way."""

    def leave(self) -> None:
        """**Local.** The job has ended; its messages may still be on their way."""

    def forget(self) -> None:
        """**Local.** This is a forked child: let go of what is the parent's."""

    def end(self, *, failed: bool, raised: bool, leave: Callable[[int], None]) -> None:
        """**Collective** in spirit. The process ends.

        Args:
            failed: The engine had a fatal error.
            raised: This process ends by an exception.
            leave: Ends the process at once with an exit code (``os._exit``).
        """


def number_hosts(identities: Sequence[object]) -> tuple[int, ...]:
    """**Local.** Return the number of each rank's host, counted in the order of first ranks.

    Args:
        identities: By rank; equal for ranks of one host.
    """
    order = list(dict.fromkeys(identities))
    return tuple(order.index(identity) for identity in identities)


def find_topology(world: World, host_name: str | None, cores: Sequence[int]) -> Topology:
    """**Collective.** Return this rank's place.

    Ranks share a host when they can share memory; where any rank has a ``host_name``
    (HOROVOD_HOSTNAME), when their names are equal.

    Args:
        world: All ranks.
        host_name: As it was given to this rank; None: it was not.
        cores: Those that this process may use.
    """
    own_name = host_name or world.host_name()
    reports = world.allgather((own_name, host_name is not None, tuple(cores)))
    names = tuple(str(name) for name, _, _ in reports)
    by_name = any(is_given for _, is_given, _ in reports)
    hosts = number_hosts(names) if by_name else world.find_hosts()
    return place(world.rank, hosts, names, [own for _, _, own in reports])


def place(
    rank: int,
    hosts: tuple[int, ...],
    host_names: tuple[str, ...] = (),
    cores: Sequence[Sequence[int]] = (),
) -> Topology:
    """**Local.** Return the place of ``rank`` where rank r is on host ``hosts[r]``.

    Args:
        rank: Of this process.
        hosts: As of ``Topology``.
        host_names: As of ``Topology``.
        cores: By rank, those that it may use.
    """
    counts = [hosts.count(host) for host in sorted(set(hosts))]
    local = [hosts[:r].count(host) for r, host in enumerate(hosts)]
    here = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    across = [r for r, own in enumerate(local) if own == local[rank]]
    return Topology(
        rank=rank,
        size=len(hosts),
        local_rank=local[rank],
        local_size=len(here),
        cross_rank=across.index(rank),
        cross_size=len(across),
        homogeneous=len(set(counts)) == 1,
        hosts=hosts,
        host_names=host_names,
        cores=frozenset(core for r in here for core in (cores[r] if cores else ())),
    )


def is_list_of_ranks(comm: object) -> bool:
    """**Local.** Return whether ``comm`` is a list of whole numbers."""
    return (
        isinstance(comm, Sequence)
        and not isinstance(comm, str)
        and all(isinstance(rank, int) for rank in comm)
    )


def chosen_ranks(comm: Sequence[int], rank: int, size: int) -> tuple[int, ...]:
    """**Local.** Return the ranks that ``hvd.init(comm=[...])`` means.

    Args:
        comm: Ranks of all processes.
        rank: Of this process.
        size: Number of all processes.

    Raises:
        ValueError: This process is left out, a rank is there twice, or there is no such rank.
    """
    ranks = tuple(comm)
    if rank not in ranks:
        raise ValueError(f"hvd.init(comm={list(ranks)}): rank {rank} is not in the list")
    wrong = [each for each in ranks if not 0 <= each < size or ranks.count(each) > 1]
    if wrong:
        raise ValueError(
            f"hvd.init(comm={list(ranks)}): expected different ranks from 0 to {size - 1}, got "
            f"{wrong[0]}"
        )
    return ranks
