"""What the launcher says of hosts reaches the states, once for each round of ranks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

pytest.importorskip("horovod._engine")

from horovod.common import rounds
from horovod.elastic.notifications import HostUpdateResult, NotificationManager

ADDED = HostUpdateResult.added


class Listener:
    def __init__(self) -> None:
        self.heard: list[float] = []

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        self.heard.append(timestamp)


def be_in_round(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds.rounds, "current", SimpleNamespace(number=number))


def test_what_came_before_the_ranks_met_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    manager, listener = NotificationManager(), Listener()
    manager.register_listener(listener)
    be_in_round(1, monkeypatch)
    manager.handle_hosts_updated(1.0, ADDED)
    be_in_round(2, monkeypatch)
    manager.handle_hosts_updated(2.0, ADDED)
    assert listener.heard == [1.0, 2.0]
    late = Listener()
    manager.repeat(late)
    assert late.heard == [2.0]


def test_who_comes_late_hears_what_has_come_since_the_ranks_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def listen(callback: Callable[[float, int], None]) -> None:
        callback(2.0, ADDED)  # it came between hvd.init() and the function

    monkeypatch.setattr(rounds, "listen", listen)
    monkeypatch.setattr(rounds, "is_elastic", lambda: True)
    manager, listener = NotificationManager(), Listener()
    be_in_round(1, monkeypatch)
    manager.handle_hosts_updated(1.0, ADDED)
    be_in_round(2, monkeypatch)
    manager.init()
    manager.register_listener(listener)
    assert listener.heard == [2.0]


def test_who_has_left_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    manager, listener = NotificationManager(), Listener()
    manager.register_listener(listener)
    manager.remove_listener(listener)
    manager.remove_listener(listener)  # twice is fine
    manager.handle_hosts_updated(1.0, ADDED)
    assert listener.heard == []


def test_only_a_worker_of_an_elastic_job_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks: list[object] = []
    monkeypatch.setattr(rounds, "listen", callbacks.append)
    manager = NotificationManager()
    for is_elastic, listens in ((False, 0), (True, 1), (True, 1)):  # and only once
        monkeypatch.setattr(rounds, "is_elastic", lambda answer=is_elastic: answer)
        manager.init()
        assert len(callbacks) == listens
