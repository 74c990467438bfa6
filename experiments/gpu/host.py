"""Part 3: what hooks and enqueues cost the host, per tensor; the GPU has next to nothing to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from ground import Ground
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd

TENSORS, LENGTH = 161, 64
ROUNDS = 300


class _AllAtOnce(torch.autograd.Function):
    """A loss whose backward pass only hands over given gradients, one per parameter."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *weights: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return torch.zeros((), device=weights[0].device)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[Any, ...]:
        return (None, *ctx.gradients)


class Handover(nn.Module):
    """``TENSORS`` parameters whose gradients are there already."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        made = [torch.zeros(LENGTH, device=device) for _ in range(TENSORS)]
        self.weights = nn.ParameterList(nn.Parameter(each) for each in made)
        self.ready = [torch.ones(LENGTH, device=device) for _ in range(TENSORS)]

    def forward(self) -> torch.Tensor:
        return _AllAtOnce.apply(self.ready, *self.weights)  # type: ignore[no-any-return]


def run(ground: Ground) -> dict[str, Any]:
    """**Collective.** Medians by round, in us per tensor, on rank 0.

    backward: of the pass with hooks, less that of the pass without; synchronize: of
    ``optimizer.synchronize()``, in which the host waits for the negotiation; enqueue and wait: of
    ``allreduce_async_`` and ``synchronize`` in loops over the tensors.
    """
    plain, ours, theirs = (Handover(ground.device) for _ in range(3))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.0), named_parameters=ours.named_parameters()
    )
    ddp = DistributedDataParallel(theirs, gradient_as_bucket_view=True)
    tensors = [torch.ones(LENGTH, device=ground.device) for _ in range(TENSORS)]
    times: dict[str, list[float]] = {}

    def took(name: str, call: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = call()
        times.setdefault(name, []).append((time.perf_counter() - begin) * 1e6 / TENSORS)
        return result

    for number in range(ROUNDS + 20):
        if number == 20:
            times.clear()
        for network in (plain, ours, theirs):
            network.zero_grad()
        losses = plain(), ours(), ddp()
        meet(ground)
        took("plain", losses[0].backward)
        meet(ground)
        took("hooks", losses[1].backward)
        took("synchronize", optimizer.synchronize)
        with optimizer.skip_synchronize():
            optimizer.step()
        meet(ground)
        took("ddp", losses[2].backward)
        meet(ground)
        handles = took(
            "enqueue",
            lambda: [hvd.allreduce_async_(t, name=f"h{i}") for i, t in enumerate(tensors)],
        )
        took("wait", lambda: [hvd.synchronize(handle) for handle in handles])  # noqa: B023
        meet(ground)
        handle = took("enqueue_group", lambda: hvd.grouped_allreduce_async_(tensors, name="hg"))
        took("wait_group", lambda: hvd.synchronize(handle))  # noqa: B023
    return {"tensors": TENSORS, "rounds": ROUNDS, "us_per_tensor": times}


def meet(ground: Ground) -> None:
    ground.wait()
    MPI.COMM_WORLD.Barrier()
