"""Hosts that fail again and again are left out, and come back where that is wanted."""

from __future__ import annotations

import random

import pytest

from horovod.runner.elastic.hosts import MOST_FAILURES, HostBook


def book(cooldown_s: tuple[float, float] | None = None) -> HostBook:
    hosts = HostBook(cooldown_s, random.Random(1))
    hosts.update({"a": 2, "b": 1})
    return hosts


def fail(hosts: HostBook, name: str, now: float) -> float | None:
    """Let slot 0 fail as often as it takes."""
    seconds = [hosts.failed(name, 0, got_on=False, now=now) for _ in range(MOST_FAILURES)]
    assert seconds[:-1] == [None] * (MOST_FAILURES - 1)
    return seconds[-1]


def test_hosts_keep_their_order_and_new_ones_come_last() -> None:
    hosts = book()
    hosts.update({"c": 1, "b": 3, "a": 2})
    assert list(hosts.found.items()) == [("a", 2), ("b", 3), ("c", 1)]


def test_a_host_without_slots_is_none() -> None:
    hosts = book()
    hosts.update({"a": 0, "b": 1})
    assert hosts.usable(0.0) == {"b": 1}


def test_one_slot_that_fails_in_a_row_leaves_its_host_out_for_good() -> None:
    hosts = book()
    assert fail(hosts, "a", 0.0) == float("inf")
    assert hosts.usable(1e9) == {"b": 1}


def test_failures_of_several_slots_are_not_in_a_row() -> None:
    hosts = book()
    for slot in range(2 * MOST_FAILURES):
        assert hosts.failed("a", slot, got_on=False, now=0.0) is None
    assert "a" in hosts.usable(0.0)


def test_a_job_that_gets_on_ends_the_row() -> None:
    hosts = book()
    for _ in range(10 * MOST_FAILURES):
        assert hosts.failed("a", 0, got_on=True, now=0.0) is None
    assert "a" in hosts.usable(0.0)


def test_a_host_comes_back_after_a_time_that_doubles_up_to_the_longest() -> None:
    hosts = book((10.0, 35.0))
    now = 0.0
    for shortest, longest in ((10.0, 20.0), (20.0, 30.0), (35.0, 35.0), (35.0, 35.0)):
        seconds = fail(hosts, "a", now)
        assert seconds is not None and shortest <= seconds <= longest
        assert "a" not in hosts.usable(now + seconds - 0.01)
        now += seconds
        assert hosts.usable(now) == {"a": 2, "b": 1}


def test_a_host_that_is_out_is_not_put_out_again() -> None:
    hosts = book((10.0, 100.0))
    seconds = fail(hosts, "a", 0.0)
    assert seconds is not None
    assert hosts.failed("a", 1, got_on=False, now=1.0) is None
    assert "a" in hosts.usable(seconds)


@pytest.mark.parametrize("gone_for", [1.0, 1e6])
def test_a_host_that_vanishes_meanwhile_is_still_out(gone_for: float) -> None:
    hosts = book()
    fail(hosts, "a", 0.0)
    hosts.update({"b": 1})
    hosts.update({"a": 2, "b": 1})
    assert hosts.usable(gone_for) == {"b": 1}
