"""Choices for NCCL under DistributedDataParallel: all ranks take one, or none does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.formats import render
from autotune.ddp.nccl import Switch, is_worth_it, settle_start
from autotune.nccl.start import VARIABLES, versions_of
from autotune.result import Result
from autotune.tables.ddp import DdpParams

VALUES = {"nccl_algorithm": 1, "nccl_channels": 8}


class Library:
    """Stands for the tuner's library of one rank: it says how far its communicators have come."""

    def __init__(self, number: int, *, patience_ends: bool = False) -> None:
        self.number = number
        self.patience_ends = patience_ends
        self.released: list[Mapping[str, Any] | None] = []
        self.is_held = False

    def hold(self, ranks: int) -> int:
        self.is_held = True
        return self.number

    def release(self, values: Mapping[str, Any] | None) -> bool:
        self.is_held = False
        self.released.append(values)
        return not self.patience_ends


class Sums:
    """Sums over ranks that are threads."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._rows: list[list[int]] = []

    def begin(self, numbers: list[int]) -> Sums:
        assert all(-(2**63) <= one * len(self._rows or [0]) < 2**63 for one in numbers)
        self._rows.append(numbers)
        return self

    def wait(self, seconds: float) -> Sequence[int]:
        self._barrier.wait(10)
        return [sum(column) for column in zip(*self._rows, strict=True)]


def made(libraries: list[Library], begin: Callable[..., Any] | None = None) -> list[Any]:
    """Return what ``make`` says on every rank, or raises."""
    sums, found = Sums(len(libraries)), [None] * len(libraries)

    def one(rank: int) -> None:
        switch = Switch(libraries[rank], begin or sums.begin, size=len(libraries))  # type: ignore[arg-type]
        try:
            found[rank] = switch.make(VALUES)  # type: ignore[call-overload]
        except Exception as error:
            found[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(libraries))]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    return found


@pytest.mark.parametrize("size", [2, 3, 8])
def test_all_take_the_choice_where_all_have_come_as_far(size: int) -> None:
    libraries = [Library(0xFEDCBA9876543210) for _ in range(size)]
    assert made(libraries) == [""] * size
    assert all(one.released == [VALUES] for one in libraries)


@pytest.mark.parametrize("bit", range(0, 63, 3))
def test_none_takes_it_where_one_has_come_elsewhere(bit: int) -> None:
    libraries = [Library(2**63 - 1), Library(2**63 - 1), Library((2**63 - 1) ^ (1 << bit))]
    assert made(libraries) == ["the ranks' communicators have not come as far"] * 3
    assert all(one.released == [None] and not one.is_held for one in libraries)


def test_none_takes_it_where_one_has_no_tuner() -> None:
    libraries = [Library(7), Library(0)]
    assert made(libraries) == ["NCCL has loaded the tuner on 1 of 2 ranks only"] * 2
    assert all(one.released == [None] for one in libraries)


def test_what_is_held_goes_on_as_before_where_the_others_are_not_heard() -> None:
    def begin(numbers: list[int]) -> Any:
        raise TimeoutError("nobody")

    library = Library(7)
    (found,) = made([library], begin)
    assert isinstance(found, TimeoutError)
    assert library.released == [None] and not library.is_held


def test_an_operation_that_has_waited_too_long_is_an_error() -> None:
    (found,) = made([Library(7, patience_ends=True)])
    assert isinstance(found, RuntimeError) and "too long" in str(found)


def test_it_is_explored_where_every_rank_can_and_some_link_is_slow() -> None:
    assert is_worth_it(["sockets", "sockets"]) and is_worth_it(["nvlink", "network"])
    for links in (["sockets", ""], ["nvlink", "nvlink"], ["none", "none"], ["", ""]):
        assert not is_worth_it(links)


class Groups:
    """``torch.distributed.distributed_c10d`` in a job of one rank, as far as it is asked."""

    def __init__(self) -> None:
        self.store: dict[str, str] = {}

    def get_backend(self) -> str:
        return "nccl"

    def get_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return 1

    def set(self, key: str, text: str) -> None:
        self.store[key] = text

    def wait(self, keys: list[str], limit: object) -> None:
        assert set(keys) <= set(self.store)

    def get(self, key: str) -> str:
        return self.store[key]


def test_a_job_that_replays_starts_nccl_as_the_log_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    start = {"NCCL_BUFFSIZE": "1048576", "NCCL_MIN_NCHANNELS": "8"}
    path = tmp_path / "best.json"
    job = {"versions": versions_of(start)}
    path.write_text(render(Result(params=DdpParams(), job=job), "json"))
    monkeypatch.setenv("HOROVOD_AUTOTUNE_REPLAY", str(path))
    monkeypatch.setenv("NCCL_MIN_NCHANNELS", "2")
    job = Groups()
    assert "as replayed: NCCL_BUFFSIZE=1048576" in settle_start(job, {}, lambda: job)
    found = {name: os.environ[name] for name in VARIABLES if os.environ[name]}
    assert found == {"NCCL_BUFFSIZE": "1048576", "NCCL_MIN_NCHANNELS": "2"}
