"""One of two ranks: how long rank 0's steps wait for rank 1, on marks as they are set on a device.

Rank 0 prints {"plain": ms, "closure": ms}: of steps whose backward pass comes before the optimizer,
and of steps whose optimizer is given a closure that makes it, as Lightning's are. Marks have the
time of the host here.
"""

from __future__ import annotations

import json
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import autotune.ddp
from autotune.ddp import adapter, steps

STEPS = 24
LATE_S = 0.02


class Mark:
    """Takes the place of an event of a device."""

    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Mark) -> float:
        return 1000 * (later.at_s - self.at_s)


def main() -> None:
    steps._event = Mark
    torch.cuda.is_current_stream_capturing = lambda: False  # there is no such stream
    adapter.Adapter._is_device = staticmethod(lambda ddp: True)
    autotune.ddp.install()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    records: list = []
    autotune.ddp.entry._entry.adapter.session.add = lambda found, _: records.extend(found)

    def backward() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ddp(torch.ones(2, 8)).pow(2).mean()
        if dist.get_rank() == 1:
            time.sleep(LATE_S)
        loss.backward()
        return loss

    for step in range(2 * STEPS):
        if step < STEPS:
            backward()
            optimizer.step()
        elif step % 2:
            optimizer.step(backward)
        else:
            optimizer.step(closure=backward)
    if dist.get_rank() == 0:
        autotune.ddp.entry._entry.adapter.finish()
        waited = [record.exposed_us / 1000 for record in records]
        assert len(waited) == 2 * STEPS - 1
        print(json.dumps({
            "plain": statistics.median(waited[: STEPS - 1]),
            "closure": min(statistics.median(waited[STEPS + k :: 2]) for k in (0, 1)),
        }))  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
