"""Timelines of real ranks: which events, in which structure, and where they go."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import horovod.torch as hvd
from tiers.between_ranks import barrier

Event = dict[str, Any]
HOST = (0, 0)
"""All tracks but those of GPUs are written in the order of their times."""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all ranks share."""
    mine = str(tmp_path_factory.mktemp("timeline"))
    return Path(hvd.broadcast_object(mine, 0))


def check_structure(events: list[Event]) -> None:
    """Perfetto wants: pid and tid, times that never go back, ends that match begins per track.

    What a GPU did (the second track of a tensor) is written when it has done it.
    """
    depth: Counter[tuple[int, int]] = Counter()
    last: Counter[tuple[int, int]] = Counter()
    for event in events:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "M":
            continue
        track = (event["pid"], event["tid"])
        clock = track if event["pid"] > 0 and event["tid"] == 1 else HOST
        assert event["ts"] >= last[clock]
        last[clock] = event["ts"]
        depth[track] += {"B": 1, "E": -1}.get(event["ph"], 0)
        assert depth[track] >= 0
    assert not any(depth.values())


def load(path: Path) -> list[Event]:
    events: list[Event] = json.loads(path.read_text())
    check_structure(events)
    return events


def named(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event.get("name") == name]


def test_a_job_without_collectives_leaves_an_empty_list(
    restart: Callable[..., None], folder: Path
) -> None:
    restart({"HOROVOD_TIMELINE": str(folder / "t.json")})
    hvd.shutdown()
    if (folder / "t.json").exists():  # rank 0's temporary folder
        assert json.loads((folder / "t.json").read_text()) == []
    hvd.init()


def test_every_negotiation_has_a_tick_per_rank_cached_or_not(
    restart: Callable[..., None], folder: Path, rank: int, size: int
) -> None:
    restart({"HOROVOD_TIMELINE": str(folder / "t.json"), "HOROVOD_TIMELINE_MARK_CYCLES": "1"})
    for _ in range(5):
        hvd.allreduce(torch.ones(2, 3), name='odd "name"\n')
    hvd.allgather(torch.ones(2), name="gathered")
    hvd.broadcast(torch.ones(2), 0, name="sent")
    hvd.shutdown()
    if rank == 0:
        events = load(folder / "t.json")
        assert len(named(events, "NEGOTIATE_ALLREDUCE")) == len(named(events, "ALLREDUCE")) == 5
        for r in range(size):
            assert len([e for e in named(events, str(r)) if e["ph"] == "X"]) == 7
        ends = [e for e in events if e["ph"] == "E" and e.get("args", {}).get("shape") == "[2, 3]"]
        assert [e["args"]["dtype"] for e in ends] == ["float32"] * 5
        backend = "SELF" if size == 1 else "SHM"
        assert len(named(events, f"{backend}_ALLREDUCE")) == 5
        assert named(events, "CYCLE_START") and named(events, "INIT")
        names = {e["args"].get("name") for e in named(events, "process_name")}
        assert 'allreduce.odd "name"\n' in names
    hvd.init()


def test_files_of_all_ranks_are_on_one_clock(
    restart: Callable[..., None], folder: Path, rank: int, size: int
) -> None:
    restart({"HOROVOD_TIMELINE": str(folder / "{rank}.json")})
    hvd.allreduce(torch.ones(2), name="x")
    hvd.shutdown()
    barrier()
    if rank == 0:
        files = [load(folder / f"{r}.json") for r in range(size)]
        facts = [events[0]["args"] for events in files]
        assert [fact["rank"] for fact in facts] == list(range(size))
        assert len({fact["start_time_since_epoch_in_micros"] for fact in facts}) == 1
        # One machine: all steady clocks are the same one.
        for fact in facts:
            assert abs(fact["clock_offset_ns"]) <= fact["clock_offset_error_ns"] + 1000
    barrier()
    hvd.init()


def test_recording_starts_and_stops_while_the_job_runs(folder: Path, rank: int) -> None:
    hvd.stop_timeline()
    for part in range(5):
        hvd.start_timeline(str(folder / f"{part}.json"), mark_cycles=part % 2 == 0)
        hvd.start_timeline(str(folder / f"{part}.json"))
        hvd.allreduce(torch.ones(2), name=f"x{part}")
        hvd.stop_timeline()
        if rank == 0:
            text = (folder / f"{part}.json").read_text()
            check_structure(json.loads(text))
            assert "start_time_since_epoch_in_micros" in text and f"x{part}" in text
    hvd.stop_timeline()


def test_a_bad_path_is_an_error_line_and_training_goes_on(
    caplog: pytest.LogCaptureFixture, rank: int
) -> None:
    hvd.start_timeline("/no/such/folder/t.json")
    assert torch.equal(hvd.allreduce(torch.ones(2)), torch.ones(2))
    assert ("/no/such/folder/t.json" in caplog.text) == (rank == 0)


def test_steps_and_backward_passes_are_spans(folder: Path, rank: int, size: int) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    hvd.start_timeline(str(folder / "t.json"))
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    hvd.stop_timeline()
    if rank == 0 and size > 1:
        events = load(folder / "t.json")
        steps = [e["args"]["step"] for e in events if "step" in e.get("args", {})]
        assert len(steps) == 6 and steps == sorted(steps)
        assert len(named(events, "BACKWARD")) == 6
        sizes = [e["args"]["bytes"] for e in events if "step" in e.get("args", {})]
        assert sizes[1:] == [80] * 5  # before the first, the folder was announced
