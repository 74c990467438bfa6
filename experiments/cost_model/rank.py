"""One rank of a measured grid: replays a step's tensors under many settings, in random orders.

    mpirun -n 2 python rank.py WORKLOAD --seconds 60

As in two_hosts/rank.py (settings change inside the job, sums are checked at every change), with
other workloads and settings. Rank 0 tells the tensors, when they are ready, and all samples.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from engine_speed.workloads import resnet50_gradient_sizes
from harness import tell
from settings import Setting
from two_hosts.rank import STEPS_PER_VISIT, Replay, rounds, small_tensors

import horovod.torch as hvd

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is replayed, and the settings: thresholds x cycles x booleans, and some without cache.

    Attributes:
        sizes: Elements of each gradient.
        forward_s, backward_s: What a step sleeps.
        thresholds, cycles_ms: Values of the grid.
    """

    sizes: tuple[int, ...]
    forward_s: float
    backward_s: float
    thresholds: tuple[int, ...]
    cycles_ms: tuple[float, ...]

    def settings(self, hosts: int) -> list[Setting]:
        """Return the grid; on one host the hierarchical allreduce is off."""
        booleans = (False, True) if hosts > 1 else (False,)
        grid = [
            Setting(
                fusion_threshold_bytes=threshold, cycle_time_ms=cycle, hierarchical_allreduce=two
            )
            for threshold, cycle, two in itertools.product(
                self.thresholds, self.cycles_ms, booleans
            )
        ]
        without = [Setting(cache_capacity=0, cycle_time_ms=cycle) for cycle in (1.0, 5.0)]
        return list(dict.fromkeys([Setting(), *grid, *without]))


def jobs() -> dict[str, Job]:
    """Return the workloads by name."""
    small = tuple(small_tensors())
    resnet = tuple(resnet50_gradient_sizes())
    tenth = tuple(max(1, size // 12) for size in resnet)
    thresholds = (0, 64 * KIB, 256 * KIB, MIB, 16 * MIB)
    return {
        "small": Job(
            sizes=small,
            forward_s=0.004,
            backward_s=0.008,
            thresholds=thresholds,
            cycles_ms=(0.2, 1.0, 5.0, 25.0),
        ),
        "medium": Job(
            sizes=tenth,
            forward_s=0.010,
            backward_s=0.020,
            thresholds=(256 * KIB, MIB, 4 * MIB, 16 * MIB),
            cycles_ms=(0.2, 1.0, 5.0),
        ),
        "resnet50": Job(
            sizes=resnet,
            forward_s=0.010,
            backward_s=0.020,
            thresholds=(0, MIB, 4 * MIB, 16 * MIB, 128 * MIB),
            cycles_ms=(0.2, 1.0, 5.0, 25.0),
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload", choices=sorted(jobs()))
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    job = jobs()[arguments.workload]
    replay = Replay(job.sizes, forward_s=job.forward_s, backward_s=job.backward_s)
    settings = job.settings(hvd.cross_size())
    end = time.monotonic() + arguments.seconds
    samples = rounds(replay, settings, end, at_least=2)
    if hvd.rank() == 0:
        about = {
            "hosts": hvd.cross_size(),
            "local_size": hvd.local_size(),
            "block": STEPS_PER_VISIT,
            "sizes": [4 * size for size in job.sizes],
            "ready_us": [1e6 * (job.forward_s + ready) for ready in replay.ready_s],
            "compute_us": 1e6 * (job.forward_s + job.backward_s),
        }
        cells = [{**setting.as_dict(), "step_ms": values} for setting, values in samples.items()]
        tell({**about, "cells": cells})
    hvd.shutdown()


if __name__ == "__main__":
    main()
