"""Which rank runs on which host, where no MPI decides it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod.common.nodelist import expand, repeated
from horovod.runner.hosts import Hosts
from horovod.runner.mpirun import is_here

THIS_HOST = ""


@dataclass(frozen=True, kw_only=True)
class HostRanks:
    """The ranks of one host.

    Attributes:
        name: How ssh reaches it, [user@]name; ``THIS_HOST`` for the launcher's own.
        ranks: Its ranks, ascending.
    """

    name: str
    ranks: tuple[int, ...]


def place_ranks(hosts: Hosts, size: int) -> list[HostRanks]:
    """Return where ``size`` ranks run: host after host, as far as their slots reach. **Local.**

    Args:
        hosts: (name, slots or None for one) in order; empty: all ranks run here.
        size: Number of ranks.

    Raises:
        ValueError: There are fewer slots than ranks.
    """
    if not hosts:
        return [HostRanks(name=THIS_HOST, ranks=tuple(range(size)))]
    room = sum(1 if slots is None else slots for _, slots in hosts)
    if room < size:
        shown = ",".join(name if slots is None else f"{name}:{slots}" for name, slots in hosts)
        raise ValueError(
            f"-np {size}: the hosts have room for {room} ranks ({shown}); name more slots, as in "
            f"-H {hosts[0][0]}:{size}"
        )
    ranks_of: dict[str, list[int]] = {}
    rank = 0
    for name, slots in hosts:
        taken = min(1 if slots is None else slots, size - rank)
        here = is_here(name.rpartition("@")[2])
        ranks_of.setdefault(THIS_HOST if here else name, []).extend(range(rank, rank + taken))
        rank += taken
    return [HostRanks(name=name, ranks=tuple(ranks)) for name, ranks in ranks_of.items() if ranks]


def rank_places(hosts: Sequence[HostRanks], size: int) -> dict[int, dict[str, int]]:
    """Return each rank's place, by the names of Horovod's variables without their prefix."""
    places: dict[int, dict[str, int]] = {}
    for host in hosts:
        for local_rank, rank in enumerate(host.ranks):
            across = [other for other in hosts if len(other.ranks) > local_rank]
            places[rank] = {
                "RANK": rank,
                "SIZE": size,
                "LOCAL_RANK": local_rank,
                "LOCAL_SIZE": len(host.ranks),
                "CROSS_RANK": across.index(host),
                "CROSS_SIZE": len(across),
            }
    return places


def allotted_hosts(environ: Mapping[str, str]) -> Hosts:
    """Return the hosts that a queue has allotted, with their slots; none where it says none.

    Slurm, LSF, PBS and Grid Engine. **Local.**
    """
    for find in (_slurm, _lsf, _pbs, _grid_engine):
        if hosts := find(environ):
            return hosts
    return []


def other_hosts(environ: Mapping[str, str]) -> Hosts:
    """Return the hosts that a queue has allotted, none where that is this one alone. **Local.**

    Its slots then say nothing: the step in which the launcher runs may have one task.
    """
    hosts = allotted_hosts(environ)
    return [] if all(is_here(name) for name, _ in hosts) else hosts


def _slurm(environ: Mapping[str, str]) -> Hosts:
    names = expand(environ.get("SLURM_JOB_NODELIST", ""))
    for variable in ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"):
        slots = repeated(environ.get(variable, ""))
        if names and len(slots) == len(names):
            return list(zip(names, slots, strict=True))
    return [(name, None) for name in names]


def _lsf(environ: Mapping[str, str]) -> Hosts:
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    pairs = list(zip(words[::2], words[1::2], strict=False))
    return [(name, int(slots)) for name, slots in pairs if slots.isdecimal()]


def _pbs(environ: Mapping[str, str]) -> Hosts:
    slots: dict[str, int] = {}
    for line in _lines(environ.get("PBS_NODEFILE", "")):
        slots[line.strip()] = slots.get(line.strip(), 0) + 1
    return [(name, number) for name, number in slots.items() if name]


def _grid_engine(environ: Mapping[str, str]) -> Hosts:
    rows = [line.split() for line in _lines(environ.get("PE_HOSTFILE", ""))]
    return [(row[0], int(row[1])) for row in rows if len(row) > 1 and row[1].isdecimal()]


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines() if file else []
    except (OSError, UnicodeDecodeError):
        return []
