"""One of three ranks: sums depend on their order here, so gradients are held to the exact mean.

Rank 0 prints [largest error of a gradient over the largest exact one, ranks are equal, swaps].
"""

from __future__ import annotations

import copy
import json

import torch
import torch.distributed as dist
from equal import SETTINGS, Net
from torch.nn.parallel import DistributedDataParallel

from autotune.ddp import torch_private as private

STEPS, EVERY = 60, 2


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    net = Net()
    alone = copy.deepcopy(net)
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(dist.get_rank())
    worst, swaps = 0.0, 0
    for step in range(STEPS):
        if step % EVERY == 1:
            private.make_buckets(ddp, SETTINGS[swaps % len(SETTINGS)], is_timed=False)
            swaps += 1
        x = torch.randn(4, 16, generator=data)
        alone.load_state_dict(net.state_dict())
        for run in (ddp, alone):
            run.zero_grad()
            (run(x) - 0.1).pow(2).mean().backward()
        for mine, whole in zip(alone.parameters(), net.parameters(), strict=True):
            exact = mine.grad.double()
            dist.all_reduce(exact)
            exact /= dist.get_world_size()
            error = (whole.grad.double() - exact).abs().max() / exact.abs().max()
            worst = max(worst, float(error))
        optimizer.step()
    weights = torch.cat([one.detach().flatten() for one in net.parameters()])
    others = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(others, weights)
    if dist.get_rank() == 0:
        print(json.dumps([worst, all(torch.equal(weights, one) for one in others), swaps]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
