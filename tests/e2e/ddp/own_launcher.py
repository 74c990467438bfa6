"""A job that starts its second rank itself, by this script again, and knows no RANK; as Lightning.

    python own_launcher.py ddp|none

The optimizer is given a closure that computes the gradients, as Lightning's are. Rank 0 prints the
exact sum of all weights; without DistributedDataParallel ranks train apart from each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from fractions import Fraction

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, PAUSE_S = 300, 0.02


def train(rank: int, model: torch.nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)

    def backward() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 64, generator=data)).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure=backward)
        time.sleep(PAUSE_S)


def main() -> None:
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    other = None
    if rank == 0:
        environ = {**os.environ, "LOCAL_RANK": "1"}
        other = subprocess.Popen([sys.executable, *sys.argv], env=environ)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    place = f"file://{os.getcwd()}/store"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(12)))
    train(rank, DistributedDataParallel(net) if sys.argv[1] == "ddp" else net)
    if rank == 0:
        each = (x for p in net.parameters() for x in p.flatten().tolist())
        total = sum(map(Fraction, each), Fraction())
        print("checksum", total.numerator % (2**61 - 1), total.denominator)
    dist.destroy_process_group()
    sys.exit(other.wait(60) if other is not None else 0)


if __name__ == "__main__":
    main()
