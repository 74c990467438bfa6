"""A step under a setting: when tensors are announced, how they fuse, what hides behind compute.

The engine announces what is ready ``cycle_time_ms`` after the first unannounced tensor became
ready, earlier when the unannounced bytes fill the fusion threshold or when the training thread
waits. Announced tensors fuse in order while they fit the threshold; operations run one at a time,
and the engine announces nothing while they run. The training thread waits after the last gradient.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from autotune.costmodel.collectives import allgather_us, allreduce_us
from autotune.costmodel.machine import Machine
from autotune.costmodel.workload import Workload
from autotune.trial import CommParams

IN_PLACE_BYTES = 128 * 1024
"""Tensors of this size and above are not copied into the fusion buffer."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a step costs.

    Attributes:
        step_us: Time of the step.
        exposed_us: Time that the training thread waits for communication.
        announcements, operations: How many of them.
    """

    step_us: float
    exposed_us: float
    announcements: int
    operations: int


@dataclass(frozen=True)
class _Sums:
    """Prefix sums over the tensors of one operation: entry ``k`` is of the first ``k`` tensors."""

    upto: list[int]  # (n + 1,) how many of the first n tensors of the step are of this operation
    size: list[int]
    packed: list[int]
    large: list[int]

    @classmethod
    def of(cls, sizes: tuple[int, ...], chosen: list[bool]) -> _Sums:
        mine = [size for size, yes in zip(sizes, chosen, strict=True) if yes]
        return cls(
            upto=[0, *accumulate(chosen)],
            size=[0, *accumulate(mine)],
            packed=[0, *accumulate(size if size < IN_PLACE_BYTES else 0 for size in mine)],
            large=[0, *accumulate(int(size >= IN_PLACE_BYTES) for size in mine)],
        )


@lru_cache(maxsize=64)
def _sums(workload: Workload) -> tuple[list[int], _Sums, _Sums]:
    gathered = [k in workload.gathered for k in range(len(workload.sizes))]
    reduced = [not yes for yes in gathered]
    every = [0, *accumulate(workload.sizes)]
    return every, _Sums.of(workload.sizes, reduced), _Sums.of(workload.sizes, gathered)


def predict(workload: Workload, machine: Machine, params: CommParams) -> Prediction:
    """Return what one step of ``workload`` costs on ``machine`` under ``params``."""
    every, reduced, gathered = _sums(workload)
    ready, n = workload.ready_us, len(workload.sizes)
    waits_at, stolen = ready[-1], machine.engine.stolen
    threshold, cycle_us = params.fusion_threshold_bytes, 1000 * params.cycle_time_ms
    free = delay = 0.0
    first = announcements = operations = 0
    while first < n:
        filled = bisect_left(every, every[first] + max(threshold, 1), first + 1)
        filled_at = ready[filled - 1] if filled <= n else waits_at
        due = min(ready[first] + cycle_us, filled_at, waits_at)
        now = max(free, due + delay)
        end = n if now >= waits_at + delay else max(first + 1, bisect_right(ready, now - delay))
        work = _negotiation_us(machine, params, end - first, n)
        count, busy = _operations(machine, params, reduced, first, end, False)
        more, busy_too = _operations(machine, params, gathered, first, end, True)
        free = now + work + busy + busy_too
        if now < waits_at + delay:
            delay += stolen * work
        operations += count + more
        announcements += 1
        first = end
    computed = workload.compute_us + delay
    step = max(free + workload.compute_us - waits_at, computed)
    exposed = max(0.0, free - waits_at - delay)
    return Prediction(
        step_us=step, exposed_us=exposed, announcements=announcements, operations=operations
    )


def _negotiation_us(machine: Machine, params: CommParams, tensors: int, of: int) -> float:
    """Return the time to agree on ``tensors`` tensors of a step that has ``of``.

    A cache that is too small for a step forgets, least recently used first, exactly what is needed
    next: nothing hits.
    """
    engine = machine.engine
    if machine.size == 1:
        return 0.0
    known = params.cache_capacity >= of
    each = engine.hit_us if known else engine.miss_us * machine.size
    return engine.announce_us + each * tensors


def _operations(
    machine: Machine, params: CommParams, sums: _Sums, first: int, end: int, gathers: bool
) -> tuple[int, float]:
    """Return number and time of the operations on tensors ``first`` to ``end`` of the step."""
    k, last = sums.upto[first], sums.upto[end]
    if k == last:
        return 0, 0.0
    engine, threshold, size = machine.engine, params.fusion_threshold_bytes, sums.size
    time, count = (last - k) * engine.tensor_us, 0
    scale = machine.size if gathers else 1  # a gathered tensor counts with all ranks' parts
    while k < last:
        fits = bisect_right(size, size[k] + threshold // scale, k + 1, last + 1) - 1
        after = max(fits, k + 1) if threshold > 0 else k + 1
        time += engine.operation_us + _data_us(machine, params, sums, k, after, gathers)
        count += 1
        k = after
    return count, time


def _data_us(
    machine: Machine, params: CommParams, sums: _Sums, k: int, after: int, gathers: bool
) -> float:
    total = sums.size[after] - sums.size[k]
    if gathers:
        two_level = params.hierarchical_allgather
        copied = total * (1 + machine.size) if after - k > 1 else total
        moved = allgather_us(machine, total, two_level=two_level)
        return moved + 0.5 * copied * machine.engine.copy_us_per_byte
    two_level = params.hierarchical_allreduce
    packing = after - k > 1 and machine.hosts > 1 and not two_level
    packed = sums.packed[after] - sums.packed[k] if packing else 0
    large = sums.large[after] - sums.large[k]
    spans = large + (1 if packed else 0) if packing else after - k
    moved = allreduce_us(machine, total, spans=max(1, spans), two_level=two_level)
    return moved + packed * machine.engine.copy_us_per_byte
