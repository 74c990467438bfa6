"""One walk through a timeline's events in the order of time; memory does not grow with the file.

The walk keeps how many tensors are in which phase. Whenever time passes it is added to the phase
that takes precedence at that moment, so the phases sum to the time of the job exactly.
"""

from __future__ import annotations

import math
import re
from typing import Any

from autotune.timeline.events import Event
from autotune.timeline.gpu_order import GpuOrder, is_put_on_gpu
from autotune.timeline.operations import OperationSums
from autotune.timeline.phases import Phase
from autotune.timeline.report import RankSums, TensorSums, TimelineReport
from autotune.timeline.steps import StepRecorder
from autotune.timeline.tracks import Track

_IDLE = Phase.IDLE.value
_GENERATED = re.compile(r"(\.noname)\.\d+(\.|$)")
_JOB = 0  # pid of what belongs to no tensor


class Sweep:
    """The state of the walk; the sums go to ``report``."""

    def __init__(self, report: TimelineReport, ranks: int) -> None:
        self.report = report
        self._ranks = ranks
        self._origin: float | None = None  # what the file's clock says when the recording begins
        self._starts_at_zero = False
        self._now: float | None = None
        self._end = 0.0
        self._counts = [0] * len(Phase)
        self._tracks: dict[tuple[Any, bool], Track] = {}  # by pid, and whether it is the GPU's
        self._names: dict[Any, str] = {}
        self._job: list[tuple[str, Any]] = []
        self._steps = StepRecorder(report.steps, report.late)
        self._operations = OperationSums(report)
        self._gpu = GpuOrder()

    def feed(self, events: list[Event]) -> None:
        """Walk on through ``events``."""
        self.report.events += len(events)
        for event in events:
            phase = event.get("ph")
            if phase == "M":
                self._metadata(event)
                continue
            ts = event.get("ts")
            if not isinstance(ts, int | float) or not math.isfinite(ts):
                self.report.odd_events += 1
                continue
            if self._origin is None:
                self._origin = 0.0 if self._starts_at_zero else ts
            ts -= self._origin
            if not self._gpu:
                self._advance(ts)
                self._event(phase, event)
                continue
            for known_ts, known in self._gpu.sorted(event, ts):
                self._advance(known_ts)
                self._event(known.get("ph"), known)

    def finish(self) -> None:
        """The file is over: close what it left open."""
        for ts, event in self._gpu.rest():
            self._advance(ts)
            self._event(event.get("ph"), event)
        self._operations.flush()
        now = self._now
        if now is not None and self._steps.repeats and not any(self._counts[:_IDLE]):
            self._steps.end(now)
        self._steps.drop()
        self._find_unanswered()
        self.report.ranks = max(self._ranks, max(self.report.late, default=-1) + 1)

    def _find_unanswered(self) -> None:
        for (pid, _), track in self._tracks.items():
            missing = set(range(min(self._ranks, 4096))) - {rank for _, rank in track.ticks}
            if (
                track.open
                and track.open[-1][0].startswith("NEGOTIATE_")
                and track.ticks
                and missing
            ):
                self.report.unanswered[self._names.get(pid, str(pid))] = sorted(missing)

    def _advance(self, ts: float) -> None:
        now = self._now
        if now is None:
            self._now = now = min(ts, 0.0)
        if ts < now:
            self.report.odd_events += 1
            return
        if ts == now:
            return
        phase = _IDLE
        for candidate, count in enumerate(self._counts):
            if count:
                phase = candidate
                break
        self.report.phase_us[phase] += ts - now
        self.report.duration_us += ts - now
        self._steps.phases[phase] += ts - now
        self._operations.time_passes(ts - now, self._job)
        self._now = ts

    def _event(self, phase: Any, event: Event) -> None:
        pid, name = event.get("pid", _JOB), event.get("name")
        if not isinstance(pid, int | str) or not isinstance(name, str | None):
            self.report.odd_events += 1
        elif pid == _JOB:
            self._job_event(phase, name or "", event)
        elif phase == "B" and name:
            track = self._track(pid, event)
            if is_put_on_gpu(event):
                track.put_on_gpu = True
            self._begin(track, pid, name)
        elif phase == "E":
            self._finish_span(self._track(pid, event), pid, event.get("args"))
        elif phase == "X" and name and name.isdecimal() and len(name) < 10:
            self._tick(self._track(pid, event), int(name))

    def _track(self, pid: Any, event: Event) -> Track:
        which = (pid, bool(self._gpu) and self._gpu.is_gpu(event))
        track = self._tracks.get(which)
        if track is None:
            name = _GENERATED.sub(r"\1.*\2", self._names.get(pid, str(pid)))
            track = self._tracks[which] = Track(self.report.tensors.setdefault(name, TensorSums()))
        return track

    def _begin(self, track: Track, pid: Any, name: str) -> None:
        now, before = self._now or 0.0, track.phase
        kind = track.begin(name, now)
        self._moved(before, track.phase)
        if kind == "negotiation":
            self._find_step(track, pid, now)
        elif kind == "operation":
            self.report.operations.add(name)
            if track.put_on_gpu:
                return  # counts where the GPU does it
            self._operations.begins_operation(now)
            if self.report.first_collective_us is None:
                self.report.first_collective_us = now
        else:
            self._operations.begins_activity(name, now, track.backends)

    def _find_step(self, track: Track, pid: Any, now: float) -> None:
        if self._steps.told or ".noname." in self._names.get(pid, ""):
            return
        if self._steps.number == 0 or track.step == self._steps.number:
            self._steps.begin_found(now)
        track.step = self._steps.number

    def _finish_span(self, track: Track, pid: Any, args: Any) -> None:
        before, closed = track.phase, track.end()
        if closed is None:
            # Horovod ends barriers and joins twice; anything else is damage.
            self.report.odd_events += 1
            return
        self._moved(before, track.phase)
        name, begin = closed
        now = self._now or 0.0
        if name.startswith("NEGOTIATE_"):
            track.sums.negotiation_us += now - begin
            self._find_late_rank(track)
        elif not track.open and track.put_on_gpu:
            track.put_on_gpu = False
        elif not track.open:
            track.sums.operation_us += now - begin
            self._operations.ends_operation(track.sums, args, track.backends)
        else:
            self._operations.ends_activity(name, now)

    def _tick(self, track: Track, rank: int) -> None:
        if not track.open or not track.open[-1][0].startswith("NEGOTIATE_"):
            self.report.odd_events += 1
            return
        before = track.phase
        track.tick(rank, self._now or 0.0, self._ranks)
        self._moved(before, track.phase)

    def _find_late_rank(self, track: Track) -> None:
        ticks = track.ticks
        if len(ticks) < 2:
            return
        rank, late_us = ticks[-1][1], ticks[-1][0] - ticks[(len(ticks) - 1) // 2][0]
        sums = self.report.late.setdefault(rank, RankSums())
        sums.negotiations += 1
        sums.worst_us = max(sums.worst_us, late_us)
        self._steps.is_late(rank, late_us)

    def _moved(self, before: int, after: int) -> None:
        self._counts[before] -= 1
        self._counts[after] += 1

    def _metadata(self, event: Event) -> None:
        pid, args = event.get("pid"), event.get("args")
        if not isinstance(pid, int | str) or not isinstance(args, dict):
            return
        # Where the file tells of its recording its clock starts with that, else perhaps at boot.
        self._starts_at_zero = self._starts_at_zero or pid == _JOB
        size, name = args.get("size"), args.get("name")
        if pid == _JOB and isinstance(size, int) and 0 < size < 10**7:
            self._ranks = size
        if event.get("name") == "process_name" and isinstance(name, str) and pid != _JOB:
            self._names[pid] = name
            self._tracks.pop((pid, False), None)
        if event.get("name") == "thread_name" and name == "GPU" and pid != _JOB:
            self._gpu.add_track(pid, event.get("tid"))

    def _job_event(self, phase: Any, name: str, event: Event) -> None:
        now, args = self._now or 0.0, event.get("args")
        tid = event.get("tid")
        if phase == "B":
            self._job.append((name, tid))
            if name == "STEP":
                self._steps.begin_told(now)
            elif name == "BACKWARD" and self.report.compute_overlap_us is None:
                self.report.compute_overlap_us = 0.0
        elif phase == "E":
            self._end_job_span(tid, args, now)
        elif phase == "i" and isinstance(args, dict) and name == "PARAMETERS":
            self.report.parameters.append({"ts_us": now, **args})
        elif phase == "i" and isinstance(args, dict) and name == "DROPPED_EVENTS":
            count = args.get("count")
            self.report.dropped += count if isinstance(count, int) else 0

    def _end_job_span(self, tid: Any, args: Any, now: float) -> None:
        for at in range(len(self._job) - 1, -1, -1):
            if self._job[at][1] == tid:
                name = self._job.pop(at)[0]
                break
        else:
            self.report.odd_events += 1
            return
        if name == "INIT":
            self.report.init_us = now
        elif name == "STEP" and isinstance(args, dict) and args.get("cut"):
            self._steps.drop()
        elif name == "STEP":
            self._steps.end(now)
