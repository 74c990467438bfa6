"""One rank whose choices for NCCL change while it communicates; rank 0 prints a line of JSON.

    mpirun -n 2 python nccl_choices.py engine --changes 10000
    mpirun -n 2 python nccl_choices.py engine --without 1     # NCCL of rank 1 loads no tuner
    mpirun -n 2 python nccl_choices.py engine --kill-tuner    # with HOROVOD_AUTOTUNE=1
    mpirun -n 2 python nccl_choices.py ddp --changes 10000    # torch's own communicators
    mpirun -n 2 python nccl_choices.py graph                  # a captured one keeps its choice

Sums are of small whole numbers, exact in every order, and compared on the GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autotune.nccl.offer import library_path, offer
from autotune.nccl.plugin import Plugin, Seen
from autotune.tables.nccl import CommNcclParams

KIND = os.environ.get("HVD_TEST_DEVICE", "cuda")
"""With "cpu", where NCCL has nothing to choose, only the sums are proved."""
ON_GPU = KIND == "cuda"
MIB = 2**20
LENGTHS = (1, 1000, 65_536, MIB // 4, MIB // 4 + 3, MIB, 3 * MIB)
"""Of float32; a mebibyte and more follows the choice."""


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def choice(rng: np.random.Generator) -> dict[str, int]:
    return {
        "nccl_algorithm": int(rng.choice((0, 1, 2))),
        "nccl_protocol": int(rng.choice((0, 0, 1, 2, 3))),
        "nccl_channels": int(rng.choice((0, 1, 2, 4, 8, 16, 32))),
    }


class Checked:
    """Sums that are compared with what they should be, on the GPU."""

    def __init__(self, device: torch.device) -> None:
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)
        self._most = torch.arange(max(LENGTHS), device=device)

    def own(self, length: int, number: int, rank: int) -> torch.Tensor:
        return ((self._most[:length] + number + 3 * rank) % 7).float()

    def compare(self, found: torch.Tensor, number: int, ranks: Iterable[int]) -> None:
        right = sum(self.own(len(found), number, rank) for rank in ranks)
        self.wrong += (found != right).sum()


def engine(options: argparse.Namespace) -> dict[str, Any]:
    import horovod.torch as hvd
    from horovod import _engine
    from horovod.common import basics

    hvd.init()
    if ON_GPU:
        torch.cuda.set_device(hvd.local_rank())
    checked = Checked(torch.device(KIND))
    ranks = list(range(hvd.size()))
    halves = [ranks[:-1], ranks[-1:]] if len(ranks) < 4 else [ranks[:2], ranks[2:]]
    sets = [hvd.global_process_set, *map(hvd.add_process_set, halves)]
    rng, epochs = np.random.default_rng(1), itertools.count(1)
    in_force = {0}
    begin = time.perf_counter()
    for number in range(options.changes):
        values = choice(rng)
        if options.kill_tuner and number == options.changes // 2:
            kill_tuner()
        if hvd.rank() == 0 and not options.kill_tuner:
            params = CommNcclParams(**values).as_dict()
            basics.engine().propose(next(epochs), _engine.Params(**params))
        lengths = rng.choice(LENGTHS, size=int(rng.integers(1, 4)))
        own = [checked.own(int(n), number, hvd.rank()) for n in lengths]
        where = sets[max(0, int(rng.integers(-3, 3)))]
        found = []
        if hvd.rank() not in where.ranks:
            pass  # its choice changes all the same
        elif number % 3:
            handles = [
                hvd.allreduce_async(one, op=hvd.Sum, name=f"{k}", process_set=where)
                for k, one in enumerate(own)
            ]
            found = [hvd.synchronize(handle) for handle in handles]
        else:
            found = hvd.grouped_allreduce(own, op=hvd.Sum, process_set=where)
        for one in found:
            checked.compare(one, number, where.ranks)
        hvd.autotune.step()
        in_force.add(basics.engine().epoch())
        if number % 100 == 99:
            synchronize()
            if options.mark:
                (options.folder / f"pid-{options.rank}").write_text(str(os.getpid()))
    synchronize()
    told = {
        "seconds": time.perf_counter() - begin,
        "wrong": int(checked.wrong),
        "changes": len(in_force) - 1,
        "state": hvd.autotune.status().state,
    }
    told["seen"] = seen_of_all(lambda one: hvd.allgather_object(one))
    hvd.shutdown()
    return told


def kill_tuner() -> None:
    """End the tuner's process as a machine would that runs out of memory."""
    from horovod.tuning import autotuning

    service = autotuning._session._service
    if service is not None:
        os.kill(service._pid, signal.SIGKILL)


