"""The workers of an elastic job, and their order. Pure; no clock."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from horovod.runner.placing import HostRanks, rank_places


class State(enum.Enum):
    """Where a worker is in its life."""

    STARTING = enum.auto()
    """Its process was started, and has asked for nothing yet."""
    WAITING = enum.auto()
    """It has asked for a round."""
    IN_ROUND = enum.auto()
    """It is a rank of the current round."""
    LEAVING = enum.auto()
    """It was told to end, or counts as lost; its process may still be there."""
    ENDED = enum.auto()


@dataclass
class Worker:
    """One process that the driver has had started.

    Attributes:
        number: Counted from 0 over the whole job.
        host: Name of its host, as found.
        slot: Its place there.
        state: Where it is in its life.
        rank: In the round that it was in last, -1 before.
        round: Number of that round, 0 before.
        has_state: It has the job's state: it was there from the first round on, was sent it, or
            was in a round in which one was committed.
        runs: Its engine of that round is there.
        got_on: A state was committed in that round, or it has run for long.
        asked_at: When it asked for a round.
        runs_since: When its engine was there.
    """

    number: int
    host: str
    slot: int
    state: State = State.STARTING
    rank: int = -1
    round: int = 0
    has_state: bool = False
    runs: bool = False
    got_on: bool = False
    asked_at: float = 0.0
    runs_since: float = 0.0

    @property
    def lives(self) -> bool:
        """Whether it can be counted on."""
        return self.state not in (State.LEAVING, State.ENDED)

    def __str__(self) -> str:
        rank = f"rank {self.rank}, " if self.rank >= 0 else ""
        return f"worker {self.number} ({rank}{self.host})"


def ranked(workers: Iterable[Worker], hosts: Sequence[str]) -> list[Worker]:
    """Return ``workers`` in the order of their next ranks.

    Those of a host are next to each other. Rank 0 has the state, if one of them has; those that
    have it keep their order, hosts as well as workers.

    Args:
        workers: Those of the round.
        hosts: Names of hosts, in the order in which new ones come.
    """
    all_workers = list(workers)
    last = max([each.rank for each in all_workers], default=0) + 1

    def place(worker: Worker) -> tuple[int, int]:
        return (worker.rank if worker.has_state else last, worker.slot)

    first: dict[str, int] = {}
    for each in all_workers:
        first[each.host] = min(first.get(each.host, last), place(each)[0])
    order = {name: number for number, name in enumerate(hosts)}

    def key(worker: Worker) -> tuple[int, int, str, tuple[int, int]]:
        host = worker.host
        return (first[host], order.get(host, len(order)), host, place(worker))

    return sorted(all_workers, key=key)


def places(workers: Sequence[Worker]) -> list[dict[str, int]]:
    """Return the place of each of ``workers``, which are in the order of their ranks.

    By the names of Horovod's variables without their prefix.
    """
    ranks: dict[str, list[int]] = {}
    for rank, worker in enumerate(workers):
        ranks.setdefault(worker.host, []).append(rank)
    hosts = [HostRanks(name=name, ranks=tuple(own)) for name, own in ranks.items()]
    by_rank = rank_places(hosts, len(workers))
    return [by_rank[rank] for rank in range(len(workers))]
