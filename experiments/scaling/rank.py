"""One rank: ``mpirun -n W python rank.py --seconds 15``; rank 0 tells the step times.

Trains DigitsNet on the digits as experiments/digits does, at three global batch sizes, with the
blocks of one rank (strong scaling) and with W times as many (weak scaling: layers grow with the
ranks while the global batch stays, so that each rank computes the same on any number of ranks).
Each workload is timed with and without communication, in turns.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from digits.model import DigitsNet
from harness import tell
from mpi4py import MPI
from sklearn.datasets import load_digits
from torch.nn import functional

import horovod.torch as hvd

BATCHES = (32, 64, 128)
BLOCKS = (3, 3, 4)
WARM_UP, STEPS = 1, 5

Step = Callable[[], None]


class Job:
    """One network, trained on this rank's part of the global batch.

    Args:
        batch: Images per step of all ranks together.
        depth: Factor of the number of blocks.
        together: Gradients are averaged; else every rank trains alone.
    """

    def __init__(self, batch: int, depth: int, together: bool) -> None:
        torch.manual_seed(0)
        self.model = DigitsNet(blocks=tuple(count * depth for count in BLOCKS))  # type: ignore[arg-type]
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        if together:
            prefix = f"{batch}-{depth}"
            named = [(f"{prefix}-{name}", p) for name, p in self.model.named_parameters()]
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, named_parameters=named)
        digits = load_digits()
        mine = slice(hvd.rank() * batch // hvd.size(), (hvd.rank() + 1) * batch // hvd.size())
        pixels = torch.tensor(digits.images[:batch] / 16.0, dtype=torch.float32)
        self.images = pixels.unsqueeze(1)[mine]
        self.labels = torch.tensor(digits.target[:batch], dtype=torch.int64)[mine]

    def step(self) -> None:
        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()

    def visit(self) -> list[float]:
        """Return the times of some steps in ms, all ranks starting together."""
        for _ in range(WARM_UP):
            self.step()
        samples = []
        MPI.COMM_WORLD.Barrier()
        for _ in range(STEPS):
            start = time.perf_counter()
            self.step()
            samples.append((time.perf_counter() - start) * 1e3)
        return samples

    def check(self) -> None:
        """All ranks have the same weights."""
        sums = torch.stack([p.detach().double().sum() for p in self.model.parameters()])
        assert torch.equal(sums, hvd.broadcast(sums, 0)), "the ranks' weights differ"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    keys = [
        (depth, batch, together)
        for depth in sorted({1, hvd.size()})
        for batch in BATCHES
        for together in (True, False)
    ]
    jobs = {key: Job(key[1], key[0], key[2]) for key in keys}
    samples: dict[Any, list[float]] = {key: [] for key in keys}
    order, begin, count = random.Random(1), time.monotonic(), 0
    while MPI.COMM_WORLD.bcast(count < 1 or time.monotonic() - begin < arguments.seconds):
        for key in order.sample(keys, len(keys)):
            samples[key] += jobs[key].visit()
        count += 1
    for (_, _, together), job in jobs.items():
        if together:
            job.check()
    if hvd.rank() == 0:
        tell(
            [
                {
                    "ranks": hvd.size(),
                    "depth": depth,
                    "batch": batch,
                    "together": together,
                    "tensors": len(list(jobs[depth, batch, together].model.parameters())),
                    "step_ms": values,
                }
                for (depth, batch, together), values in samples.items()
            ]
        )
    hvd.shutdown()


if __name__ == "__main__":
    main()
