"""What the adapter costs rank 0's training thread, a step: while it tunes, and after.

python experiments/ddp/cost.py [--layers 40] [--width 256] [--profile]

Two gloo ranks on this machine, a budget of 1 so that the tuner is always at work. What the hooks of
the adapter take is time of the training thread; the first 50 steps are left out. Steps that begin
with new buckets are counted apart: most of what they take is torch's. ``--profile`` prints where it
goes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import machine, machine_line

HOOKS = ("before_forward", "stepped")
KINDS = ("while it tunes", "after", "with new buckets")
SKIPPED = 50


class Meter:
    """The time that the hooks of the adapter took, a step.

    Asking for the time costs time, too, much of it where caches are cold: a hook that does nothing
    is metered once a step like the others, and what it seems to take is taken from each of theirs.
    """

    def __init__(self, profile: cProfile.Profile | None) -> None:
        self.profile = profile
        self.this_us = self.this_wall_us = 0.0
        self.has_new_buckets = False
        self.steps: list[tuple[str, float, float]] = []

    def metered(self, hook: Callable[[Any], None], adapter: Any, name: str) -> Any:
        """Return a hook of the adapter that is metered, with what torch's compiler puts around."""

        def run(given: Any, *_: Any) -> None:
            self.has_new_buckets |= name == "before_forward" and bool(adapter._due)
            cpu_us, wall_us = self.time_of(hook, given)
            self.this_us += cpu_us
            self.this_wall_us += wall_us
            if name == "stepped":
                cpu_us, wall_us = self.time_of(_nothing, given)
                clock_us = len(HOOKS) * cpu_us, len(HOOKS) * wall_us
                took = self.this_us - clock_us[0], self.this_wall_us - clock_us[1]
                kind = KINDS[2 if self.has_new_buckets else adapter.session.is_idle]
                self.steps.append((kind, *took))
                self.this_us = self.this_wall_us = 0.0
                self.has_new_buckets = False

        return run

    def time_of(self, hook: Callable[[Any], None], given: Any) -> tuple[float, float]:
        """Return CPU and wall time of a call, in us."""
        begin, wall = time.thread_time_ns(), time.perf_counter_ns()
        if self.profile:
            self.profile.enable()
        hook(given)
        if self.profile:
            self.profile.disable()
        wall_us = (time.perf_counter_ns() - wall) / 1000
        return (time.thread_time_ns() - begin) / 1000, wall_us


def _nothing(given: Any) -> None:
    pass


def train(options: argparse.Namespace) -> None:
    """Be one rank."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from autotune.ddp import install, torch_private

    meter = Meter(cProfile.Profile(time.thread_time_ns, 1e-9) if options.profile else None)
    plain = torch_private.never_compiled

    def never_compiled(hook: Any) -> Any:
        return meter.metered(plain(hook), hook.__self__, hook.__name__)

    torch_private.never_compiled = never_compiled
    install()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    layers = [nn.Linear(options.width, options.width) for _ in range(options.layers)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(16, options.width)
    for _ in range(options.steps):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        steps = meter.steps[SKIPPED:]
        print("RESULT", json.dumps(steps), flush=True)
        if meter.profile:
            pstats.Stats(meter.profile).sort_stats("tottime").print_stats(30)
    dist.destroy_process_group()


def main() -> None:
    """Run both ranks and print what the hooks took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if "RANK" in os.environ:
        train(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_AUTOTUNE_LOG": f"{folder}/log.csv",
            "HOROVOD_AUTOTUNE_BUDGET": "1",
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "8",
        }
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        words = [*torchrun, "--master-port", "29641", __file__, *sys.argv[1:]]
        ended = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=400)
    found = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        sys.exit(ended.stdout + ended.stderr)
    steps = json.loads(found[0].removeprefix("RESULT "))
    print(machine_line(machine()))
    for name in KINDS:
        for column, kind in ((1, "CPU"), (2, "wall")):
            took = [step[column] for step in steps if step[0] == name]
            if took:
                mean, median = statistics.fmean(took), statistics.median(took)
                figures = f"median {median:.0f}, mean {mean:.0f} us a step"
                print(f"{name}, {kind}: {figures}, {len(took)} steps")
    print(ended.stdout.split("\n", 1)[1] if options.profile else "")


if __name__ == "__main__":
    main()
