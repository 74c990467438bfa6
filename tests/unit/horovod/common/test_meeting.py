"""Ranks meet and exchange values; strangers change nothing; who leaves or lacks is named."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.common import point as points
from horovod.common import tcp_world
from horovod.common.meeting import MeetingPoint
from horovod.common.tcp_world import MeetingError, TcpWorld, decode, encode, meet

KEY = "the key of this job"
LIMIT_S = 30.0


@contextlib.contextmanager
def point(size: int, host: str = "127.0.0.1") -> Iterator[MeetingPoint]:
    there = MeetingPoint(size, KEY, host=host)
    try:
        yield there
    finally:
        there.close()


def on_ranks(size: int, call: Callable[[TcpWorld], Any]) -> list[Any]:
    """Return what ``call`` gives on each of ``size`` ranks, which are threads."""

    def rank(number: int, port: int) -> Any:
        world = meet(number, size, "127.0.0.1", port, KEY, LIMIT_S)
        try:
            return call(world)
        finally:
            world.close()

    with point(size) as there, ThreadPoolExecutor(size) as threads:
        ranks = [threads.submit(rank, number, there.port) for number in range(size)]
        return [each.result(LIMIT_S) for each in ranks]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.tuples(st.integers()), inner)
        | st.frozensets(st.integers() | st.text())
    ),
)


@given(VALUES)
@settings(max_examples=30, deadline=None)
def test_values_arrive_as_they_were(value: Any) -> None:
    received = bytearray(points.frame(encode([value])) + b"x")
    arrived = decode(points.take_frame(received))
    assert arrived == [value] and type(arrived[0]) is type(value)
    assert received == b"x"


def test_what_is_no_plain_value_is_refused() -> None:
    with pytest.raises(TypeError, match="plain values: got object"):
        encode([object()])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_rank_gets_every_ranks_value(size: int) -> None:
    def call(world: TcpWorld) -> Any:
        gathered = world.allgather({"rank": world.rank, "bytes": b"\0" * world.rank})
        return gathered, world.bcast(os.urandom(8) if world.rank == size - 1 else None, size - 1)

    answers = on_ranks(size, call)
    assert answers[0][0] == [{"rank": rank, "bytes": b"\0" * rank} for rank in range(size)]
    assert answers == [answers[0]] * size


def test_long_values_arrive_whole() -> None:
    assert on_ranks(3, lambda world: len(world.allgather("x" * 3_000_000)[2])) == [3_000_000] * 3


def test_subsets_exchange_among_themselves_at_their_own_pace() -> None:
    def call(world: TcpWorld) -> Any:
        if world.rank == 1:
            return world.allgather("late")
        pair = world.subset([2, 0])
        inner = [pair.allgather((pair.rank, world.rank)) for _ in range(3)]
        return [*world.allgather("x"), inner[-1]]

    answers = on_ranks(3, call)
    assert answers[0] == ["x", "late", "x", [(0, 2), (1, 0)]]
    assert answers[1] == ["x", "late", "x"]


def test_waiting_ends_in_time_and_later_exchanges_are_not_mixed_up() -> None:
    late = threading.Event()

    def call(world: TcpWorld) -> Any:
        if world.rank == 1:
            assert late.wait(LIMIT_S)
        came = world.wait(0.05 if world.rank == 0 else LIMIT_S)
        late.set()
        return came, world.allgather(world.rank)

    assert on_ranks(2, call) == [(False, [0, 1]), (True, [0, 1])]


def test_ranks_may_come_before_the_point() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with ThreadPoolExecutor(1) as threads:
        early = threads.submit(meet, 0, 1, "127.0.0.1", port, KEY, LIMIT_S)
        time.sleep(3 * tcp_world.RETRY_SECONDS)
        there = MeetingPoint(1, KEY, host="127.0.0.1", port=port)
        early.result(LIMIT_S).close()
        there.close()


def test_a_taken_port_is_an_error() -> None:
    with point(1) as there, pytest.raises(OSError, match="in use"):
        MeetingPoint(1, KEY, host="127.0.0.1", port=there.port)


def test_ranks_that_do_not_come_are_named() -> None:
    with point(4) as there, ThreadPoolExecutor(2) as threads:
        here = [threads.submit(meet, rank, 4, "127.0.0.1", there.port, KEY, 1.0) for rank in (0, 2)]
        for each in here:
            with pytest.raises(MeetingError, match=r"2 of 4 ranks have not come \(rank 1, 3\)"):
                each.result(LIMIT_S)


def test_who_waits_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_world, "SAY_SECONDS", 0.05)
    said: list[str] = []
    with point(2) as there, pytest.raises(MeetingError):
        meet(1, 2, "127.0.0.1", there.port, KEY, 0.5, said.append)
    assert "1 of 2 ranks have not come (rank 0)" in said[0]
    said.clear()
    with pytest.raises(MeetingError, match=r"after 0\.5 s .* cannot be reached"):
        meet(1, 2, "127.0.0.1", there.port, KEY, 0.5, said.append)
    assert "cannot be reached yet" in said[0]


@pytest.mark.parametrize(
    ("rank", "size", "key", "words"),
    [
        (0, 2, KEY, "two processes say that they are rank 0 of 2"),
        (1, 4, KEY, "rank 1 says that the job has 4 ranks, expected 2"),
        (2, 2, KEY, "rank 2: expected one from 0 to 1"),
        (1, 2, "another key", "does not have this job's key: HOROVOD_SECRET_KEY"),
    ],
)
def test_who_does_not_belong_here_is_told_and_changes_nothing(
    rank: int, size: int, key: str, words: str
) -> None:
    with point(2) as there, ThreadPoolExecutor(1) as threads:
        first = threads.submit(meet, 0, 2, "127.0.0.1", there.port, KEY, LIMIT_S)
        wait_until(lambda: 0 in there._guests)
        with pytest.raises(MeetingError, match=words):
            meet(rank, size, "127.0.0.1", there.port, key, LIMIT_S)
        second = meet(1, 2, "127.0.0.1", there.port, KEY, LIMIT_S)
        first.result(LIMIT_S).close()
        second.close()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_strangers_hold_up_nobody_and_are_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "HANDSHAKE_SECONDS", 1.0)
    with point(2) as there, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", there.port)
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(20)]
        rude = stack.enter_context(socket.create_connection(address))
        rude.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"y" * 1000)
        with ThreadPoolExecutor(2) as threads:
            ranks = [threads.submit(meet, r, 2, *address, KEY, LIMIT_S) for r in (0, 1)]
            worlds = [each.result(LIMIT_S) for each in ranks]
        for stranger in (*silent, rude):
            stranger.settimeout(LIMIT_S)
            told = b""
            with contextlib.suppress(ConnectionResetError):
                while data := stranger.recv(1 << 16):
                    told += data
            assert len(told) <= points.CHALLENGE_BYTES
        for world in worlds:
            world.close()


def test_a_rank_that_leaves_is_named_to_those_that_count_on_it() -> None:
    def call(world: TcpWorld) -> Any:
        if world.rank == 1:
            world.close()
            return None
        with pytest.raises(MeetingError, match="rank 1 has left the job"):
            world.allgather(0)
        assert world.wait(LIMIT_S) is False
        return world.subset([0, 2]).allgather(world.rank)

    assert on_ranks(3, call) == [[0, 2], None, [0, 2]]


def test_a_meeting_that_is_off_is_told_to_all_whenever_they_come() -> None:
    with point(3) as there, ThreadPoolExecutor(1) as threads:
        early = threads.submit(meet, 0, 3, "127.0.0.1", there.port, KEY, LIMIT_S)
        wait_until(lambda: 0 in there._guests)
        there.refuse_all("rank 2 is gone")
        with pytest.raises(MeetingError, match="rank 2 is gone"):
            early.result(LIMIT_S)
        with pytest.raises(MeetingError, match="rank 2 is gone"):
            meet(1, 3, "127.0.0.1", there.port, KEY, LIMIT_S)


def test_the_end_of_the_point_is_an_error() -> None:
    with point(1) as there:
        world = meet(0, 1, "127.0.0.1", there.port, KEY, LIMIT_S)
    with pytest.raises(MeetingError, match="meeting point"):
        world.allgather(0)
    world.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_point_of_all_addresses_is_reached_by_both_families(host: str) -> None:
    with point(1, host="") as there:
        meet(0, 1, host, there.port, KEY, LIMIT_S).close()
