"""What all parts stand on: the device, both runtimes, the clock, settings that change live."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from mpi4py import MPI
from settings import Setting, in_force, propose

import horovod.torch as hvd

MIB = 2**20
WARM_UP = 3
LEAD = 2
MOST_WARM_UP = 30
Step = Callable[[], None]
Key = TypeVar("Key", bound=Hashable)


class Ground:
    """One rank's place. **Collective:** its construction.

    Args:
        kind: "cuda" or, for dry runs, "cpu".
        peer: Start torch.distributed, too.

    Attributes:
        device: This rank's.
        default: The setting that the job began with.
    """

    def __init__(self, kind: str, *, peer: bool = True) -> None:
        hvd.init()
        torch.set_num_threads(1)
        self.gpu = kind == "cuda"
        self.device = torch.device(kind)
        if self.gpu:
            gpus = torch.cuda.device_count()
            self.device = torch.device(kind, hvd.local_rank() % gpus)
            if hvd.size() > gpus:  # NCCL lets only ranks of different hosts share one
                os.environ["NCCL_HOSTID"] = f"rank-{hvd.rank()}"
            torch.cuda.set_device(self.device)
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
        self.default = Setting(**hvd.autotune.params())
        self._store = ""
        if peer:
            self._start_peer()

    def _start_peer(self) -> None:
        folder = tempfile.mkdtemp(prefix="peer-") if hvd.rank() == 0 else ""
        self._store = MPI.COMM_WORLD.bcast(folder)
        options: dict[str, Any] = {"device_id": self.device} if self.gpu else {}
        dist.init_process_group(
            "nccl" if self.gpu else "gloo",
            init_method=f"file://{self._store}/store",
            rank=hvd.rank(),
            world_size=hvd.size(),
            **options,
        )

    def close(self) -> None:
        """**Collective.** End both runtimes."""
        self.wait()
        if self._store:
            dist.destroy_process_group()
            MPI.COMM_WORLD.Barrier()
            if hvd.rank() == 0:
                shutil.rmtree(self._store)
        hvd.shutdown()

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.gpu:
            torch.cuda.synchronize()

    def timed(self, step: Step, steps: int) -> float:
        """**Collective.** Return ms a step of ``steps``, on the slowest rank.

        On the GPU, two events on the current stream, the first one behind ``LEAD`` steps that are
        not counted: time that the host takes counts only where the GPU waits for it.
        """
        self.wait()
        MPI.COMM_WORLD.Barrier()
        for _ in range(LEAD):
            step()
        if self.gpu:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        elapsed_ms = (time.perf_counter() - begin) * 1e3
        if self.gpu:
            end.record()
            self.wait()
            elapsed_ms = start.elapsed_time(end)
        return MPI.COMM_WORLD.allreduce(elapsed_ms, MPI.MAX) / steps

    def put(self, step: Step, threshold_bytes: int, cycle_ms: float) -> None:
        """**Collective.** Make steps under the default with these two values until all have them.

        Raises:
            RuntimeError: The setting did not come into force.
        """
        setting = replace(
            self.default, fusion_threshold_bytes=threshold_bytes, cycle_time_ms=cycle_ms
        )
        propose(setting)
        for number in range(MOST_WARM_UP):
            step()
            if number >= WARM_UP - 1 and MPI.COMM_WORLD.allreduce(in_force(setting), MPI.MIN):
                return
        raise RuntimeError(f"not in force after {MOST_WARM_UP} steps: {setting}")

    def about(self, commit: str) -> dict[str, Any]:
        """Return what the figures depend on."""
        variables = {
            k: v for k, v in os.environ.items() if k.startswith(("NCCL_", "TORCH_", "HORO"))
        }
        about = {
            "ranks": hvd.size(),
            "commit": commit,
            "date": datetime.now(UTC).isoformat(timespec="minutes"),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "mpi": MPI.Get_library_version().split(",")[0],
            "hvd-autotune": _version("hvd-autotune"),
            "cores": len(os.sched_getaffinity(0)),
            "defaults": self.default.as_dict(),
            "environment": variables,
        }
        if self.gpu:
            about |= {
                "cards": f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}",
                "driver": _driver(),
                "cuda": torch.version.cuda,
                "nccl": ".".join(map(str, torch.cuda.nccl.version())),
                "tf32": True,
            }
        return about


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _driver() -> str:
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(words, capture_output=True, text=True).stdout.split("\n")[0]
    except OSError:
        return ""


def in_turns(
    turns: Mapping[Key, Callable[[], float]], seconds: float, least: int = 1
) -> dict[Key, list[float]]:
    """**Collective.** Take all turns in random orders while another round fits; ms by round."""
    order, begin, longest_s, count = random.Random(1), time.monotonic(), 0.0, 0
    samples: dict[Key, list[float]] = {key: [] for key in turns}
    while MPI.COMM_WORLD.bcast(count < least or time.monotonic() - begin + longest_s < seconds):
        start = time.monotonic()
        for key in order.sample(list(turns), len(turns)):
            samples[key].append(turns[key]())
        longest_s, count = max(longest_s, time.monotonic() - start), count + 1
    return samples


def best(samples: Mapping[Key, list[float]], kind: str) -> Key:
    """**Collective.** Return the key of ``kind`` (its first entry) with the best median."""
    keys = [key for key in samples if key[0] == kind]  # type: ignore[index]
    return MPI.COMM_WORLD.bcast(min(keys, key=lambda key: statistics.median(samples[key])))


def rows(samples: Mapping[Any, list[float]]) -> list[Any]:
    """Return ``samples`` for JSON: [key, values]."""
    return [[key, [round(value, 4) for value in values]] for key, values in samples.items()]
