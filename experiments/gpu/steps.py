"""Part 2: whole training steps: without communication, with DDP, with ours."""

from __future__ import annotations

import gc
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
from ground import MIB, WARM_UP, Ground, Step, best, in_turns, rows
from networks import make_task
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd

THRESHOLDS_MIB = (16, 64, 512)
CYCLES_MS = (1.0, 5.0, 20.0)
BUCKETS_MB = (1, 5, 10, 25, 50, 100, 256, 1024)
DDP_DEFAULT = ("ddp", 25, False)
SAMPLE_S = 0.5
"""A sample is of about so many seconds."""
SGD = {"lr": 1e-4, "momentum": 0.9}

Key = tuple[Any, ...]


class Contest:
    """The loops over one network. A turn is ("alone",), ("ours", MiB, ms), ("ddp", MB, view)."""

    def __init__(self, name: str, ground: Ground, tiny: bool) -> None:
        self.ground = ground
        self.task = make_task(name, ground.device, hvd.rank(), tiny)
        self.networks = {who: self.task.build() for who in ("alone", "ours", "ddp")}
        self.optimizers = {
            who: torch.optim.SGD(network.parameters(), **SGD)
            for who, network in self.networks.items()
        }
        self.optimizers["ours"] = hvd.DistributedOptimizer(
            self.optimizers["ours"], named_parameters=self.networks["ours"].named_parameters()
        )
        self.steps = 3

    def step(self, who: str, network: nn.Module | None = None) -> Step:
        """Return the step of ``who`` through ``network`` (its own, or a wrapper of that)."""
        optimizer, task = self.optimizers[who], self.task
        forward = network or self.networks[who]

        def run() -> None:
            optimizer.zero_grad()
            task.loss(forward).backward()
            optimizer.step()

        return run

    def wrapped(self, bucket_mb: float, view: bool) -> nn.Module:
        """Return DDP's wrapper; as ours, it leaves buffers alone."""
        return DistributedDataParallel(
            self.networks["ddp"],
            bucket_cap_mb=bucket_mb,
            gradient_as_bucket_view=view,
            broadcast_buffers=False,
        )

    def turn(self, key: Key) -> Callable[[], float]:
        """Return what a turn of ``key`` does."""

        def run() -> float:
            if key[0] == "ddp":
                self.optimizers["ddp"].zero_grad()  # no views of an older wrapper's buckets
                gc.collect()  # and no such wrapper
                step = self.step("ddp", self.wrapped(*key[1:]))
            else:
                step = self.step(key[0])
            if key[0] == "ours":
                self.ground.put(step, int(key[1] * MIB), key[2])
            else:
                for _ in range(WARM_UP):
                    step()
            return self.ground.timed(step, self.steps)

        return run

    def set_length(self) -> None:
        """**Collective.** Let a sample be of about ``SAMPLE_S``."""
        step_ms = self.turn(("alone",))()
        self.steps = max(5, min(50, round(1000 * SAMPLE_S / step_ms)))

    def check(self) -> float:
        """**Collective.** After 3 steps from equal weights: return how far ours is from DDP's.

        The difference's norm over that of the way both went. Ours are the same on all ranks.
        """
        start = [p.detach().clone() for p in self.networks["ours"].parameters()]
        for who, network in (("ours", None), ("ddp", self.wrapped(25, False))):
            torch.manual_seed(hvd.rank())  # of the dropout
            step = self.step(who, network)
            for _ in range(3):
                step()
        apart = moved = 0.0
        sums = []
        pairs = zip(*(self.networks[who].parameters() for who in ("ours", "ddp")), strict=True)
        for (ours, theirs), before in zip(pairs, start, strict=True):
            apart += float((ours - theirs).detach().square().sum())
            moved += float((ours - before).detach().square().sum())
            sums.append(ours.detach().double().sum())
        everyone = hvd.allgather(torch.stack(sums).unsqueeze(0))
        assert bool((everyone == everyone[0]).all()), "the ranks' weights differ"
        return float((apart / moved) ** 0.5)


def run(ground: Ground, tiny: bool, seconds: float, names: list[str]) -> dict[str, Any]:
    """**Collective.** For each network a search of both, then fresh rounds of what matters."""
    warnings.filterwarnings("ignore", message=".broadcast_buffers. is deprecated")
    return {name: contest(name, ground, tiny, seconds) for name in names}


def contest(name: str, ground: Ground, tiny: bool, seconds: float) -> dict[str, Any]:
    """**Collective.** The part of one network."""
    loops = Contest(name, ground, tiny)
    apart = loops.check()
    loops.set_length()
    default = ground.default.fusion_threshold_bytes / MIB, ground.default.cycle_time_ms
    grid: list[Key] = [("ours", t, c) for t in THRESHOLDS_MIB for c in CYCLES_MS]
    grid += [("ddp", size, False) for size in BUCKETS_MB]
    searched = in_turns({key: loops.turn(key) for key in grid}, 0.4 * seconds)
    ours, ddp = best(searched, "ours"), best(searched, "ddp")
    keys = [("alone",), ("ours", *default), ours, DDP_DEFAULT, ddp, (*ddp[:2], True)]
    turns = {key: loops.turn(key) for key in dict.fromkeys(keys)}
    final = in_turns(turns, 0.6 * seconds, least=3)
    sizes = [p.numel() for p in loops.networks["alone"].parameters()]
    return {
        "tensors": len(sizes),
        "bytes": 4 * sum(sizes),
        "steps_per_sample": loops.steps,
        "distance_to_ddp": apart,
        "default": default,
        "best": [ours, ddp],
        "grid": rows(searched),
        "in_turns": rows(final),
        "exposed_ms": [
            [key, statistics.median(a - b for a, b in zip(values, final["alone",], strict=True))]
            for key, values in final.items()
        ],
    }
