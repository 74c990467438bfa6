"""A plain script of DistributedDataParallel, as its owner would write it; knows no tuner.

Rank 0 prints the exact sum of all weights; ``--peculiar`` does what some scripts do.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def service_of(pid: int) -> int:
    """Return the process of the tuner's service under ``pid``; 0: there is none."""
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "autotune.service"], capture_output=True)
    return int(found.stdout.split()[0]) if found.stdout.strip() else 0


def deny_memory() -> None:
    """Have no memory left for new buckets on this rank, as far as the adapter knows."""
    from autotune.ddp import entry

    if entry._entry.adapter is not None:
        entry._entry.adapter._can_make = lambda params: False


def capture() -> None:
    """Have the next steps look as if they were captured in a CUDA graph; buckets must stay."""
    from autotune.ddp import torch_private

    torch_private.is_captured = lambda ddp: True
    torch_private.make_buckets = None  # who calls it ends the job


def wait_for_the_tuner(number: int) -> None:
    """Give a busy machine time: without it the job could be over before the first trial."""
    from autotune.ddp import entry

    adapter = entry._entry.adapter
    if number >= 100 and adapter is not None and adapter.session.is_live:
        time.sleep(0.12 if adapter.session.wanted is None else 0.0)


def train_sharded(model: torch.nn.Module, how: str, rank: int, steps: int) -> None:
    """Train without DistributedDataParallel; print the sum of this rank's part of the weights."""
    if how == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64, generator=data)).pow(2).mean().backward()
        optimizer.step()
    parts = [getattr(p, "_local_tensor", p).flatten().tolist() for p in model.parameters()]
    if rank == 0:
        print("checksum", repr(sum((Fraction(x) for part in parts for x in part), Fraction())))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pause-ms", type=float, default=0, help="in each step, as work would")
    parser.add_argument("--peculiar", default="")
    options = parser.parse_args()
    peculiar, rank = options.peculiar, int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    layers = [torch.nn.Linear(64, 64) for _ in range(12)]
    model = torch.nn.Sequential(*layers)
    if peculiar == "no_module":
        return
    if peculiar in ("fsdp", "fully_shard"):
        train_sharded(model, peculiar, rank, options.steps)
        return
    if peculiar == "unknown_torch":
        helper = DistributedDataParallel._ddp_init_helper
        DistributedDataParallel._ddp_init_helper = lambda self, *more, **named: helper(
            self, *more, **named
        )
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.1 if peculiar == "own_size" else None)
    if peculiar == "fp16_hook":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if peculiar == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)

    def step() -> None:
        optimizer.zero_grad()
        ddp(torch.randn(8, 64, generator=data)).pow(2).mean().backward()
        optimizer.step()
        time.sleep(options.pause_ms / 1000)

    for number in range(options.steps):
        if peculiar == "no_memory" and rank == 1:
            deny_memory()
        if number == options.steps // 2:
            if peculiar == "captured":
                capture()
            if peculiar == "kill_service" and rank == 0:
                os.kill(service_of(os.getpid()), signal.SIGKILL)
            if peculiar == "fail_on_rank_1" and rank == 1:
                from autotune.ddp import entry

                entry._entry.adapter._report = None  # not callable: whatever it was, it fails here
        step()
        if options.pause_ms and rank == 0:
            wait_for_the_tuner(number)
    if peculiar == "join":
        with ddp.join():
            for _ in range(10 + 20 * rank):
                step()
        for _ in range(40):
            step()
    total = sum((Fraction(x) for p in model.parameters() for x in p.flatten().tolist()), Fraction())
    if rank == 0:
        print("checksum", total.numerator % (2**61 - 1), total.denominator, file=sys.stdout)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
