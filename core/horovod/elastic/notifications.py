"""Changes of the hosts, as the launcher tells them to this process."""

from __future__ import annotations

import threading
from enum import IntFlag
from typing import Protocol

from horovod.common import rounds


class HostUpdateResult(IntFlag):
    """What has happened to the hosts of a job."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Listener(Protocol):
    """Who wants to hear of changes."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Take note of a change; called from another thread."""


class NotificationManager:
    """Passes the launcher's word on to all states that are in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listens = False
        self._listeners: set[Listener] = set()
        self._news: list[tuple[int, float, int]] = []
        """(number of the round in which it came, timestamp, kind), of the newest round"""

    def init(self) -> None:
        """**Local.** Begin to listen, once; nothing happens in a job without a driver."""
        with self._lock:
            begins = not self._listens and rounds.is_elastic()
            self._listens = self._listens or begins
        if begins:
            rounds.listen(self.handle_hosts_updated)

    def register_listener(self, listener: Listener) -> None:
        """**Local.** Tell ``listener`` from now on, and what has come since the ranks have met."""
        with self._lock:
            self._listeners.add(listener)
        self.repeat(listener)

    def remove_listener(self, listener: Listener) -> None:
        """**Local.** Tell ``listener`` no longer."""
        with self._lock:
            self._listeners.discard(listener)

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """**Local.** Tell all listeners of a change.

        Args:
            timestamp: When it was seen, in seconds; later changes have later ones.
            update_res: A ``HostUpdateResult``.
        """
        number = _round_number()
        with self._lock:
            known = [each for each in self._news if each[0] == number]
            self._news = [*known, (number, timestamp, update_res)]
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)

    def repeat(self, listener: Listener) -> None:
        """**Local.** Tell ``listener`` again what has come since the ranks have met.

        Changes before that are part of the new round, and are not worth another one.
        """
        number = _round_number()
        with self._lock:
            known = [each for each in self._news if each[0] == number]
        for _, timestamp, update_res in known:
            listener.on_hosts_updated(timestamp, update_res)


def _round_number() -> int:
    current = rounds.rounds.current
    return current.number if current else 0


notification_manager = NotificationManager()
"""That of this process."""
