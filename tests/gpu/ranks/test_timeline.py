"""What the timeline says about work on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import horovod.torch as hvd
from gpu.device import ON_GPU, busy, full, same
from parallel.test_timeline import load, named


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all ranks share."""
    return Path(hvd.broadcast_object(str(tmp_path_factory.mktemp("timeline")), 0))


def test_allreduces_on_the_gpu_are_named_after_nccl(
    restart: Callable[[dict[str, str]], None], folder: Path, rank: int, size: int
) -> None:
    restart({"HOROVOD_TIMELINE": str(folder / "t.json")})
    for _ in range(5):
        busy(5)
        same(hvd.allreduce(full((2, 3), 1.0), op=hvd.Sum, name="x"), torch.full((2, 3), 1.0 * size))
    hvd.grouped_allreduce([full(1000, 1.0) for _ in range(3)], name="group")
    hvd.shutdown()
    if rank == 0:
        events = load(folder / "t.json")
        tracks = 1 + ON_GPU  # the host's and the GPU's
        assert len(named(events, "ALLREDUCE")) == tracks * (5 + 3)
        for part in ("QUEUE", "WAIT_FOR_DATA", "NCCL_ALLREDUCE") * ON_GPU:
            assert len(named(events, part)) == 5 + 3, part
    hvd.init()
