"""The judge: the true step time of a simulated job. Shares no code with ``autotune.costmodel``.

It models the same engine (announce after a cycle time, when bytes fill the threshold or when the
training thread waits; fuse; one operation at a time), with terms that the tuner's trend lacks:

=================  =============================================================================
term               effect
=================  =============================================================================
ring               GPU clusters reduce in a ring: 2 (S - 1) steps of latency, 2 (S - 1) / S of M
congestion         flows that share a cable slow each other down: log2 of their number
incast             large operations overrun buffers: up to so much more time per byte
rendezvous         messages above 64 KiB pay a handshake
cache              copies and local reductions of more than the last-level cache run slower
stragglers         every announcement waits for the slowest of S ranks: grows with log2 S
contention         communication slows the computation that it overlaps
polling            each announcement takes time from the training thread
=================  =============================================================================

All constants of a ``Cluster`` are drawn up to three times off from what its name says.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from autotune.trial import CommParams

RENDEZVOUS_BYTES = 64 * 1024
INCAST_BYTES = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Constants of one cluster; times in microseconds.

    Attributes:
        hosts, lanes: Hosts, and ranks on each.
        ring: Whether flat operations use a ring; else pairwise exchange.
        alpha, beta: A message, and a byte, between hosts.
        local_alpha, local_beta: The same within a host.
        congestion, incast, rendezvous: Relative, see the table above.
        cache_bytes, cache_penalty: Last-level cache, and how much slower beyond it.
        straggler, announce, hit, miss, operation, tensor, copy: Costs in the engine.
        contention, polling: Shares of communication and of announcing that slow the computation.
    """

    hosts: int
    lanes: int
    ring: bool = False
    alpha: float
    beta: float
    local_alpha: float = 8.0
    local_beta: float = 2e-4
    congestion: float = 0.05
    incast: float = 0.15
    rendezvous: float = 1.0
    cache_bytes: float = 8 * 2**20
    cache_penalty: float = 0.7
    straggler: float = 40.0
    announce: float = 60.0
    hit: float = 0.5
    miss: float = 4.0
    operation: float = 12.0
    tensor: float = 1.0
    copy: float = 3e-4
    contention: float = 0.05
    polling: float = 0.5

    @property
    def size(self) -> int:
        return self.hosts * self.lanes

    def drawn(self, rng: np.random.Generator) -> Cluster:
        """Return this cluster with constants up to three times off; links are never faster."""
        both = ("alpha", "local_alpha", "congestion", "incast", "rendezvous", "cache_bytes")
        both += ("straggler", "announce", "hit", "miss", "operation", "tensor", "copy")
        both += ("contention", "polling")
        factors = {name: 3 ** rng.uniform(-1, 1) for name in both}
        factors |= {name: 3 ** rng.uniform(0, 0.7) for name in ("beta", "local_beta")}
        return replace(self, **{name: getattr(self, name) * f for name, f in factors.items()})


@dataclass(frozen=True, kw_only=True)
class Step:
    """Tensors of a step: bytes, ready times (us), operations; computation in all (us)."""

    sizes: tuple[int, ...]
    ready: tuple[float, ...]
    compute: float
    gathered: tuple[bool, ...]

    @classmethod
    def of(
        cls, elements: Sequence[int], *, compute_ms: float, gathered: Sequence[int] = ()
    ) -> Step:
        """A third of the time is forward; the rest goes by the square root of the elements."""
        weights = [math.sqrt(count) + 20 for count in elements]
        done = list(accumulate(weights))
        compute = 1000 * compute_ms
        ready = tuple(compute * (0.33 + 0.67 * part / done[-1]) for part in done)
        flags = tuple(k in set(gathered) for k in range(len(elements)))
        sizes = tuple(4 * count for count in elements)
        return cls(sizes=sizes, ready=ready, compute=ready[-1], gathered=flags)


def _beyond(size: float, limit: float) -> float:
    """Return 0 far below ``limit``, 1 far above it, smoothly over two octaves each way."""
    return 1 / (1 + math.exp(-2 * math.log2(max(size, 1.0) / limit)))


def _message(c: Cluster, size: float) -> float:
    return c.alpha * (1 + (c.rendezvous if size > RENDEZVOUS_BYTES else 0))


def _local(c: Cluster, size: float) -> float:
    """Reduce-scatter and allgather within a host."""
    if c.lanes == 1:
        return 0.0
    slower = 1 + c.cache_penalty * _beyond(size, c.cache_bytes)
    moved = 2 * (c.lanes - 1) / c.lanes * size * c.local_beta * slower
    return moved + c.local_alpha * (2 * (c.lanes - 1) if c.ring else 2 + 0.3 * c.lanes)


def _cable(c: Cluster, leaving: float, flows: int, size: float) -> float:
    """Bytes that leave one host in ``flows`` flows of one operation of ``size`` bytes."""
    crowd = 1 + c.congestion * math.log2(max(flows, 1))
    burst = 1 + c.incast * _beyond(size, INCAST_BYTES)
    return leaving * c.beta * crowd * burst


