"""Timelines of jobs whose tensors are on GPUs: the GPU's events come late in the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.timeline import TimelineReport, gpu_order
from autotune.timeline.phases import Phase

Event = dict[str, Any]
Read = Callable[..., TimelineReport]

BYTES = 4 * 250
HEAD: list[Event] = [
    {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"size": 2}},
    {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "x"}},
    {"name": "thread_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "host"}},
    {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "GPU"}},
]


def event(ph: str, ts: float, tid: int, name: str | None = None, **more: Any) -> Event:
    named = {} if name is None else {"name": name}
    return {"ph": ph, "ts": ts, "pid": 1, "tid": tid, **named, **more}


def enqueued(begin: float) -> list[Event]:
    """Negotiated from ``begin`` to 10 us later, then put into the GPU's stream in 2 us."""
    return [
        event("B", begin, 0, "NEGOTIATE_ALLREDUCE"),
        event("X", begin, 0, "0", dur=0),
        event("X", begin + 10, 0, "1", dur=0),
        event("E", begin + 10, 0),
        event("B", begin + 10, 0, "ALLREDUCE", args={"device": "GPU"}),
        event("E", begin + 12, 0, args={"dtype": "float32", "shape": "[250]"}),
    ]


def on_gpu(*parts: tuple[str, float, float]) -> list[Event]:
    events = [event("B", parts[0][1], 1, "ALLREDUCE")]
    for name, begin, end in parts:
        events += [event("B", begin, 1, name), event("E", end, 1)]
    args = {"dtype": "float32", "shape": "[250]"}
    return [*events, event("E", parts[-1][2], 1, args=args)]


FIRST = on_gpu(
    ("QUEUE", 11, 13),
    ("WAIT_FOR_DATA", 13, 20),
    ("MEMCPY_IN_FUSION_BUFFER", 20, 22),
    ("NCCL_ALLREDUCE", 22, 40),
    ("MEMCPY_OUT_FUSION_BUFFER", 40, 41),
)
SECOND = on_gpu(("QUEUE", 41, 41), ("NCCL_ALLREDUCE", 41, 60))
"""The host has run ahead: it was negotiated from 20 on."""


@pytest.fixture
def report(read: Read) -> TimelineReport:
    return read(HEAD + enqueued(0) + enqueued(20) + FIRST + SECOND)


def test_every_moment_counts_as_what_the_gpu_does_then(report):
    phases = {phase: report.phase_us[phase] for phase in Phase if report.phase_us[phase]}
    assert phases == {
        Phase.LAST_RANK: 10,
        Phase.QUEUE: 1 + 2,  # on the host, then in the GPU's stream
        Phase.DATA: 7,
        Phase.COPIES: 2 + 1,
        Phase.TRANSFER: 18 + 19,
    }
    assert report.duration_us == 60
    assert report.odd_events == 0


def test_an_operation_counts_once(report):
    tensor, nccl = report.tensors["x"], report.backends["NCCL"]
    assert (tensor.count, tensor.payload_bytes, tensor.operation_us) == (2, 2 * BYTES, 30 + 19)
    assert (nccl.operations, nccl.tensors, nccl.transfer_us) == (2, 2, 18 + 19)
    assert nccl.payload_bytes == report.fused.payload_bytes == 2 * BYTES
    assert report.fused.operations == 2
    assert report.operation_union_us == 30 + 19
    assert report.late[1].negotiations == 2


def test_it_does_not_matter_how_late_the_gpus_events_are_written(read):
    third = on_gpu(("QUEUE", 61, 61), ("NCCL_ALLREDUCE", 61, 70))
    begin = HEAD + enqueued(0) + enqueued(20)
    soon = read(begin + FIRST + enqueued(50) + SECOND + third).as_dict()
    assert soon == read(begin + enqueued(50) + FIRST + SECOND + third).as_dict()
    assert soon["odd_events"] == 0
    assert soon["backends"]["NCCL"]["transfer_us"] == 18 + 19 + 9


def test_steps_that_the_script_ends_before_the_gpu(read):
    def step(begin: float, end: float) -> list[Event]:
        job = {"pid": 0, "tid": 1}
        return [
            {"ph": "B", "ts": begin, "name": "STEP", **job},
            *enqueued(begin),
            {"ph": "E", "ts": end, "args": {"step": 0, "bytes": BYTES}, **job},
        ]

    steps = read(HEAD + step(0, 20) + step(20, 60) + FIRST + SECOND).steps
    assert list(steps.duration_us) == [20, 40]
    assert list(steps.phases[Phase.TRANSFER]) == [0, 18 + 19]
    assert list(steps.phases[Phase.DATA]) == [7, 0]


def test_a_file_that_was_cut_before_the_gpus_events(read):
    report = read(HEAD + enqueued(0) + enqueued(20) + FIRST)
    assert report.tensors["x"].count == 1
    assert report.odd_events == 0
    assert report.phase_us[Phase.TRANSFER] == 18


def test_dropped_events_end_the_waiting_for_them(read):
    dropped = {"ph": "i", "ts": 41, "pid": 0, "tid": 0, "s": "g", "name": "DROPPED_EVENTS"}
    more = [{**each, "ts": each["ts"] + 60} for each in enqueued(0) + FIRST]
    events = HEAD + enqueued(0) + [{**dropped, "args": {"count": 9}}] + more
    report = read(events)
    assert report.dropped == 9
    assert report.tensors["x"].count == 1
    assert report.phase_us[Phase.TRANSFER] == 18
    assert report.odd_events == 0


def test_what_never_comes_is_not_waited_for_without_end(read, monkeypatch):
    monkeypatch.setattr(gpu_order, "MOST_WAITING", 50)
    order = gpu_order.GpuOrder()
    order.add_track(1, 1)
    most = waiting = 0
    for at in range(0, 10_000, 20):
        for each in enqueued(at):
            waiting += 1 - len(list(order.sorted(each, each["ts"])))
            most = max(most, waiting)
    assert 40 < most <= 51


def test_tensors_of_the_cpu_beside_those_of_a_gpu(read, recorder):
    recorder.pids["cpu"] = 2
    recorder.wait(100)
    recorder.operation(["cpu"], [(0, 0), (1, 5)], [0, 1, 1, 10])
    report = read(HEAD + enqueued(0) + FIRST + recorder.events)
    assert report.odd_events == 0
    assert report.backends["MPI"].operations == report.backends["NCCL"].operations == 1
    assert report.phase_us[Phase.TRANSFER] == 18 + 10
