"""The same training whatever starts it: python weights.py OUTPUT_FOLDER [STEPS]

Every rank leaves OUTPUT_FOLDER/pid-R once it has joined, and OUTPUT_FOLDER/rank-R.json at the end.
Where WITH_TORCH_DISTRIBUTED is set, the script uses torch.distributed beside, as it may.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import horovod.torch as hvd


def main(folder: Path, steps: int) -> None:
    hvd.init()
    (folder / f"pid-{hvd.rank()}").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(steps):
        data = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + hvd.rank()))
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    total = None
    if "WITH_TORCH_DISTRIBUTED" in os.environ:
        torch.distributed.init_process_group("gloo")
        ones = torch.ones(1)
        torch.distributed.all_reduce(ones)
        total = ones.item()
        torch.distributed.destroy_process_group()
    content = {
        "place": [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()],
        "weights": [parameter.flatten().tolist() for parameter in model.parameters()],
        "mpi": [hvd.mpi_enabled(), "mpi4py.MPI" in sys.modules],
        "gloo": [hvd.gloo_enabled(), hvd.gloo_built()],
        "torch_total": total,
    }
    (folder / f"rank-{hvd.rank()}.json").write_text(json.dumps(content))
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
