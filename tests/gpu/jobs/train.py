"""A training job on GPUs that runs until its tuner is done: python train.py FOLDER

Every rank leaves FOLDER/rank-R.json at its end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import horovod.torch as hvd
from gpu.device import DEVICE, ON_GPU, take_gpu

MOST_STEPS = 20_000


def main(folder: Path) -> None:
    hvd.init()
    torch.set_num_threads(1)
    take_gpu()
    torch.manual_seed(0)
    width = 1024 if ON_GPU else 64
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(12))).to(DEVICE)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.001), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    inputs = torch.randn(8, width, device=DEVICE)
    for step in range(MOST_STEPS):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if step % 50 == 49 and hvd.broadcast_object(hvd.autotune.status().state, 0) == "done":
            break
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).double()
    sums = hvd.allgather(weights.sum().reshape(1))
    status = hvd.autotune.status()
    content = {
        "size": hvd.size(),
        "steps": step + 1,
        "state": status.state,
        "params": dict(status.params),
        "same_weights": bool((sums == sums[0]).all()),
    }
    (folder / f"rank-{hvd.rank()}.json").write_text(json.dumps(content))
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
