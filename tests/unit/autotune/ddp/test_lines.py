"""Lines find rank 0 and nobody else, say when the other end is gone, and never wait unasked."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from autotune.ddp.lines import Invitation, Line, Listener, connect, own_addresses

HOST = "here"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what it is given in the end."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def listener(stack: ExitStack) -> Listener:
    return stack.enter_context(closing(Listener(HOST)))


@pytest.fixture
def accept(listener: Listener, stack: ExitStack) -> Callable[..., Callable[[], Any]]:
    """Accept in a thread; what is returned waits for the lines, or the error."""

    def begin(size: int, seconds: float = 10.0) -> Callable[[], Any]:
        found: list[Any] = []

        def run() -> None:
            try:
                found.append(listener.accept(size, seconds))
                for line in found[0].values():
                    stack.callback(line.close)
            except Exception as error:
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def wait() -> Any:
            thread.join(20)
            return found[0]

        stack.callback(wait)
        return wait

    return begin


@pytest.fixture
def reach(listener: Listener, stack: ExitStack) -> Callable[..., Line]:
    """Connect as a rank."""

    def as_rank(rank: int, invitation: Invitation | None = None, host: str = HOST) -> Line:
        line = connect(invitation or listener.invitation, rank, host)
        stack.callback(line.close)
        return line

    return as_rank


def elsewhere(invitation: Invitation, *addresses: str) -> Invitation:
    return dataclasses.replace(invitation, addresses=addresses)


def test_numbers_arrive_whole_and_in_order_and_nothing_is_waited_for(accept, reach) -> None:
    wait = accept(3)
    ends = {rank: reach(rank) for rank in (2, 1)}
    lines = wait()
    assert sorted(lines) == [1, 2]
    assert lines[1].receive() is None
    ends[1].send([1, -(2**40)])
    ends[1].send([])
    ends[1].send([7] * 64)
    assert [lines[1].receive(5) for _ in range(3)] == [(1, -(2**40)), (), (7,) * 64]
    assert lines[1].receive() is None and lines[2].receive(0.01) is None
    lines[2].send([5])
    assert ends[2].receive(5) == (5,)


def test_an_end_that_is_gone_is_an_error_even_where_a_fork_still_holds_it(accept, reach) -> None:
    wait = accept(2)
    end = reach(1)
    line = wait()[1]
    twin = os.dup(end._connection.fileno())
    end.send([3])
    end.close()
    end.close()
    assert line.receive(5) == (3,)
    with pytest.raises(OSError):
        line.receive(5)
    os.close(twin)


def test_what_is_no_message_ends_the_line() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        theirs.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionError):
            Line(ours).receive(5)


def test_strangers_are_sent_away_and_keep_nobody_waiting_for_long(
    listener: Listener, accept, reach, stack: ExitStack
) -> None:
    wait = accept(2)
    where = ("127.0.0.1", listener.invitation.port)
    silent, talker = (stack.enter_context(socket.create_connection(where)) for _ in range(2))
    talker.send(b"x" * 40)
    reach(1)
    assert sorted(wait()) == [1]
    assert silent.recv(10) == b"" and talker.recv(10) == b""


def test_somebody_else_at_the_port_is_not_taken_for_rank_0(
    listener: Listener, accept, reach
) -> None:
    wait = accept(2, seconds=1.0)
    other = dataclasses.replace(listener.invitation, answer="0" * 32)
    with pytest.raises(ConnectionError, match="somebody else is there"):
        reach(1, elsewhere(other, "127.0.0.1"), "there")
    wait()


def test_an_address_that_leads_nowhere_is_passed_over(listener: Listener, accept, reach) -> None:
    wait = accept(2)
    where = elsewhere(listener.invitation, "no.such.host.invalid", "127.0.0.1")
    reach(1, where, "there")
    assert sorted(wait()) == [1]


def test_ranks_that_do_not_come_are_named(accept, reach) -> None:
    wait = accept(4, seconds=0.5)
    end = reach(2)
    error = wait()
    assert isinstance(error, TimeoutError) and "ranks 1, 3" in str(error)
    with pytest.raises(OSError):
        end.receive(5)
    with pytest.raises(ConnectionError, match="rank 1 cannot reach rank 0"):
        reach(1)


def test_addresses_begin_with_what_the_job_calls_rank_0_and_hold_every_network() -> None:
    found = own_addresses({"MASTER_ADDR": "first.example"})
    assert found[0] == "first.example" and "127.0.0.1" in found and socket.gethostname() in found