def _flat(c: Cluster, size: float, pieces: int) -> float:
    if c.hosts == 1:
        return _local(c, size)
    s = c.size
    if c.ring:
        each = size / s
        latency = 2 * (s - 1) * (_message(c, each) * c.hosts + c.local_alpha * (s - c.hosts)) / s
        return latency + _cable(c, 2 * (s - 1) / s * size, 1, size)
    away = s - c.lanes
    if size <= 16384 * pieces:
        latency = pieces * c.alpha * (1 + 0.2 * (away - 1))
        return latency + _cable(c, c.lanes * away * size, c.lanes * away, size)
    each = size / pieces / s
    rounds = 2 * max(pieces, math.ceil(size / 4194304))
    latency = rounds * _message(c, each) * (1 + 0.2 * (away - 1))
    return latency + _cable(c, 2 * c.lanes * away / s * size, c.lanes * away, size)


def _two_level(c: Cluster, size: float) -> float:
    share, h = size / c.lanes, c.hosts
    steps = 2 * (h - 1) if c.ring else 2 * (1 + 0.2 * (h - 2))
    between = steps * _message(c, share / h) + c.straggler
    flows = c.lanes if c.ring else c.lanes * (h - 1)
    return _local(c, size) + between + _cable(c, 2 * (h - 1) / h * size, flows, size)


def _gather(c: Cluster, size: float, two_level: bool) -> float:
    total, away = size * c.size, c.size - c.lanes
    if c.hosts == 1:
        return c.local_alpha * c.lanes + total * c.local_beta
    if not two_level:
        flows = c.lanes * away
        return _message(c, size) * (1 + 0.2 * away) + _cable(c, c.lanes * away * size, flows, size)
    between = _message(c, size * c.lanes) * (1 + 0.2 * (c.hosts - 2)) + c.straggler
    moved = _cable(c, (c.hosts - 1) * c.lanes * size, c.hosts - 1, size)
    return between + moved + 2 * total * c.local_beta + 4 * c.local_alpha


def _operation(c: Cluster, sizes: Sequence[int], gathers: bool, p: CommParams) -> float:
    total = float(sum(sizes))
    work = c.operation + c.tensor * len(sizes)
    if gathers:
        return work + _gather(c, total, p.hierarchical_allgather)
    small = [size for size in sizes if size < 131072]
    packs = len(sizes) > 1 and (c.ring or (c.hosts > 1 and not p.hierarchical_allreduce))
    if packs:
        packed = total if c.ring else float(sum(small))
        work += packed * c.copy * (1 + c.cache_penalty * _beyond(packed, c.cache_bytes))
    if p.hierarchical_allreduce and c.hosts > 1:
        return work + _two_level(c, total)
    pieces = 1 if c.ring or not packs else len(sizes) - len(small) + bool(small)
    return work + _flat(c, total, max(pieces, 1))


def _groups(step: Step, first: int, end: int, p: CommParams, ranks: int) -> list[list[int]]:
    """Tensors that fuse, in the order in which their groups were opened."""
    groups: list[list[int]] = []
    filling: dict[bool, tuple[list[int], int]] = {}
    for k in range(first, end):
        gathers = step.gathered[k]
        size = step.sizes[k] * (ranks if gathers else 1)
        group, filled = filling.get(gathers, ([], 0))
        if not group or p.fusion_threshold_bytes <= 0:
            fresh = True
        else:
            fresh = filled + size > p.fusion_threshold_bytes
        if fresh:
            group, filled = [], 0
            groups.append(group)
        group.append(k)
        filling[gathers] = (group, filled + size)
    return groups


def _announced_at(step: Step, first: int, p: CommParams, delay: float, waits_at: float) -> float:
    """When the tensors from ``first`` on would be announced by an engine that is free."""
    until = min(step.ready[first] + delay + 1000 * p.cycle_time_ms, waits_at)
    filled = 0
    for k in range(first, len(step.sizes)):
        if step.ready[k] + delay >= until:
            return until
        filled += step.sizes[k]
        if filled >= p.fusion_threshold_bytes:
            return step.ready[k] + delay
    return until


def step_times(step: Step, c: Cluster, p: CommParams) -> tuple[float, float]:
    """Return (time of a step, time the training thread waits in it), in microseconds."""
    n, free, delay, first = len(step.sizes), 0.0, 0.0, 0
    spread = math.log2(c.size)
    each = c.hit if p.cache_capacity >= n else c.miss * c.size
    while first < n:
        waits_at = step.ready[-1] + delay
        now = max(free, _announced_at(step, first, p, delay, waits_at))
        end = n if now >= waits_at else max(first + 1, bisect_right(step.ready, now - delay))
        negotiation = c.announce + c.straggler * spread + each * (end - first)
        busy = sum(
            _operation(c, [step.sizes[k] for k in group], step.gathered[group[0]], p)
            for group in _groups(step, first, end, p, c.size)
        )
        free = now + negotiation + busy
        overlapped = min(free, waits_at) - min(now, waits_at)
        polled = c.polling * c.announce if now < waits_at else 0.0
        delay += c.contention * overlapped + polled
        first = end
    computed = step.compute + delay
    return max(free, computed), max(0.0, free - computed)
