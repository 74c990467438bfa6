"""The time of one operation on data: what this engine's communicators do.

``S`` ranks on ``H`` hosts with ``L`` ranks each, ``M`` bytes:

* one host: all ranks read each other's memory, reduce-scatter and allgather;
* flat, several hosts: messages in stages, first among the ranks of a host, then between hosts
  (csrc/comm/p2p/stages.h); two rounds a stage, small payloads one: ``(H - 1) / H * M`` bytes leave
  a host in each of two rounds, small payloads ``L (H - 1) M`` in one. A large payload goes in
  pieces: while one is in its second round the next one is in its first, so each costs one wait;
* hierarchical: local reduce-scatter in shared memory, ``L`` allreduces of ``M / L`` between hosts
  at once, local allgather: the same bytes leave a host.

All ranks of a host share its cross link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from autotune.costmodel.machine import Link, Machine

PIECE_BYTES = 2**20
"""An allreduce by messages goes in pieces of so much."""
SMALL_BYTES = 16 * 1024
"""Up to here one round of whole copies replaces two rounds of slices."""
MESSAGE_SHARE = 0.25
"""Of alpha: what each further message of a round costs its sender."""


def allreduce_us(machine: Machine, size: float, *, spans: int = 1, two_level: bool) -> float:
    """Return the time of one allreduce in microseconds.

    Args:
        machine: Where it runs.
        size: Payload of one rank in bytes.
        spans: Separate pieces of memory; a flat exchange between hosts pays its rounds for each.
        two_level: Whether the hierarchical algorithm is used; no difference on one host.
    """
    lanes = machine.local_size
    if machine.hosts == 1:
        return _local_allreduce_us(machine, size)
    between = [_Stage(machine.cross, ranks, lanes) for ranks in stage_sizes(machine.hosts)]
    if two_level:
        return _local_allreduce_us(machine, size) + _exchange_us(between, size / lanes, 1)
    within = [_Stage(machine.local, ranks, 1) for ranks in stage_sizes(lanes)]
    return _exchange_us([*within, *between], size, spans)


def allgather_us(machine: Machine, size: float, *, two_level: bool) -> float:
    """Return the time of one allgather; ``size`` is what one rank contributes, in bytes."""
    lanes, hosts = machine.local_size, machine.hosts
    total = size * machine.size
    if hosts == 1:
        return machine.local.alpha_us + total * machine.local.us_per_byte
    if not two_level:
        away = machine.size - lanes
        latency = _round_us(machine.cross, away)
        return latency + lanes * away * size * machine.cross.us_per_byte
    cross = _round_us(machine.cross, hosts - 1)
    cross += (hosts - 1) * lanes * size * machine.cross.us_per_byte
    return cross + 3 * machine.local.alpha_us + 2 * total * machine.local.us_per_byte


def _local_allreduce_us(machine: Machine, size: float) -> float:
    lanes, link = machine.local_size, machine.local
    if lanes == 1:
        return 0.0
    return 2 * (link.alpha_us + (lanes - 1) / lanes * size * link.us_per_byte)


@lru_cache(maxsize=256)
def stage_sizes(ranks: int) -> tuple[int, ...]:
    """Return how many ranks exchange directly in each stage of ``ranks`` that are alike.

    The factors of ``ranks`` for which the latencies of all stages' rounds add up to least; of
    equals the fewest. None for one rank.
    """
    if ranks < 2:
        return ()
    choices: list[tuple[int, ...]] = [(ranks,)]
    for first in range(2, ranks):
        if first * first <= ranks and ranks % first == 0:
            choices.append(tuple(sorted((first, *stage_sizes(ranks // first)))))
    return min(choices, key=lambda sizes: (sum(map(_messages_cost, sizes)), len(sizes)))


@dataclass(frozen=True)
class _Stage:
    """A stage of an exchange by messages.

    Attributes:
        link: What the messages go over.
        ranks: So many exchange directly.
        sharing: Ranks of one host that use the link at the same time.
    """

    link: Link
    ranks: int
    sharing: int


def _exchange_us(stages: Sequence[_Stage], size: float, spans: int) -> float:
    """Return the time of an allreduce of ``size`` bytes by messages.

    Args:
        stages: In order; each leaves one share per rank to the next one.
        size: Bytes of each rank.
        spans: Separate pieces of memory.
    """
    if size <= SMALL_BYTES * spans:
        return sum(
            spans * _round_us(stage.link, stage.ranks - 1)
            + stage.sharing * (stage.ranks - 1) * size * stage.link.us_per_byte
            for stage in stages
        )
    pieces = max(spans, -(-size // PIECE_BYTES))
    waits = pieces + 2 * len(stages) - 1
    time = waits * max((_round_us(stage.link, stage.ranks - 1) for stage in stages), default=0.0)
    left = size
    for stage in stages:
        moved = 2 * stage.sharing * (stage.ranks - 1) / stage.ranks * left
        time += moved * stage.link.us_per_byte
        left /= stage.ranks
    return time


def _round_us(link: Link, messages: int) -> float:
    return link.alpha_us * _messages_cost(messages + 1)


def _messages_cost(ranks: int) -> float:
    """Return the latency of a round in which ``ranks`` exchange directly, in units of alpha."""
    return 1 + MESSAGE_SHARE * (ranks - 2)
