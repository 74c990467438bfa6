from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.timeline import TimelineReport, analyse

Event = dict[str, Any]
DATA = Path(__file__).parents[3] / "data"
HOROVOD = DATA / "horovod-0.28.1-timeline-cpu-2-ranks.json"
CYCLES = DATA / "horovod-0.28.1-timeline-cpu-2-ranks-cycles.json"


class Recorder:
    """Writes events as the engine does: one tensor track per name, one clock."""

    def __init__(self, ranks: int = 2) -> None:
        self.now = 0.0
        self.pids: dict[str, int] = {}
        self.events: list[Event] = [
            {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"size": ranks}}
        ]

    def add(self, ph: str, pid: int, tid: int = 0, **more: Any) -> None:
        self.events.append({"ph": ph, "ts": self.now, "pid": pid, "tid": tid, **more})

    def pid(self, tensor: str) -> int:
        if tensor not in self.pids:
            self.pids[tensor] = len(self.pids) + 1
            args = {"name": tensor}
            pid = self.pids[tensor]
            self.events.append({"name": "process_name", "ph": "M", "pid": pid, "args": args})
        return self.pids[tensor]

    def wait(self, time: float) -> None:
        self.now += time

    def operation(self, tensors: list[str], ticks: list[tuple[int, float]], times: list[float]):
        """Negotiate ``tensors`` with (rank, wait before its tick), then copy, move, copy."""
        pids = [self.pid(tensor) for tensor in tensors]
        for pid in pids:
            self.add("B", pid, name="NEGOTIATE_ALLREDUCE")
        for rank, before in ticks:
            self.wait(before)
            for pid in pids:
                self.add("X", pid, name=str(rank), dur=0)
        for pid in pids:
            self.add("E", pid)
        self.wait(times[0])
        for pid in pids:
            self.add("B", pid, name="ALLREDUCE")
        activities = ("QUEUE", "MEMCPY_IN_FUSION_BUFFER", "MPI_ALLREDUCE")
        for name, time in zip(activities, times[1:], strict=True):
            for pid in pids:
                self.add("B", pid, name=name)
            self.wait(time)
            for pid in pids:
                self.add("E", pid)
        for pid in pids:
            self.add("E", pid, args={"dtype": "float32", "shape": "[10, 25]"})


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., TimelineReport]:
    """Write events to a file and read it back."""

    def read(events: list[Event], separator: str = ",\n") -> TimelineReport:
        path = tmp_path / "timeline.json"
        path.write_text("[" + separator.join(map(json.dumps, events)) + "]")
        return analyse(str(path))

    return read
