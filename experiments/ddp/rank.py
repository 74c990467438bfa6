"""One rank: trains a network under the tuner until that is done, then times settings in turns.

Started by torchrun under ``autotune run``; rank 0 prints one line of JSON after ``RESULT``.
Settings take turns in the processes that were tuned, in random orders that are the same on all
ranks; after each change some steps go unmeasured. A sample is the time of several steps of the
slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from gpu.networks import build, make_task
from torch.nn.parallel import DistributedDataParallel

from autotune.ddp import entry, torch_private
from autotune.space import MIB
from autotune.storage.reader import read_log
from autotune.tables.ddp import DdpParams

GRID_MIB = (0, 1, 4, 16, 64, 128, 256, 512)
"""Bucket sizes; 0: None, what DDP does by itself."""
UNMEASURED = 4
LOOK_EVERY = 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("network")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--most-steps", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    is_gpu = options.device == "cuda"
    rank = int(os.environ["RANK"])
    device = torch.device("cpu")
    if is_gpu:
        gpus = torch.cuda.device_count()
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % gpus)
        if gpus < int(os.environ["LOCAL_WORLD_SIZE"]):  # NCCL takes ranks of one GPU for two hosts
            os.environ["NCCL_HOSTID"] = f"rank{rank}"
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    dist.init_process_group("nccl" if is_gpu else "gloo")
    task = make_task(options.network, device, rank, options.tiny)
    network = build(options.network, device, options.tiny)
    ddp = DistributedDataParallel(network, broadcast_buffers=False)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=0.9)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            task.loss(ddp).backward()
            optimizer.step()

    def timed(steps: int) -> float:
        """Return ms a step, of the slowest rank."""
        if is_gpu:
            torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        train(steps)
        if is_gpu:
            torch.cuda.synchronize()
        took = torch.tensor(1000 * (time.perf_counter() - begin) / steps, device=device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        return float(took)

    def is_done() -> bool:
        flag = torch.tensor(float(entry.status().state in ("done", "lost")), device=device)
        dist.broadcast(flag, 0)
        return bool(flag)

    begin, steps = time.perf_counter(), 0
    while not is_done() and steps < options.most_steps:
        train(LOOK_EVERY)
        steps += LOOK_EVERY
    seconds = time.perf_counter() - begin
    state, text = entry.status().state, entry.status().text
    train(3)  # the last change is made by now
    chosen = torch_private.setting_of(ddp)
    adapter = entry._entry.adapter
    assert adapter is not None
    adapter.finish()
    adapter._is_off = True
    view = read_log(os.environ["HOROVOD_AUTOTUNE_LOG"]) if rank == 0 else None

    settings = [DdpParams(bucket_cap_bytes=mib * MIB) for mib in GRID_MIB]
    settings += [chosen] if chosen not in settings else []
    samples: dict[str, list[float]] = {json.dumps(one.as_dict()): [] for one in settings}
    order = random.Random(1)
    peak: dict[str, int] = {}
    for _ in range(options.rounds):
        for one in order.sample(settings, len(settings)):
            if is_gpu:
                torch.cuda.reset_peak_memory_stats()
            torch_private.make_buckets(ddp, one, is_timed=False)
            train(UNMEASURED)
            samples[json.dumps(one.as_dict())].append(timed(options.steps))
            peak[json.dumps(one.as_dict())] = torch.cuda.max_memory_allocated() if is_gpu else 0
    if rank == 0 and view is not None:
        certificate = view.certificate
        found = {
            "network": options.network,
            "ranks": dist.get_world_size(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if is_gpu else "cpu",
            "state": state,
            "text": text,
            "tuning_steps": steps,
            "tuning_s": seconds,
            "trials": len(view.trials),
            "certified": None if certificate is None else certificate.certified,
            "certificate_gain": None if certificate is None else certificate.gain,
            "chosen": chosen.as_dict(),
            "ms": samples,
            "peak_bytes": peak,
        }
        print("RESULT", json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
