"""The time of one operation on data: what this engine's communicators do.

``S`` ranks on ``H`` hosts with ``L`` ranks each, ``M`` bytes:

* one host: all ranks read each other's memory, reduce-scatter and allgather;
* flat, several hosts: pairwise exchange, two rounds (small payloads: one); each rank sends to all
  others, so ``L (S - L) / S * M`` bytes leave a host in each round;
* hierarchical: local reduce-scatter, ``L`` allreduces of ``M / L`` between hosts at once, local
  allgather: ``(H - 1) / H * M`` bytes leave a host in each of two rounds.

All ranks of a host share its cross link.
"""

from __future__ import annotations

from autotune.costmodel.machine import Link, Machine

PIECE_BYTES = 4 * 2**20
"""A pairwise exchange moves so much at a time."""
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
    if machine.hosts == 1:
        return _local_allreduce_us(machine, size)
    if not two_level:
        lanes = machine.local_size
        return _exchange_us(machine.cross, size, machine.size, lanes, lanes, spans)
    local = _local_allreduce_us(machine, size)
    lanes = machine.local_size
    return local + _exchange_us(machine.cross, size / lanes, machine.hosts, 1, lanes, 1)


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


def _exchange_us(
    link: Link, size: float, ranks: int, neighbours: int, lanes: int, spans: int
) -> float:
    """Return the time of a pairwise allreduce over ``link``.

    Args:
        link: Connection between hosts.
        size: Bytes of each rank that takes part.
        ranks: Ranks that take part.
        neighbours: Those of them on one host; they do not use the link among themselves.
        lanes: Ranks of one host that use the link at the same time.
        spans: Separate pieces of memory.
    """
    away = ranks - neighbours
    if size <= SMALL_BYTES * spans:
        leaving = lanes * away * size
        return spans * _round_us(link, away) + leaving * link.us_per_byte
    rounds = 2 * max(spans, -(-size // PIECE_BYTES))
    leaving = 2 * lanes * away / ranks * size
    return rounds * _round_us(link, away) + leaving * link.us_per_byte


def _round_us(link: Link, messages: int) -> float:
    return link.alpha_us * (1 + MESSAGE_SHARE * (messages - 1))
