"""One rank of one job: trains a network, tuned first where it is to be, then takes turns.

Started by ``run.py``. A job is told by files in the folder that they share, which all ranks look
for without a collective, so that waiting costs nothing: ``turn-N`` is a turn, ``end`` is the end.
Rank 0 answers with lines of JSON on its standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

STARTED = "OMPI_COMM_WORLD" if "OMPI_COMM_WORLD_RANK" in os.environ else "HOROVOD"
RANK, SIZE = (int(os.environ[f"{STARTED}_{name}"]) for name in ("RANK", "SIZE"))
if os.environ.get("ONE_GPU_A_HOST"):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(RANK)
LOOK_EVERY = 10
"""Steps between two looks at whether the tuner is done."""
LEAD = 3
"""Steps of a turn that are not counted."""
WAIT_S = 0.003

Loop = tuple[Callable[[], None], Callable[[float], float], Callable[[], Any]]
"""A step, the largest of a number over all ranks, and the tuner's status."""


def ours(options: argparse.Namespace) -> Loop:
    import torch
    from gpu.networks import make_task

    import horovod.torch as hvd

    hvd.init()
    device = device_of(options)
    task = make_task(options.network, device, RANK, options.tiny)
    network = task.build()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9),
        named_parameters=network.named_parameters(),
    )

    def step() -> None:
        optimizer.zero_grad()
        task.loss(network).backward()
        optimizer.step()

    return step, most_of_ranks, hvd.autotune.status


def most_of_ranks(number: float) -> float:
    import torch

    import horovod.torch as hvd

    return float(hvd.allreduce(torch.tensor(float(number)), op=hvd.Max, name="most"))


def ddp(options: argparse.Namespace) -> Loop:
    import autotune.ddp

    here = (0, 1) if os.environ.get("ONE_GPU_A_HOST") else (RANK, SIZE)
    names = {"RANK": RANK, "LOCAL_RANK": here[0], "WORLD_SIZE": SIZE, "LOCAL_WORLD_SIZE": here[1]}
    os.environ.update({name: str(value) for name, value in names.items()})
    if os.environ.get("HOROVOD_AUTOTUNE") == "1":
        autotune.ddp.install()
    import torch
    import torch.distributed as dist
    from gpu.networks import make_task
    from torch.nn.parallel import DistributedDataParallel

    device = device_of(options)
    store = f"file://{options.folder}/store"
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", init_method=store, rank=RANK, world_size=SIZE
    )
    plain = dist.new_group(backend="gloo")
    task = make_task(options.network, device, RANK, options.tiny)
    network = DistributedDataParallel(task.build(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(network).backward()
        optimizer.step()

    def most(number: float) -> float:
        found = torch.tensor(float(number))
        dist.all_reduce(found, dist.ReduceOp.MAX, group=plain)
        return float(found)

    return step, most, autotune.ddp.status


def alone(options: argparse.Namespace) -> Loop:
    """Each rank by itself: the step without communication."""
    import torch
    from gpu.networks import make_task

    import horovod.torch as hvd

    hvd.init()
    device = device_of(options)
    task = make_task(options.network, device, RANK, options.tiny)
    network = task.build()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(network).backward()
        optimizer.step()

    return step, most_of_ranks, lambda: None


def device_of(options: argparse.Namespace) -> Any:
    import torch

    torch.set_num_threads(1)
    if options.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", RANK % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return device


def wait_for_gpu(options: argparse.Namespace) -> None:
    if options.device == "cuda":
        import torch

        torch.cuda.synchronize()


def say(what: dict[str, Any]) -> None:
    if RANK == 0:
        print("SAYS " + json.dumps(what), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("who", choices=["ours", "ddp", "alone"])
    parser.add_argument("network")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--tune-s", type=float, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    step, most, status = {"ours": ours, "ddp": ddp, "alone": alone}[options.who](options)
    for _ in range(3):
        step()
    wait_for_gpu(options)
    begin, steps = time.monotonic(), 0
    if options.tune_s:
        wait_until(options.folder / "tune")
        begin = time.monotonic()
        is_done = False
        while not is_done:
            for _ in range(LOOK_EVERY):
                step()
            steps += LOOK_EVERY
            is_over = time.monotonic() - begin > options.tune_s
            is_over = is_over or status().state in ("done", "lost", "off", "nothing to tune")
            is_done = bool(most(float(is_over and RANK == 0)))
        wait_for_gpu(options)
    told: dict[str, Any] = {"started_s": begin - began}
    if options.tune_s:
        told |= {"steps": steps, "tuning_s": time.monotonic() - begin}
        told |= {"state": status().state, "text": status().text}
    told["variables"] = {
        k: os.path.basename(v) for k, v in os.environ.items() if k.startswith("NCCL_")
    }
    say(told)
    number = 0
    while wait_until(options.folder / f"turn-{number}", options.folder / "end") == 0:
        count = int((options.folder / f"turn-{number}").read_text())
        for _ in range(LEAD):
            step()
        wait_for_gpu(options)
        most(0)
        begin = time.perf_counter()
        for _ in range(count):
            step()
        wait_for_gpu(options)
        say({"ms": most(1000 * (time.perf_counter() - begin) / count)})
        number += 1
    sys.stdout.flush()
    os._exit(0)


def wait_until(*paths: Path) -> int:
    """Return the index of the first of these files that is there."""
    while True:
        for index, path in enumerate(paths):
            if path.exists():
                return index
        time.sleep(WAIT_S)


if __name__ == "__main__":
    main()
