"""A real job under a policy: all ranks make the steps that rank 0 asks for."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from engine_speed.workloads import narrow_resnet50, resnet50_gradient_sizes
from mpi4py import MPI
from settings import sleep_until

import horovod.torch as hvd
from autotune.trial import CommParams
from horovod import _engine
from horovod.common import basics

FIRST_EPOCH = 1_000_000
"""Above every epoch of the tuner's service."""


class Workload(Protocol):
    """What a training step is."""

    payload_bytes: int

    def step(self) -> None:
        """Make one step and end it."""


class Gradients:
    """Tensors that are handed over at once or over a slept backward pass, then waited for."""

    def __init__(self, sizes: Sequence[int], *, forward_s: float, backward_s: float) -> None:
        self._tensors = [torch.zeros(size) for size in sizes]
        done = list(itertools.accumulate(1000 + size for size in sizes))
        self._ready_s = [backward_s * amount / done[-1] for amount in done]
        self._forward_s = forward_s
        self.payload_bytes = 4 * sum(sizes)

    def step(self) -> None:
        start = time.perf_counter() + self._forward_s
        sleep_until(start)
        handles = []
        for number, (tensor, ready) in enumerate(zip(self._tensors, self._ready_s, strict=True)):
            sleep_until(start + ready)
            handles.append(hvd.allreduce_async_(tensor, name=f"g{number}", op=hvd.Sum))
        for handle in handles:
            hvd.synchronize(handle)
        hvd.autotune.step()


class SmallModel:
    """A real model of 161 small tensors that is trained."""

    def __init__(self) -> None:
        torch.manual_seed(hvd.rank())
        self._model = narrow_resnet50()
        self._inputs, self._labels = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
        self._optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self._model.parameters(), lr=0.01),
            named_parameters=self._model.named_parameters(),
        )
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)
        self.payload_bytes = 4 * sum(p.numel() for p in self._model.parameters())

    def step(self) -> None:
        self._optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self._model(self._inputs), self._labels).backward()
        self._optimizer.step()


def make_workload(name: str) -> Workload:
    """Return the workload ``name``: slow-cable, resnet50-gradients or many-small."""
    if name == "slow-cable":
        sizes = [p.numel() for p in narrow_resnet50(3).parameters()][::-1]
        return Gradients(sizes, forward_s=0.003, backward_s=0.006)
    if name == "resnet50-gradients":
        return Gradients(resnet50_gradient_sizes(), forward_s=0.0, backward_s=0.0)
    return SmallModel()


WORKLOADS = ("slow-cable", "resnet50-gradients", "many-small")


class LiveJob:
    """The interface of the bench's ``Job`` on a real job.

    Attributes:
        params: The setting that was proposed last.
        step_us: Times of all steps so far on rank 0.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.params = CommParams()
        self.step_us: list[float] = []
        self._epochs = itertools.count(FIRST_EPOCH)

    @property
    def payload_bytes(self) -> int:
        return self.workload.payload_bytes

    @property
    def steps(self) -> int:
        return len(self.step_us)

    def make(self, count: int) -> np.ndarray:
        """Make ``count`` steps. **Collective.**"""
        times = []
        for _ in range(count):
            start = time.perf_counter()
            self.workload.step()
            times.append((time.perf_counter() - start) * 1e6)
        self.step_us += times
        return np.array(times)

    # What a policy calls on rank 0; the other ranks are in ``follow``.

    def put(self, params: CommParams) -> None:
        """Propose ``params``; in force from the next step on."""
        if params != self.params:
            self.params = params
            values = params.as_dict()
            basics.engine().propose(next(self._epochs), _engine.Params(**values))

    def recommend(self, params: CommParams) -> None:
        """Nothing to note."""

    def run(self, count: int) -> np.ndarray:
        """Make ``count`` steps on all ranks."""
        MPI.COMM_WORLD.bcast(count)
        return self.make(count)

    def follow(self) -> None:
        """Make the steps that rank 0 asks for until it asks for none."""
        while count := MPI.COMM_WORLD.bcast(None):
            self.make(count)

    def release(self) -> None:
        """Let the other ranks out of ``follow``."""
        MPI.COMM_WORLD.bcast(0)


def compare(
    job: LiveJob, settings: dict[str, CommParams], *, rounds: int, steps: int
) -> dict[str, list[float]]:
    """Return windows of ``steps`` steps in ms a step, in random orders. **Collective.**"""
    order = random.Random(7)
    windows: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(rounds):
        for name in order.sample(list(settings), len(settings)):
            if hvd.rank() == 0:
                job.put(settings[name])
            job.make(2)
            windows[name].append(float(job.make(steps).mean()) / 1000)
    return windows
