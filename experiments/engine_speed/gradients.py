"""Bare gradients of a large model through the engine, over what MPI needs for the same bytes."""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from harness import summary
from mpi4py import MPI
from settings import Setting, in_force, propose

import horovod.torch as hvd
from horovod.common import basics

KIB, MIB = 1024, 2**20
FLOOR_PIECES = (256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 1 << 40)
GRIDS = {
    "wide": (
        (0, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 128 * MIB),
        (0.1, 0.5, 1.0, 2.5, 5.0, 10.0),
    ),
    "narrow": ((0, MIB, 16 * MIB, 64 * MIB), (0.1, 1.0, 10.0)),
}
SAMPLES = 2
"""Steps, and floors, per visit of a setting."""


def timed_ms(action: Callable[[], None]) -> float:
    """Return the time of one call on this rank in ms, all ranks starting together."""
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


class Floor:
    """Bare in-place MPI_Allreduce over the same bytes.

    The buffer comes from numpy, which asks for huge pages: the harder baseline.
    """

    def __init__(self, elements: int) -> None:
        self._buffer = np.ones(elements, np.float32)
        self._pieces = itertools.cycle(FLOOR_PIECES)
        self.samples: dict[int, list[float]] = {piece: [] for piece in FLOOR_PIECES}

    def sample(self) -> None:
        """Take samples with the next size of pieces."""
        piece = next(self._pieces)
        self.samples[piece] += self.take(piece)

    def take(self, piece: int) -> list[float]:
        """Return samples with one size of pieces, in bytes."""
        length = max(1, min(piece // 4, self._buffer.size))

        def reduce() -> None:
            for begin in range(0, self._buffer.size, length):
                MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, self._buffer[begin : begin + length])

        return [timed_ms(reduce) for _ in range(SAMPLES)]


class Steps:
    """Steps that hand over all gradients, asynchronously, and wait for them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.tensors = [torch.zeros(size) for size in sizes]
        self.inside: dict[str, float] = {}
        self.counted = 0

    def step(self) -> None:
        handles = [
            hvd.allreduce_async_(tensor, name=str(i), op=hvd.Sum)
            for i, tensor in enumerate(self.tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        basics.engine().end_step()

    def visit(self, setting: Setting) -> list[float]:
        """Return the times of some steps in ms; those of the default feed ``inside``, too."""
        propose(setting)
        self.step()  # the change takes effect here
        assert in_force(setting), f"{setting} is not in force"
        before = basics.engine().counters()
        samples = [timed_ms(self.step) for _ in range(SAMPLES)]
        if setting == Setting():
            after = basics.engine().counters()
            for name in after:
                self.inside[name] = self.inside.get(name, 0) + after[name] - before[name]
            self.inside["step_ns"] = self.inside.get("step_ns", 0) + sum(samples) * 1e6
            self.counted += SAMPLES
        return samples

    def check(self) -> None:
        """The sums of a step are right."""
        for i, tensor in enumerate(self.tensors):
            tensor.fill_(hvd.rank() + i)
        self.step()
        for i, tensor in enumerate(self.tensors):
            expected = sum(rank + i for rank in range(hvd.size()))
            assert bool((tensor == expected).all()), f"gradient {i}"

    def inside_ms(self) -> dict[str, float]:
        """Return the engine's own times per step at the defaults, on this rank."""
        times = {name: ns / self.counted / 1e6 for name, ns in self.inside.items() if "_ns" in name}
        return {name.replace("_ns", "_ms"): ms for name, ms in times.items()}


def in_turns(
    steps: Steps, floor: Floor, times: dict[Setting, list[float]], turns: int
) -> dict[str, Any]:
    """Take fresh samples of the default, the best setting and the fastest floor, in turns.

    The best of many noisy medians flatters itself, and how fast two cores exchange data changes
    with time here: samples that lie side by side compare better.
    """
    best = min(times, key=lambda setting: statistics.median(times[setting]))
    piece = min(floor.samples, key=lambda size: statistics.median(floor.samples[size]))
    best, piece = MPI.COMM_WORLD.bcast((best, piece))
    fresh: dict[str, list[list[float]]] = {"default": [], "best": [], "floor": []}
    for _ in range(turns):
        fresh["default"].append(steps.visit(Setting()))
        fresh["floor"].append(floor.take(piece))
        fresh["best"].append(steps.visit(best))
    return {"best_setting": best.as_dict(), "piece": piece, **fresh}


def gradients(sizes: Sequence[int], grid_name: str, passes: int) -> dict[str, Any]:
    """(b) All settings of a grid and the floor in turns, in random orders."""
    order = random.Random(1)
    grid = [
        Setting(fusion_threshold_bytes=threshold, cycle_time_ms=cycle)
        for threshold, cycle in itertools.product(*GRIDS[grid_name])
    ]
    steps, floor = Steps(sizes), Floor(sum(sizes))
    steps.step()
    times: dict[Setting, list[float]] = {setting: [] for setting in grid}
    for _ in range(passes):
        for setting in order.sample(grid, len(grid)):
            times[setting] += steps.visit(setting)
            floor.sample()
    fresh = in_turns(steps, floor, times, 4 * passes)
    steps.check()  # in the job that was timed
    return {
        "tensors": len(sizes),
        "bytes": 4 * sum(sizes),
        "step": steps.inside_ms(),
        "in_turns": fresh,
        "cells": [
            {
                "threshold": setting.fusion_threshold_bytes,
                "cycle_ms": setting.cycle_time_ms,
                "ms": summary(values),
            }
            for setting, values in times.items()
        ],
        "floor": [{"piece": piece, "ms": summary(ms)} for piece, ms in floor.samples.items()],
    }
