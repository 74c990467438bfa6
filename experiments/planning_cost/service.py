"""The tuner's process as a variant wants it, with notes of what it did.

    service.py VARIANT NOTES

Notes are kept in memory and written at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from variants import VARIANTS, plan_as

from autotune.service import imports, logkeeper, process
from autotune.service.protocol import Done, Steps
from autotune.trial import Sample

NOTES: dict[str, Any] = {"plans": [], "default_us": [], "steps": 0, "steps_to_done": None}


def clocks() -> tuple[float, float]:
    """Return wall clock and CPU time of this thread, in seconds."""
    return time.monotonic(), time.thread_time()


def spent(since: tuple[float, float]) -> dict[str, float]:
    """Return what has passed, in ms."""
    wall, cpu = clocks()
    return {"wall_ms": 1000 * (wall - since[0]), "cpu_ms": 1000 * (cpu - since[1])}


class NotedImports(imports.Imports):
    """Notes what the imports take."""

    def _run(self) -> None:
        self._wanted.wait()
        begin = clocks()
        super()._run()
        NOTES["imports"] = spent(begin)


class NotedService(process.Service):
    """Notes plans, steps and the end of tuning."""

    def _compute(self, work: Callable[[], Any]) -> None:
        asked = NOTES["steps"]

        def noted() -> Any:
            begin = clocks()
            plan = work()
            NOTES["plans"].append({**spent(begin), "steps": NOTES["steps"] - asked})
            return plan

        super()._compute(noted)

    def _serve(self) -> None:
        NOTES["ready_ms"] = 1000 * time.process_time()
        super()._serve()

    def _take_steps(self, steps: Steps) -> None:
        NOTES["steps"] += sum(record.count for record in steps.records)
        super()._take_steps(steps)

    def _handle(self, events: list[Any]) -> None:
        if NOTES["steps_to_done"] is None and any(isinstance(event, Done) for event in events):
            NOTES["steps_to_done"] = NOTES["steps"]
        super()._handle(events)


class NotedLogs(logkeeper.LogKeeper):
    """Notes every reading of the default."""

    def take(self, event: Any) -> bool:
        if isinstance(event, Sample) and event.trial_id == 0:
            NOTES["default_us"].append(event.duration_us / event.steps)
        return super().take(event)


def main() -> None:
    program, name, notes, *cores = sys.argv
    sys.argv = [program, *cores]  # what the service itself takes
    variant = VARIANTS[name]
    plan_as(variant)
    if not variant.holds:
        process.MOST_HELD_S = 0.0
    process.Imports = NotedImports
    process.Service = NotedService
    logkeeper.LogKeeper = NotedLogs
    status = process.main()
    NOTES["cpu_ms"] = 1000 * time.process_time()
    part = Path(notes + ".part")
    part.write_text(json.dumps(NOTES))
    part.replace(notes)
    os._exit(status)


if __name__ == "__main__":
    main()
