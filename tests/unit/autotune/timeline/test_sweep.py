"""What the phases, steps, ranks and operations of a timeline sum to."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.timeline import analyse
from autotune.timeline.findings import duration, findings, size
from autotune.timeline.phases import Phase, activity_phase
from unit.autotune.timeline.conftest import HOROVOD, Recorder

TIME = st.integers(0, 5000)


def test_each_moment_belongs_to_the_phase_it_is_in(recorder, read) -> None:
    recorder.wait(100)
    recorder.operation(["a", "b"], [(0, 5), (1, 50)], [7, 11, 13, 17])
    report = read(recorder.events)
    expected = {
        Phase.IDLE: 100,
        Phase.LAST_RANK: 50,
        Phase.NEGOTIATION: 5,
        Phase.PROTOCOL: 7,
        Phase.QUEUE: 11,
        Phase.COPIES: 13,
        Phase.TRANSFER: 17,
        Phase.DATA: 0,
    }
    assert {phase: report.phase_us[phase] for phase in Phase} == expected
    assert report.first_collective_us == 162
    assert report.negotiation_us == 62


def test_the_last_rank_is_named_with_how_late_it_was(recorder, read) -> None:
    for _ in range(10):
        recorder.operation(["a"], [(0, 0), (1, 50_000)], [1, 1, 1, 1])
    report = read(recorder.events)
    assert set(report.late) == {1}
    assert report.late[1].steps == 10
    assert report.late[1].late_us == 500_000
    assert report.late[1].worst_us == 50_000


def test_operations_are_what_moved_together(recorder, read) -> None:
    recorder.operation(["a", "b", "c"], [(0, 0), (1, 1)], [1, 1, 1, 10])
    recorder.operation(["d"], [(0, 0), (1, 1)], [1, 1, 1, 30])
    report = read(recorder.events)
    assert (report.fused.operations, report.fused.tensors) == (2, 4)
    assert report.backends["MPI"].transfer_us == 40
    assert report.backends["MPI"].payload_bytes == 4 * 1000
    assert report.tensors["b"].payload_bytes == 1000


def test_a_hierarchical_operation_is_one_that_moves_several_times(recorder, read) -> None:
    pids = [recorder.pid(tensor) for tensor in "ab"]
    for pid in pids:
        recorder.add("B", pid, name="ALLREDUCE")
    for name in ("SHM_REDUCESCATTER", "MPI_ALLREDUCE", "SHM_ALLGATHER"):
        for pid in pids:
            recorder.add("B", pid, name=name)
        recorder.wait(10)
        for pid in pids:
            recorder.add("E", pid)
    for pid in pids:
        recorder.add("E", pid, args={"dtype": "float32", "shape": "[5]"})
    report = read(recorder.events)
    assert (report.fused.operations, report.fused.tensors) == (1, 2)
    assert report.backends["SHM"].payload_bytes == report.backends["MPI"].payload_bytes == 40
    assert report.backends["SHM"].transfer_us == 20


def test_unnamed_operations_are_one_row(recorder, read) -> None:
    for handle in range(5):
        recorder.operation([f"allreduce.noname.{handle}"], [(0, 0), (1, 1)], [1, 1, 1, 1])
    assert list(read(recorder.events).tensors) == ["allreduce.noname.*"]


def test_steps_are_taken_from_step_events_and_an_open_one_is_left_out(recorder, read) -> None:
    recorder.add("B", 0, tid=1, name="STEP")
    for step in range(3):
        recorder.add("B", 0, tid=2, name="BACKWARD")
        recorder.wait(20)
        recorder.operation(["a"], [(0, 0), (1, 10)], [0, 0, 0, 40])
        recorder.add("E", 0, tid=2, name="BACKWARD")
        recorder.add("E", 0, tid=1, args={"step": step})
        recorder.add("B", 0, tid=1, name="STEP")
    recorder.add("E", 0, tid=1, args={"cut": True})
    report = read(recorder.events)
    assert report.steps.source == "STEP events"
    assert list(report.steps.duration_us) == [70, 70, 70]
    assert report.compute_overlap_us == report.operation_union_us == 120


def test_what_never_comes_again_is_no_step(recorder, read) -> None:
    recorder.operation(["a", "b"], [(0, 0), (1, 10)], [0, 0, 0, 40])
    report = read(recorder.events)
    assert len(report.steps) == 0
    recorder.operation(["a", "b"], [(0, 0), (1, 10)], [0, 0, 0, 40])
    assert list(read(recorder.events).steps.duration_us) == [50, 50]


def test_advice_on_settings_is_for_what_training_does(recorder, read) -> None:
    recorder.operation(["a"], [(0, 0), (1, 1)], [500, 1, 1, 10])
    advice = [f.advice for f in findings(read(recorder.events)) if f.key == "negotiation"]
    assert "shorter cycle time" in advice[0]


def test_horovods_file_has_horovods_figures() -> None:
    report = analyse(str(HOROVOD))
    assert report.ranks == 2
    assert report.backends.keys() == {"MPI"}
    assert report.fused.tensors == 24
    assert report.compute_overlap_us is None
    assert report.steps.source == "repetition of tensor names"
    assert sum(report.phase_us) == report.duration_us == 25088


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("INIT_FUSION_BUFFER", Phase.COPIES),
        ("NCCL_ALLREDUCE", Phase.TRANSFER),
        ("MPI_CROSS_ALLGATHER", Phase.TRANSFER),
        ("SHM_ALLREDUCE", Phase.TRANSFER),
        ("COPY_ALLGATHER_OUTPUT", Phase.COPIES),
        ("WAIT_FOR_OTHER_TENSOR_DATA", Phase.DATA),
        ("SOMETHING_NEW", Phase.QUEUE),
    ],
)
def test_activities_are_what_their_names_say(name: str, phase: Phase) -> None:
    assert activity_phase(name) == phase


@st.composite
def jobs(draw) -> Recorder:
    """Any sequence that the engine can write: operations one after the other, in steps or not."""
    recorder = Recorder(ranks=draw(st.integers(1, 4)))
    size = recorder.events[0]["args"]["size"]
    told = draw(st.booleans())
    for step in range(draw(st.integers(1, 4))):
        if told:
            recorder.add("B", 0, tid=1, name="STEP")
        for _ in range(draw(st.integers(1, 3))):
            tensors = draw(st.sets(st.sampled_from("abcd"), min_size=1).map(sorted))
            ranks = draw(st.permutations(range(size)))
            recorder.wait(draw(TIME))
            ticks = [(rank, draw(TIME)) for rank in ranks]
            recorder.operation(tensors, ticks, draw(st.lists(TIME, min_size=4, max_size=4)))
        if told:
            recorder.add("E", 0, tid=1, args={"step": step})
    return recorder


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(recorder=jobs())
def test_phases_sum_to_the_total_for_whatever_the_engine_writes(read, recorder) -> None:
    report = read(recorder.events)
    assert sum(report.phase_us) == report.duration_us == recorder.now
    assert report.odd_events == 0
    assert report.communication_us == report.duration_us - report.phase_us[Phase.IDLE]
    for row, time in enumerate(report.steps.duration_us):
        assert sum(column[row] for column in report.steps.phases) == pytest.approx(time)
    assert report.operation_union_us <= report.communication_us
    json.dumps(report.as_dict())


def test_rates_and_sizes_are_plain_numbers(recorder, read) -> None:
    recorder.operation(["a"], [(0, 0), (1, 0)], [0, 0, 0, 0.25])
    texts = [str(finding) for finding in findings(read(recorder.events))]
    assert any("4000 bytes/us" in text for text in texts)
    assert not any("e+" in text for text in texts)
    assert size(2000 * 2**30) == "2000 GiB" and duration(999.9e3) == "1000 ms"
