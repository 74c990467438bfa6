"""One rank of the grid: replays a training step's tensors under every setting, many times.

    mpirun -n 4 python rank.py --seconds 60

A step sleeps for the forward pass, then hands over the 161 gradients of a narrow ResNet-50 when
the backward pass (also slept) would have them ready, and waits for all. Settings change inside the
job; passes over the grid come in random orders until four fifths of the time are up. Then the
default and the cell with the best median take turns: fresh samples, as a minimum over 40 noisy
cells flatters itself. Rank 0's time from one step's start to its end is the sample. Sums are
checked at every change of settings.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from engine_speed.workloads import narrow_resnet50
from harness import tell
from mpi4py import MPI
from settings import Setting, in_force, propose, sleep_until

import horovod.torch as hvd
from horovod.common import basics

KIB, MIB = 1024, 1024 * 1024
GRID = [
    Setting(fusion_threshold_bytes=threshold, cycle_time_ms=cycle, hierarchical_allreduce=two_level)
    for threshold, cycle, two_level in itertools.product(
        (0, 64 * KIB, 256 * KIB, MIB, 16 * MIB), (0.2, 1.0, 5.0, 25.0), (False, True)
    )
]
FORWARD_S, BACKWARD_S = 0.010, 0.020
STEPS_PER_VISIT = 2


class Replay:
    """The tensors of a step and the moments at which they are ready.

    Args:
        sizes: Elements of each, in the order of the backward pass.
        forward_s, backward_s: Length of the two passes, which are slept.
    """

    def __init__(self, sizes: Sequence[int], *, forward_s: float, backward_s: float) -> None:
        self.tensors = [torch.zeros(size) for size in sizes]
        work = [1000 + size for size in sizes]  # a layer costs something, and each element
        done = list(itertools.accumulate(work))
        self.forward_s = forward_s
        self.ready_s = [backward_s * amount / done[-1] for amount in done]
        self.payload_bytes = 4 * sum(sizes)

    def fill(self) -> None:
        for number, tensor in enumerate(self.tensors):
            tensor.fill_(number + hvd.rank())

    def step(self) -> None:
        start = time.perf_counter() + self.forward_s
        sleep_until(start)
        handles = []
        for number, (tensor, ready_s) in enumerate(zip(self.tensors, self.ready_s, strict=True)):
            sleep_until(start + ready_s)
            handles.append(hvd.allreduce_async_(tensor, name=f"g{number}", op=hvd.Sum))
        for handle in handles:
            hvd.synchronize(handle)
        basics.engine().end_step()

    def check(self) -> None:
        """The sums of the step after ``fill`` are exact."""
        ranks = sum(range(hvd.size()))
        for number, tensor in enumerate(self.tensors):
            right = number * hvd.size() + ranks
            assert bool((tensor == right).all()), f"gradient {number}: expected {right}"


def small_tensors() -> list[int]:
    """Return the elements of the 161 gradients of a narrow ResNet-50, last layer first."""
    return [p.numel() for p in narrow_resnet50().parameters()][::-1]


def visit(replay: Replay, setting: Setting) -> list[float]:
    """Return the times in ms of some steps under ``setting``."""
    propose(setting)
    replay.fill()
    replay.step()  # the setting takes effect here
    assert in_force(setting), f"rank {hvd.rank()}: {setting} is not in force"
    replay.check()
    samples = []
    for _ in range(STEPS_PER_VISIT):
        start = time.perf_counter()
        replay.step()
        samples.append((time.perf_counter() - start) * 1e3)
    return samples


def rounds(
    replay: Replay, settings: list[Setting], end: float, at_least: int
) -> dict[Setting, list[float]]:
    """Visit all ``settings`` in random orders while another round fits before ``end``."""
    order = random.Random(1)
    samples: dict[Setting, list[float]] = {setting: [] for setting in settings}
    count, longest_s = 0, 0.0
    while MPI.COMM_WORLD.bcast(count < at_least or time.monotonic() + longest_s < end):
        begin = time.monotonic()
        for setting in order.sample(list(samples), len(samples)):
            samples[setting] += visit(replay, setting)
        count += 1
        longest_s = max(longest_s, time.monotonic() - begin)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    replay = Replay(small_tensors(), forward_s=FORWARD_S, backward_s=BACKWARD_S)
    begin = time.monotonic()
    samples = rounds(replay, GRID, begin + 0.8 * arguments.seconds, at_least=1)
    passes = len(samples[GRID[0]]) // STEPS_PER_VISIT
    best = min(GRID, key=lambda setting: statistics.median(samples[setting]))
    pair = [Setting(), MPI.COMM_WORLD.bcast(best)]
    fresh = rounds(replay, pair, begin + arguments.seconds, at_least=3)
    if hvd.rank() == 0:
        in_turns = {
            which: {**setting.as_dict(), "step_ms": fresh[setting]}
            for which, setting in zip(("default", "optimum"), pair, strict=True)
        }
        cells = [{**setting.as_dict(), "step_ms": values} for setting, values in samples.items()]
        about = {"tensors": len(replay.tensors), "payload_bytes": replay.payload_bytes}
        about |= {"passes": passes, "ranks": hvd.size()}
        tell({**about, "in_turns": in_turns, "cells": cells})
    hvd.shutdown()


if __name__ == "__main__":
    main()
