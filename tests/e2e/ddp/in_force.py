"""A plain script that tells what its gradients were like at the end; knows no tuner but its state.

    ranks.py 2 in_force.py STEPS

It trains so many steps and, where it is tuned, on until that has ended. Rank 0 prints JSON:
{"losses": of the first and of the last steps, "ranks_are_equal", "is_bf16": each gradient of the
last step is a number of bf16, on all ranks}.
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autotune.ddp import status

MOST_STEPS, PAUSE_S, COUNT = 1000, 0.01, 10


def is_over() -> bool:
    """Return whether rank 0 is not tuned, or not any more; the same on all ranks."""
    over = torch.tensor([status().state not in ("starting", "tuning")])
    dist.broadcast(over, 0)
    return bool(over)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(12)))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(dist.get_rank())
    losses: list[float] = []
    left = int(sys.argv[1])
    while left and len(losses) < MOST_STEPS:
        optimizer.zero_grad()
        loss = (ddp(torch.randn(8, 64, generator=data)) - 0.5).pow(2).mean()
        time.sleep(PAUSE_S * (1 + dist.get_rank()))  # so rank 0 waits for the other
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        left -= is_over() or left > COUNT
    gradients = torch.cat([one.grad.flatten() for one in model.parameters()])
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    others = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(others, weights)
    is_bf16 = torch.tensor([torch.equal(gradients, gradients.bfloat16().float())])
    dist.all_reduce(is_bf16, dist.ReduceOp.MIN)
    if dist.get_rank() == 0:
        said = {
            "losses": [sum(part) / COUNT for part in (losses[:COUNT], losses[-COUNT:])],
            "ranks_are_equal": all(torch.equal(weights, one) for one in others),
            "is_bf16": bool(is_bf16),
        }
        print(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