def of_torch(options: argparse.Namespace) -> tuple[Any, Any]:
    """Start torch's own NCCL; return the switch, and a sum over all ranks of any tensor."""
    import torch.distributed as dist

    from autotune.ddp.adapter import _rounds_in
    from autotune.ddp.nccl import Switch

    rank, size = options.rank, options.size
    if ON_GPU:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if ON_GPU else "gloo",
        init_method=f"file://{options.folder}/store",
        rank=rank,
        world_size=size,
    )
    plain = dist.new_group(backend="gloo")
    second = dist.new_group()
    switch = Switch(Plugin(library_path()), _rounds_in(plain), size=size)
    groups = (None, second)
    return switch, lambda tensor, k=0, **how: dist.all_reduce(tensor, group=groups[k], **how)


def ddp(options: argparse.Namespace) -> dict[str, Any]:
    import torch.distributed as dist

    switch, allreduce = of_torch(options)
    checked = Checked(torch.device(KIND))
    rng, reasons = np.random.default_rng(1), set()
    begin = time.perf_counter()
    for number in range(options.changes):
        values = choice(rng)
        if number:  # there is no communicator before the first operation
            reasons.add(switch.make(values))
        for _ in range(int(rng.integers(1, 3))):
            found = checked.own(int(rng.choice(LENGTHS)), number, options.rank)
            allreduce(found, int(rng.integers(2)))
            checked.compare(found, number, range(options.size))
        if number % 100 == 99:
            synchronize()
    synchronize()
    told = {
        "seconds": time.perf_counter() - begin,
        "wrong": int(checked.wrong),
        "reasons": sorted(reasons),
    }
    if options.uneven:  # a rank that has made another operation: none of them changes anything
        extra = dist.new_group(ranks=[0])
        if options.rank == 0:
            dist.all_reduce(torch.ones(1, device=KIND), group=extra)
        told["uneven"] = switch.make({"nccl_algorithm": 1, "nccl_channels": 2})

    def gather(own: Seen) -> list[Seen]:
        everyone: list[Any] = [None] * options.size
        dist.all_gather_object(everyone, own)
        return everyone

    told["seen"] = seen_of_all(gather)
    dist.destroy_process_group()
    return told


def graph(options: argparse.Namespace) -> dict[str, Any]:
    """Capture under one choice, replay under others."""
    switch, allreduce = of_torch(options)
    checked = Checked(torch.device(KIND))
    allreduce(torch.ones(1, device=KIND))
    first = switch.make({"nccl_algorithm": 1, "nccl_channels": 4})
    given = torch.zeros(4 * MIB, device=KIND)[: 3 * MIB]
    found = torch.empty_like(given)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            found.copy_(given)
            allreduce(found)
    synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        found.copy_(given)
        allreduce(found)
    reasons = {first}
    rng = np.random.default_rng(2)
    for number in range(200):
        reasons.add(switch.make(choice(rng)))
        given.copy_(checked.own(len(given), number, options.rank))
        captured.replay()
        checked.compare(found, number, range(options.size))
        other = checked.own(MIB, number, options.rank)
        allreduce(other)
        checked.compare(other, number, range(options.size))
    synchronize()
    return {"wrong": int(checked.wrong), "reasons": sorted(reasons)}


def seen_of_all(gather: Any) -> list[dict[str, Any]]:
    return [vars(one) for one in gather(Plugin(library_path()).seen())]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["engine", "ddp", "graph"])
    parser.add_argument("--changes", type=int, default=10_000)
    parser.add_argument("--without", type=int, default=-1, help="a rank without the tuner")
    parser.add_argument("--uneven", action="store_true")
    parser.add_argument("--kill-tuner", action="store_true", help="it proposes, until it dies")
    parser.add_argument("--mark", action="store_true", help="say that changes have begun")
    parser.add_argument("--folder", type=Path, default=Path("."))
    options = parser.parse_args()
    options.rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    options.size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    if options.rank != options.without and (obstacle := offer(os.environ)):
        raise SystemExit(obstacle)
    told = {"engine": engine, "ddp": ddp, "graph": graph}[options.part](options)
    if options.rank == 0:
        print("RESULT", json.dumps(told), flush=True)
    if options.part == "graph":
        os._exit(0)  # torch waits for the graph's communicator at its end


if __name__ == "__main__":
    main()
