"""Names that never come again: a metric of every batch has one of its own."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

import pytest
import torch

import horovod.torch as hvd
from horovod.common import operation

Restart = Callable[[dict[str, str]], None]

FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
NAMES, TOGETHER, FEW = 1 << 14, 128, 1024
"""A training step that is found by repetition ends after so many names, and memory is as before."""


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def bytes_in_use() -> int:
    """Return how much this process has of the C library's memory (all arenas)."""
    info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if info is None:
        pytest.skip("needs glibc 2.33")
    info.restype = _MallInfo
    found = info()
    return int(found.uordblks + found.hblkhd)


def test_names_that_never_come_again_take_no_memory(size: int, restart: Restart) -> None:
    if size != 2:
        pytest.skip("takes 10 s of a core on each rank")
    restart({})  # an engine to which nobody has said where a step ends
    m = torch.ones(1)
    used, blocks = [], []
    for first in range(0, 2 * NAMES + FEW, TOGETHER):
        names = [f"m{first + i}" for i in range(TOGETHER)]
        if first // TOGETHER % 8:
            for handle in [hvd.allreduce_async(m, name=name) for name in names]:
                hvd.synchronize(handle)
        else:
            for name in names:
                hvd.allreduce(m, name=name)
        if first > NAMES and (first + TOGETHER) % NAMES == FEW:
            operation.forget()  # the 10,000 last ones
            gc.collect()
            used.append(bytes_in_use())
            blocks.append(sys.getallocatedblocks())
    print(f"{used[1] - used[0]} bytes, {blocks[1] - blocks[0]} of Python's blocks more")
    assert used[1] - used[0] < 64 << 10
    assert blocks[1] - blocks[0] < NAMES // 10
