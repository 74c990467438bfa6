"""What a rank does in a step of each case."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from engine_speed.workloads import resnet50_gradient_sizes
from two_hosts.rank import Replay, small_tensors

import horovod.torch as hvd
from horovod.common import basics


class Gathers:
    """A step that gathers some tensors, as the sparse gradients of embeddings are.

    Args:
        rows: Rows that each rank contributes to each tensor.
        width: Elements of a row.
    """

    def __init__(self, rows: Sequence[int], width: int) -> None:
        self.tensors = [torch.zeros(count, width) for count in rows]
        self.results: list[torch.Tensor] = []

    def fill(self) -> None:
        for number, tensor in enumerate(self.tensors):
            tensor.fill_(number + hvd.rank())

    def step(self) -> None:
        handles = [hvd.allgather_async(t, name=f"e{i}") for i, t in enumerate(self.tensors)]
        self.results = [hvd.synchronize(handle) for handle in handles]
        basics.engine().end_step()

    def check(self) -> None:
        """The results of the step after ``fill`` are exact."""
        for number, (tensor, result) in enumerate(zip(self.tensors, self.results, strict=True)):
            assert result.shape == (hvd.size() * len(tensor), tensor.shape[1])
            for rank, block in enumerate(result.split(len(tensor))):
                assert bool((block == number + rank).all()), f"tensor {number}, rank {rank}"


class Group:
    """A step that reduces many small tensors as one group, as ``num_groups=1`` has it.

    Args:
        count: Tensors.
        elements: Of each.
        dtype: Of each.
    """

    def __init__(self, count: int, elements: int, dtype: torch.dtype = torch.float32) -> None:
        self.tensors = [torch.zeros(elements, dtype=dtype) for _ in range(count)]

    def fill(self) -> None:
        for number, tensor in enumerate(self.tensors):
            tensor.fill_(number + hvd.rank())

    def step(self) -> None:
        hvd.grouped_allreduce_(self.tensors, name="network.layer.weight", op=hvd.Sum)
        basics.engine().end_step()

    def check(self) -> None:
        """The sums of the step after ``fill`` are exact."""
        ranks = sum(range(hvd.size()))
        for number, tensor in enumerate(self.tensors):
            assert bool((tensor == number * hvd.size() + ranks).all()), f"gradient {number}"


def make_steps(name: str) -> Replay | Gathers | Group:
    """Return this rank's part of the job."""
    if name == "allgather":
        return Gathers([128] * 8, 128)
    if name in ("fusion", "allreduce"):
        return Replay(small_tensors(), forward_s=0.0, backward_s=0.020)
    if name == "cache":
        return Group(1000, 16)
    if name == "allreduce-float16":
        return Group(60, 16 * 1024, torch.float16)
    if name == "cache-two-hosts":
        return Replay([64] * 500, forward_s=0.0, backward_s=0.0)
    if name == "cycle":
        return Replay(small_tensors(), forward_s=0.0, backward_s=0.040)
    if name == "cycle-one-host":
        sizes = [max(1, size // 8) for size in resnet50_gradient_sizes()]
        return Replay(sizes, forward_s=0.0, backward_s=0.008)
    return Replay(small_tensors(), forward_s=0.0, backward_s=0.0)
