"""A step under a setting: when tensors are announced, how they fuse, what hides behind compute.

The engine announces what is ready ``cycle_time_ms`` after the first unannounced tensor became
ready, earlier when the unannounced bytes fill the fusion threshold or when the training thread
waits. Announced tensors fuse in order while they fit the threshold; operations run one at a time,
and the engine announces nothing while they run. The training thread waits after the last gradient.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
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
    """Prefix sums over the tensors of one operation: entry ``k`` is of the first ``k`` tensors.

    Attributes:
        upto: (n + 1,) how many of the first ``k`` tensors of the step are of this operation.
    """

    upto: list[int]
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


class Predictor:
    """What steps of one workload cost on one machine; what settings share is computed once."""

    def __init__(self, workload: Workload, machine: Machine) -> None:
        self._workload, self._machine = workload, machine
        self._every, reduced, gathered = _sums(workload)
        self._kinds = [
            _Operations(machine, sums, gathers)
            for sums, gathers in ((reduced, False), (gathered, True))
            if sums.upto[-1]
        ]

    def __call__(self, params: CommParams) -> Prediction:
        """Return what one step costs under ``params``."""
        workload, machine, every = self._workload, self._machine, self._every
        ready, n = workload.ready_us, len(workload.sizes)
        waits_at, stolen = ready[-1], machine.engine.stolen
        threshold, cycle_us = params.fusion_threshold_bytes, 1000 * params.cycle_time_ms
        fixed, each = _negotiation_us(machine, params, n)
        costs = [kind.under(params) for kind in self._kinds]
        free = delay = 0.0
        first = announcements = operations = 0
        while first < n:
            filled = bisect_left(every, every[first] + max(threshold, 1), first + 1)
            filled_at = ready[filled - 1] if filled <= n else waits_at
            due = min(ready[first] + cycle_us, filled_at, waits_at)
            now = max(free, due + delay)
            end = n if now >= waits_at + delay else max(first + 1, bisect_right(ready, now - delay))
            work = fixed + each * (end - first)
            free = now + work
            for cost in costs:
                count, busy = cost(first, end)
                operations += count
                free += busy
            if now < waits_at + delay:
                delay += stolen * work
            announcements += 1
            first = end
        computed = workload.compute_us + delay
        step = max(free + workload.compute_us - waits_at, computed)
        exposed = max(0.0, free - waits_at - delay)
        return Prediction(
            step_us=step, exposed_us=exposed, announcements=announcements, operations=operations
        )


def predict(workload: Workload, machine: Machine, params: CommParams) -> Prediction:
    """Return what one step of ``workload`` costs on ``machine`` under ``params``."""
    return Predictor(workload, machine)(params)


def _negotiation_us(machine: Machine, params: CommParams, tensors: int) -> tuple[float, float]:
    """Return the time to agree on some of a step's ``tensors``: of an announcement, per tensor.

    A cache that is too small for a step forgets, least recently used first, exactly what is needed
    next: nothing hits.
    """
    engine = machine.engine
    if machine.size == 1:
        return 0.0, 0.0
    known = params.cache_capacity >= tensors
    return engine.announce_us, engine.hit_us if known else engine.miss_us * machine.size


@dataclass(frozen=True)
class _Chain:
    """Operations of one kind whose tensors fuse up to a threshold, one after the other.

    Entry ``k`` is of the operation that starts with tensor ``k`` where nothing cuts it short.

    Attributes:
        after: (n,) the first tensor that is not part of the operation.
        time: (n + 1,) of the operation and of all that follow it.
        count: (n + 1,) of the same, their number.
    """

    after: list[int]
    time: list[float]
    count: list[int]


class _Operations:
    """The operations of one kind (allreduce or allgather), as a step's announcements need them."""

    def __init__(self, machine: Machine, sums: _Sums, gathers: bool) -> None:
        self._machine, self._sums, self._gathers = machine, sums, gathers
        self._chains: dict[tuple[int, bool], _Chain] = {}

    def under(self, params: CommParams) -> Callable[[int, int], tuple[int, float]]:
        """Return what gives number and time of the operations on tensors ``first`` to ``end``."""
        two_level = (
            params.hierarchical_allgather if self._gathers else params.hierarchical_allreduce
        )
        key = (params.fusion_threshold_bytes, two_level)
        if key not in self._chains:
            self._chains[key] = self._chain(*key)
        chain, upto, each = self._chains[key], self._sums.upto, self._machine.engine.tensor_us
        after = chain.after

        def cost(first: int, end: int) -> tuple[int, float]:
            start, last = upto[first], upto[end]
            k = start
            while k < last and after[k] <= last:
                k = after[k]
            time = (last - start) * each + chain.time[start] - chain.time[k]
            count = chain.count[start] - chain.count[k]
            return (count + 1, time + self._time(k, last, two_level)) if k < last else (count, time)

        return cost

    def _chain(self, threshold: int, two_level: bool) -> _Chain:
        size = self._sums.size
        n = len(size) - 1
        limit = threshold // (self._machine.size if self._gathers else 1)  # all ranks' parts count
        after, time, count = [0] * n, [0.0] * (n + 1), [0] * (n + 1)
        for k in reversed(range(n)):
            fits = bisect_right(size, size[k] + limit, k + 1) - 1 if threshold > 0 else k
            after[k] = max(fits, k + 1)
            time[k] = time[after[k]] + self._time(k, after[k], two_level)
            count[k] = count[after[k]] + 1
        return _Chain(after, time, count)

    def _time(self, k: int, after: int, two_level: bool) -> float:
        data = _data_us(self._machine, self._sums, k, after, self._gathers, two_level)
        return self._machine.engine.operation_us + data


def _data_us(
    machine: Machine, sums: _Sums, k: int, after: int, gathers: bool, two_level: bool
) -> float:
    total = sums.size[after] - sums.size[k]
    if gathers:
        copied = total * (1 + machine.size) if after - k > 1 else total
        moved = allgather_us(machine, total, two_level=two_level)
        return moved + 0.5 * copied * machine.engine.copy_us_per_byte
    packing = after - k > 1 and machine.hosts > 1 and not two_level
    packed = sums.packed[after] - sums.packed[k] if packing else 0
    large = sums.large[after] - sums.large[k]
    spans = large + (1 if packed else 0) if packing else after - k
    moved = allreduce_us(machine, total, spans=max(1, spans), two_level=two_level)
    return moved + packed * machine.engine.copy_us_per_byte
