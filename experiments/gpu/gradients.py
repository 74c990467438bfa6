"""Part 1: gradients that are all there at once, against one flat allreduce of the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ground import MIB, WARM_UP, Ground, best, in_turns, rows
from networks import sizes_of

import horovod.torch as hvd

STEPS = 30
THRESHOLDS_MIB = (0, 1, 4, 16, 64, 128, 512)
CYCLES_MS = (0.1, 0.5, 1.0, 5.0)
LISTS = {"resnet50": ("single", "grouped"), "gpt350m": ("single",)}
"""{whose gradients: how the search hands them over}."""

Key = tuple[Any, ...]


class Gradients:
    """One list of gradients; number i of rank r is full of i % 7 + r, and their mean stays."""

    def __init__(self, name: str, ground: Ground, tiny: bool) -> None:
        self.ground, self.name = ground, name
        sizes = sizes_of(name, tiny)
        self.tensors = [
            torch.full((size,), float(i % 7 + hvd.rank()), device=ground.device)
            for i, size in enumerate(sizes)
        ]
        self.flat = torch.zeros(sum(sizes), device=ground.device)
        self.apart = [torch.zeros(size, device=ground.device) for size in sizes]
        self.op = dist.ReduceOp.AVG if ground.gpu else dist.ReduceOp.SUM

    def single(self) -> None:
        handles = [
            hvd.allreduce_async_(tensor, name=f"{self.name}.{i}")
            for i, tensor in enumerate(self.tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.autotune.step()

    def grouped(self) -> None:
        hvd.synchronize(hvd.grouped_allreduce_async_(self.tensors, name=self.name))
        hvd.autotune.step()

    def floor(self) -> None:
        dist.all_reduce(self.flat, self.op)

    def each(self) -> None:
        works = [dist.all_reduce(tensor, self.op, async_op=True) for tensor in self.apart]
        for work in works:
            work.wait()

    def turn(self, key: Key) -> Callable[[], float]:
        """Return what a turn of ``key`` does: ("floor",), ("single", MiB, ms) and so on."""
        step = getattr(self, key[0])

        def run() -> float:
            if len(key) == 3:
                self.ground.put(step, int(key[1] * MIB), key[2])
            else:
                for _ in range(WARM_UP):
                    step()
            return self.ground.timed(step, STEPS)

        return run

    def check(self) -> None:
        """Every element of every gradient is the mean."""
        for i, tensor in enumerate(self.tensors):
            right = i % 7 + (hvd.size() - 1) / 2
            assert bool((tensor == right).all()), f"{self.name}: gradient {i}"


def run(ground: Ground, tiny: bool, seconds: float) -> dict[str, Any]:
    """**Collective.** A search through the grid, then fresh rounds of what matters."""
    result = {}
    for name, ways in LISTS.items():
        gradients = Gradients(name, ground, tiny)
        default = (ground.default.fusion_threshold_bytes / MIB, ground.default.cycle_time_ms)
        grid = [(way, t, c) for way in ways for t in THRESHOLDS_MIB for c in CYCLES_MS]
        turns = {key: gradients.turn(key) for key in [*grid, ("floor",)]}
        searched = in_turns(turns, 0.5 * seconds)
        gradients.check()
        keys: list[Key] = [("floor",), ("each",), ("single", 0, default[1])]
        keys += [("single", *default), ("grouped", *default), *(best(searched, w) for w in ways)]
        final = in_turns({key: gradients.turn(key) for key in keys}, 0.5 * seconds, least=5)
        gradients.check()
        result[name] = {
            "tensors": len(gradients.tensors),
            "bytes": 4 * gradients.flat.numel(),
            "steps_per_sample": STEPS,
            "default": default,
            "best": {way: best(searched, way) for way in ways},
            "grid": rows(searched),
            "in_turns": rows(final),
        }
        del gradients
    return result
