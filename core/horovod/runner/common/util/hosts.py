"""Which rank runs where, out of a list of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod.runner import hosts as lists


@dataclass
class HostInfo:
    """A host and how many ranks it takes."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """**Local.** Return the host of ``HOST:SLOTS``; one slot where it says none."""
        ((name, slots),) = lists.parse_hosts(host_string)
        return HostInfo(name, 1 if slots is None else slots)


@dataclass
class SlotInfo:
    """The place of one rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int | None = None
    local_size: int | None = None
    cross_size: int | None = None

    def to_response_string(self) -> str:
        """**Local.** Return rank, size, local and cross ones, with commas between."""
        ranks = (self.rank, self.size, self.local_rank, self.local_size)
        return ",".join(map(str, (*ranks, self.cross_rank, self.cross_size)))


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """**Local.** Return the hosts of ``HOST:SLOTS,HOST:SLOTS,...``.

    Raises:
        ValueError: It is no such list.
    """
    return [HostInfo(name, slots or 1) for name, slots in lists.parse_hosts(hosts_string)]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """**Local.** Return (names, {name: slots}); ValueError as ``parse_hosts``."""
    parsed = parse_hosts(hosts)
    return [host.hostname for host in parsed], {host.hostname: host.slots for host in parsed}


def parse_host_files(filename: str) -> str:
    """**Local.** Return ``HOST:SLOTS,...`` of a file of lines ``HOST slots=N``.

    Raises:
        ValueError: It cannot be read, or a line is something else.
    """
    hosts = lists.parse_hostfile(Path(filename))
    return ",".join(f"{name}:{1 if slots is None else slots}" for name, slots in hosts)


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """**Local.** Return the places of the ranks: hosts are filled one after the other.

    Args:
        hosts: In order.
        min_num_proc: Ranks that must find a place.
        max_num_proc: Ranks at most; None: as many as there must be.

    Raises:
        ValueError: There are too few slots.
    """
    room = sum(host.slots for host in hosts)
    if room < min_num_proc:
        raise ValueError(f"the hosts have {room} slots: expected at least {min_num_proc}")
    size = min(room, min_num_proc if max_num_proc is None else max_num_proc)
    places: list[tuple[str, int, int]] = []  # (host, its number, local rank)
    for number, host in enumerate(hosts):
        taken = range(min(host.slots, size - len(places)))
        places += [(host.hostname, number, local_rank) for local_rank in taken]
    slots = []
    for rank, (name, number, local_rank) in enumerate(places):
        lane = [other for _, other, place in places if place == local_rank]
        local_size = sum(other == number for _, other, _ in places)
        place = (rank, local_rank, lane.index(number), size, local_size, len(lane))
        slots.append(SlotInfo(name, *place))
    return slots
