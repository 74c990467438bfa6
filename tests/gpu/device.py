"""Where the tensors of this tier live: on the rank's GPU, or with HVD_TEST_DEVICE=cpu in memory.

The second way needs no GPU and no backend; it proves the tests' own arithmetic.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

import horovod.torch as hvd

KIND = os.environ.get("HVD_TEST_DEVICE", "cuda")
ON_GPU = KIND == "cuda"
DEVICE = torch.device(KIND)
"""Without a number: the current one, which conftest sets to the local rank's."""
CYCLES_PER_MS = 2_000_000
"""Of the GPU's clock, rounded up: ``busy`` lasts at least as long as it says on any of today's."""


def take_gpu() -> None:
    """After ``hvd.init``: make a GPU the rank's own, or share one where there are too few."""
    if not ON_GPU:
        return
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    if shares_gpu():  # NCCL lets only ranks of different hosts do that
        os.environ["NCCL_HOSTID"] = f"rank-{hvd.rank()}"


def shares_gpu() -> bool:
    """Return whether there are fewer GPUs than ranks."""
    return ON_GPU and hvd.size() > torch.cuda.device_count()


def put(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` on the device under test."""
    return tensor.to(DEVICE)


def full(
    shape: int | tuple[int, ...], value: float, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return a tensor full of ``value`` on the device under test."""
    shape = (shape,) if isinstance(shape, int) else shape
    return torch.full(shape, value, dtype=dtype, device=DEVICE)


def busy(milliseconds: float) -> None:
    """Keep the current stream busy; returns at once. Does nothing on the CPU."""
    if ON_GPU:
        torch.cuda._sleep(int(milliseconds * CYCLES_PER_MS))


def new_stream() -> torch.cuda.Stream | None:
    """Return a stream of the current device; None on the CPU."""
    return torch.cuda.Stream() if ON_GPU else None


def using(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Return the context in which ``stream`` is current."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def finish() -> None:
    """Wait for all streams."""
    if ON_GPU:
        torch.cuda.synchronize()


def same(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert that ``result`` is on the device under test and equal to ``expected`` (anywhere)."""
    assert result.device.type == DEVICE.type
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    assert torch.equal(result.cpu(), expected.cpu()), f"{result} is not {expected}"


def wait_until(true: Callable[[], bool], limit_s: float = 20) -> None:
    """Return once ``true()`` is."""
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.001)
