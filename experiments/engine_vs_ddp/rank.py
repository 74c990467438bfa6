"""One rank: ``mpirun -n 2 python rank.py WORKLOAD --seconds 30``; rank 0 tells the result.

Both runtimes live in one process, so that they can take turns. Part one visits 8 settings of each
in random orders. Part two takes fresh samples: the defaults of both and the setting with the best
median of each in turns, beside the same loop without communication. Last, the results of both are
compared with each other, and those of the bare gradients with what they must be.
"""

from __future__ import annotations

import argparse
import gc
import random
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from harness import tell
from mpi4py import MPI
from settings import Setting, in_force, propose
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from workloads import Workload, make_workload

import horovod.torch as hvd

WARM_UP, STEPS = 2, 4
DDP_DEFAULT_MB = 25
RATE = 0.01

Step = Callable[[], None]


def build(workload: Workload) -> nn.Module:
    torch.manual_seed(0)
    return workload.build()


def alone_step(model: nn.Module, workload: Workload) -> Step:
    """Return the step without communication."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        workload.loss(model).backward()
        if workload.updates:
            optimizer.step()

    return step


def our_step(model: nn.Module, workload: Workload) -> Step:
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE), named_parameters=model.named_parameters()
    )

    def step() -> None:
        optimizer.zero_grad()
        workload.loss(model).backward()
        if workload.updates:
            optimizer.step()
        else:
            optimizer.synchronize()

    return step


def ddp_step(model: nn.Module, workload: Workload, bucket_mb: float) -> Step:
    """Return DDP's step; gradients are views of its buckets, which spares it a copy."""
    wrapped = DistributedDataParallel(
        model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True, broadcast_buffers=False
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        workload.loss(wrapped).backward()
        if workload.updates:
            optimizer.step()

    return step


def timed(step: Step) -> list[float]:
    """Return the times in ms of some steps after a warm-up, all ranks starting together."""
    for _ in range(WARM_UP):
        step()
    samples = []
    for _ in range(STEPS):
        MPI.COMM_WORLD.Barrier()
        start = time.perf_counter()
        step()
        samples.append((time.perf_counter() - start) * 1e3)
    return samples


class Contest:
    """The three loops over one workload; a turn is named ("ours", threshold, cycle), ..."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.our_model, self.alone = build(workload), build(workload)
        self._ours = our_step(self.our_model, workload)
        self._alone = alone_step(self.alone, workload)
        default = Setting()
        self.defaults = [
            ("ours", default.fusion_threshold_bytes, default.cycle_time_ms),
            ("ddp", DDP_DEFAULT_MB),
        ]

    def turn(self, who: tuple[Any, ...]) -> list[float]:
        if who[0] == "alone":
            return timed(self._alone)
        if who[0] == "ddp":
            gc.collect()  # the last turn's buckets
            return timed(ddp_step(build(self.workload), self.workload, who[1]))
        setting = Setting(fusion_threshold_bytes=who[1], cycle_time_ms=who[2])
        propose(setting)
        samples = timed(self._ours)
        assert in_force(setting), f"{setting} is not in force"
        return samples

    def rounds(self, turns: list[tuple[Any, ...]], seconds: float) -> dict[Any, list[float]]:
        """Take all turns in random orders while another round fits, at least once."""
        order, begin, longest_s, count = random.Random(1), time.monotonic(), 0.0, 0
        samples: dict[Any, list[float]] = {who: [] for who in turns}
        while MPI.COMM_WORLD.bcast(count < 1 or time.monotonic() - begin + longest_s < seconds):
            start = time.monotonic()
            for who in order.sample(list(samples), len(samples)):
                samples[who] += self.turn(who)
            longest_s, count = max(longest_s, time.monotonic() - start), count + 1
        return samples


def check(workload: Workload) -> None:
    """Both runtimes compute the same on all ranks: weights after 3 steps, or the bare gradients."""
    models = build(workload), build(workload)
    steps = our_step(models[0], workload), ddp_step(models[1], workload, DDP_DEFAULT_MB)
    for step in steps:
        for _ in range(3):
            step()
    pairs = list(zip(*(model.parameters() for model in models), strict=True))
    for number, (ours, theirs) in enumerate(pairs):
        if workload.updates:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
            assert torch.equal(ours, hvd.broadcast(ours.detach(), 0)), "the ranks' weights differ"
        else:
            right = number + (hvd.size() - 1) / 2
            for parameter in (ours, theirs):
                assert parameter.grad is not None
                assert bool((parameter.grad == right).all()), f"gradient {number}"


def main() -> None:
    warnings.filterwarnings("ignore", message=".broadcast_buffers. is deprecated")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload", choices=["gradients", "bert", "resnet", "encoder"])
    parser.add_argument("--seconds", type=float, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    store = MPI.COMM_WORLD.bcast(tempfile.mkdtemp(prefix="ddp-") if hvd.rank() == 0 else "")
    dist.init_process_group("gloo", f"file://{store}/store", rank=hvd.rank(), world_size=hvd.size())
    contest = Contest(make_workload(arguments.workload, hvd.rank()))
    workload = contest.workload
    check(workload)  # also pays for the imports that the first use of DDP makes
    grid = [("ours", *setting) for setting in workload.ours]
    grid += [("ddp", size) for size in workload.buckets_mb]
    searched = contest.rounds(grid, 0.5 * arguments.seconds)
    best = [
        min((who for who in grid if who[0] == name), key=lambda w: statistics.median(searched[w]))
        for name in ("ours", "ddp")
    ]
    best = MPI.COMM_WORLD.bcast(best)
    final = contest.rounds(
        list(dict.fromkeys([*contest.defaults, *best, ("alone",)])), 0.5 * arguments.seconds
    )
    check(workload)
    if hvd.rank() == 0:
        sizes = [p.numel() for p in contest.alone.parameters()]
        tell(
            {
                "tensors": len(sizes),
                "payload_bytes": 4 * sum(sizes),
                "defaults": contest.defaults,
                "best": best,
                "grid": [[who, values] for who, values in searched.items()],
                "in_turns": [[who, values] for who, values in final.items()],
            }
        )
    dist.destroy_process_group()
    if hvd.rank() == 0:
        shutil.rmtree(store)
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
