"""One of two ranks: its buckets are made anew, with and without compressed gradients, in turns.

    ranks.py 2 compressed.py

Beside it a module of the same weights is never touched. Rank 0 prints {case: [swaps, gradients were
the other's wherever they were plain, they were others wherever they were compressed, largest error
of these, ranks are equal]} as JSON.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import torch
import torch.distributed as dist
from equal import SETTINGS, Net
from torch.nn.parallel import DistributedDataParallel

from autotune.ddp import torch_private as private
from autotune.tables.ddp import DdpParams
from autotune.tables.further import FURTHER, extended

STEPS, EVERY = 88, 3
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "fp16": (["fp16"], {}),
    "bf16": (["bf16"], {}),
    "bf16_with_views": (["bf16"], {"gradient_as_bucket_view": True}),
    "bf16_and_static_graph": (["bf16", "static_graph"], {}),
}


def train(words: list[str], options: dict[str, Any]) -> list[Any]:
    kind = extended(DdpParams, words)
    torch.manual_seed(5)
    net = Net()
    other = DistributedDataParallel(copy.deepcopy(net), **options)
    ddp = DistributedDataParallel(net, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(dist.get_rank())
    swaps, is_compressed, plain, compressed, worst = 0, False, True, True, 0.0
    for step in range(STEPS):
        if step % EVERY == 1:
            is_compressed = not swaps % 2
            values = SETTINGS[swaps % len(SETTINGS)].as_dict()
            values["gradient_as_bucket_view"] = options.get("gradient_as_bucket_view", False)
            values |= {FURTHER[word].name: is_compressed for word in words}
            private.make_buckets(ddp, kind.from_dict(values), is_timed=True)
            assert private.untunable(ddp) is None
            assert private.refusals(ddp) == {}, "our hook was taken for the script's"
            swaps += 1
        x = torch.randn(4, 16, generator=data)
        other.module.load_state_dict(net.state_dict())
        for run in (ddp, other):
            run.zero_grad()
            (run(x) - 0.1).pow(2).mean().backward()
        mine, exact = (
            torch.cat([one.grad.flatten() for one in run.parameters()]) for run in (ddp, other)
        )
        if is_compressed:
            compressed &= not torch.equal(mine, exact)
            worst = max(worst, float((mine - exact).abs().max() / exact.abs().max()))
        else:
            plain &= torch.equal(mine, exact)
        optimizer.step()
    weights = torch.cat([one.detach().flatten() for one in net.parameters()])
    others = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(others, weights)
    return [swaps, plain, compressed, worst, all(torch.equal(weights, one) for one in others)]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {name: train(*case) for name, case in CASES.items()}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
