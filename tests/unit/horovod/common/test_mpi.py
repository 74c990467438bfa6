"""Decisions around MPI that need no MPI: thread level, libraries, and how a process leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from horovod.common import mpi


class FakeComm:
    """A communicator whose other ranks come (or do not) to the barrier."""

    def __init__(self, together: bool) -> None:
        self.together = together

    def Ibarrier(self) -> Any:
        return SimpleNamespace(Test=lambda: self.together)

    def Dup(self) -> FakeComm:
        return self


class FakeMPI:
    Exception = RuntimeError
    THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)

    def __init__(self, level: int = 3, finalized: bool = False) -> None:
        self.Query_thread = lambda: level
        self.Is_finalized = lambda: finalized
        self.events: list[str] = []
        self.Finalize = lambda: self.events.append("finalize")

    def end(self, comm: FakeComm | None, ours: bool = True, **how: bool) -> list[str]:
        """End the world of ``comm``, which has had a job; None: it never got one."""
        world = mpi.MpiWorld(self, comm or FakeComm(True), ours=ours)  # type: ignore[arg-type]
        if comm is not None:
            world.subset(None)
        how = {"failed": False, "raised": False} | how
        world.end(leave=lambda code: self.events.append(f"leave {code}"), **how)  # type: ignore[arg-type]
        return self.events


def test_a_thread_level_below_serialized_works_for_one_rank_only() -> None:
    assert mpi.thread_error(FakeMPI(level=3), 8) is None
    assert mpi.thread_error(FakeMPI(level=2), 8) is None
    assert mpi.thread_error(FakeMPI(level=1), 1) is None
    assert "THREAD_FUNNELED" in (mpi.thread_error(FakeMPI(level=1), 2) or "")


def test_a_job_that_ended_well_ends_mpi() -> None:
    assert FakeMPI().end(FakeComm(True)) == ["finalize"]


def test_mpi_that_the_script_started_is_left_to_it() -> None:
    assert FakeMPI().end(FakeComm(True), ours=False) == []


def test_after_a_fatal_error_mpi_is_ended_only_where_all_ranks_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(mpi.time, "monotonic", lambda: next(clock))
    assert FakeMPI().end(FakeComm(True), failed=True) == ["finalize"]
    assert FakeMPI().end(FakeComm(False), failed=True) == []
    assert FakeMPI().end(FakeComm(True), failed=True, raised=True) == []
    assert FakeMPI().end(FakeComm(True), failed=True, ours=False) == ["leave 1"]


def test_mpi_is_not_ended_while_it_has_messages_to_deliver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi._engine, "messages_were_left_behind", lambda: True)
    assert FakeMPI().end(FakeComm(True), failed=True) == []
    assert FakeMPI().end(FakeComm(True)) == ["finalize"]  # a later job has ended well


def test_a_process_that_raised_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(mpi.time, "monotonic", lambda: next(clock))
    assert FakeMPI().end(FakeComm(False), raised=True) == []
    assert FakeMPI().end(FakeComm(False), raised=True, ours=False) == ["leave 1"]
    assert FakeMPI().end(FakeComm(True), raised=True) == ["finalize"]


def test_mpi_is_ended_once_and_also_without_a_job() -> None:
    assert FakeMPI(finalized=True).end(FakeComm(True)) == []
    assert FakeMPI().end(None) == ["finalize"]
