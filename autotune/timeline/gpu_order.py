"""Puts the events of a GPU, which come late in a file, where they happened.

A tensor of a GPU has two tracks. The engine's has the operation as it is put into the GPU's stream,
its begin marked ``{"device": "GPU"}``. The GPU's (a thread called "GPU") has the operation as the
GPU does it, which is known only later: its events come behind others that happened after them, but
never begin before the mark, and operations come in the order of their marks.

So events wait here as long as an operation that was marked before them is open: as many as the
engine writes while the GPU catches up.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Any

from autotune.timeline.events import Event

MOST_WAITING = 200_000
"""More are let go: what they wait for is missing in the file."""


def is_put_on_gpu(event: Event) -> bool:
    """Return whether ``event`` begins an operation that the GPU's track will have, too."""
    args = event.get("args")
    return event.get("ph") == "B" and isinstance(args, dict) and args.get("device") == "GPU"


class GpuOrder:
    """Events by time, given in the order of the file."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[Any, Any], int] = {}  # the GPU's: open spans
        self._waiting: list[tuple[float, int, Event]] = []  # a heap; equal times in file order
        self._marks: deque[float] = deque()  # of operations that are open
        self._seen = 0

    def __bool__(self) -> bool:
        """Return whether the file has tracks of a GPU."""
        return bool(self._tracks)

    def add_track(self, pid: Any, tid: Any) -> None:
        """The track ``tid`` of ``pid`` is the GPU's."""
        self._tracks.setdefault((pid, tid), 0)

    def is_gpu(self, event: Event) -> bool:
        """Return whether ``event`` is on a track of the GPU."""
        return (event.get("pid"), event.get("tid")) in self._tracks

    def sorted(self, event: Event, ts: float) -> Iterator[tuple[float, Event]]:
        """Take ``event``, which happened at ``ts``; yield what need not wait any longer."""
        self._seen += 1
        heapq.heappush(self._waiting, (ts, self._seen, event))
        if is_put_on_gpu(event):
            self._marks.append(ts)
        elif self.is_gpu(event):
            self._follow(event)
        elif event.get("name") == "DROPPED_EVENTS":
            self._marks.clear()
        if self._marks and len(self._waiting) > MOST_WAITING:
            self._marks.popleft()
        while self._waiting and (not self._marks or self._waiting[0][0] <= self._marks[0]):
            ts, _, event = heapq.heappop(self._waiting)
            yield ts, event

    def rest(self) -> Iterator[tuple[float, Event]]:
        """The file is over: yield what is left."""
        while self._waiting:
            ts, _, event = heapq.heappop(self._waiting)
            yield ts, event

    def _follow(self, event: Event) -> None:
        track = (event.get("pid"), event.get("tid"))
        if event.get("ph") == "B":
            self._tracks[track] += 1
        elif event.get("ph") == "E" and self._tracks[track] > 0:
            self._tracks[track] -= 1
            if self._tracks[track] == 0 and self._marks:
                self._marks.popleft()
