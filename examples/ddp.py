"""Trains a small model with DistributedDataParallel; nothing in here knows of a tuner.

    torchrun --nproc-per-node 2 examples/ddp.py
    autotune run --log log.csv -- torchrun --nproc-per-node 2 examples/ddp.py
    autotune best log.csv --format ddp

Rank 0 prints the loss and the time of a step now and then.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train, and print the loss and the time of a step now and then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=40)
    options = parser.parse_args()

    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(0)

    layers: list[nn.Module] = []
    for _ in range(options.layers):
        layers += [nn.Linear(options.width, options.width), nn.Tanh()]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)

    begin = time.perf_counter()
    for step in range(1, options.steps + 1):
        x = torch.randn(16, options.width, generator=data).to(device)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            took_ms = 1000 * (time.perf_counter() - begin) / 100
            if rank == 0:
                print(f"step {step}: loss {loss.item():.4f}, {took_ms:.1f} ms a step", flush=True)
            begin = time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
