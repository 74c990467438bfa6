"""One rank: trains without a pause while plans of all variants are computed in turns.

    rank.py PLANS QUIET_STEPS

Rank 0 asks one planner at a time. Steps from the request to the answer have "a plan under way"; as
many quiet steps as wanted come before and after them. Rank 0 tells, by variant, a list of plans.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "digits"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "digits"))

import torch
from harness import tell
from model import DigitsNet
from mpi4py import MPI
from torch.utils.data import DataLoader
from train import load_data
from variants import VARIANTS, started_as

import horovod.torch as hvd
from autotune.service.child_process import ServiceProcess, child_environment

HERE = Path(__file__).resolve().parent
BLOCK = 10
"""Steps between two looks at whether the ranks go on."""
WARMUP_STEPS = 60
MOST_STEPS_A_PLAN = 3000


class Training:
    """The digits model on its data, a step at a time."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        torch.set_num_threads(1)
        train, _ = load_data()
        self._batches = self._endless(DataLoader(train, 16, shuffle=True, drop_last=True))
        self._model = DigitsNet()
        self._optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9),
            named_parameters=self._model.named_parameters(),
        )
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)

    def step(self) -> float:
        """Make one step; return its time in ms."""
        begin = time.perf_counter()
        images, labels = next(self._batches)
        self._optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self._model(images), labels).backward()
        self._optimizer.step()
        return 1000 * (time.perf_counter() - begin)

    @staticmethod
    def _endless(loader: DataLoader[Any]) -> Iterator[Any]:
        while True:
            yield from loader


class Pacer:
    """Rank 0's way to make steps: the others follow, in blocks."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._steps = 0

    def step(self) -> float:
        """Make one step; return its time in ms."""
        if self._steps % BLOCK == 0:
            MPI.COMM_WORLD.bcast(True)
        self._steps += 1
        return self._training.step()

    def steps(self, count: int) -> list[float]:
        """Make ``count`` steps; return their times in ms."""
        return [self.step() for _ in range(count)]

    def end(self) -> None:
        """Finish the block and let the others go."""
        self.steps(-self._steps % BLOCK)
        MPI.COMM_WORLD.bcast(False)


def follow(training: Training) -> None:
    """Make steps as long as rank 0 does."""
    while MPI.COMM_WORLD.bcast(None):
        for _ in range(BLOCK):
            training.step()


def start_planner(name: str, plans: int) -> ServiceProcess:
    """Start the planner of a variant and wait until it is ready."""
    command = (sys.executable, str(HERE / "planner.py"), name, str(plans))
    with started_as(VARIANTS[name]):
        planner = ServiceProcess(command, child_environment(os.environ))
    lines: list[bytes] = []
    while not lines and not planner.broken:
        planner.wait(1)
        lines = planner.receive()
    if lines != [b"ready"]:
        sys.exit(f"the planner {name!r} ended: {planner.last_words()}")
    return planner


def measure(
    pacer: Pacer, planners: dict[str, ServiceProcess], plans: int, quiet: int
) -> dict[str, list[dict[str, float]]]:
    """Return {variant: plans}, in random order of the variants in each round."""
    order = random.Random(7)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in planners}
    pacer.steps(WARMUP_STEPS)
    before = pacer.steps(quiet)
    for _ in range(plans):
        for name in order.sample(list(planners), len(planners)):
            planners[name].send(b"plan\n")
            during, answer = [pacer.step()], planners[name].receive()
            while not answer and len(during) < MOST_STEPS_A_PLAN:
                during.append(pacer.step())
                answer = planners[name].receive()
            after = pacer.steps(quiet)
            found[name].append(
                {
                    "steps": len(during),
                    "during_ms": statistics.fmean(during),
                    "quiet_ms": statistics.fmean(before + after),
                    "cpu_ms": float(answer[0]),
                }
            )
            before = after
    return found


def main() -> None:
    plans, quiet = int(sys.argv[1]), int(sys.argv[2])
    hvd.init()
    planners = {}
    if hvd.rank() == 0:
        planners = {name: start_planner(name, plans) for name in VARIANTS}
    training = Training()
    if hvd.rank() == 0:
        pacer = Pacer(training)
        tell(measure(pacer, planners, plans, quiet))
        pacer.end()
        for planner in planners.values():
            planner.close()
    else:
        follow(training)
    hvd.shutdown()


if __name__ == "__main__":
    main()
