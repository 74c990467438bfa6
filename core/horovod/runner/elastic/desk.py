"""Where the driver of an elastic job talks to its workers: one proven line for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from horovod.common.point import SHORT, Guest, Point, frame


class Desk(Point):
    """Listens for the lines of workers; the protocol is that of ``horovod.common.rounds``.

    Args:
        key: Of the job.
        host: Address to listen at; "" for all of this host.
        heard: Gets (worker, what it says), in a thread of the desk's.
        ended: Gets (worker, why) when its line has ended; "" where the worker has closed it.

    Raises:
        OSError: It cannot listen there.
    """

    patience = SHORT

    def __init__(
        self,
        key: str,
        host: str,
        heard: Callable[[int, Mapping[str, Any]], object],
        ended: Callable[[int, str], object],
    ) -> None:
        self._heard, self._ended = heard, ended
        self._came: set[int] = set()
        super().__init__(key, host, 0, "desk")

    def say(self, worker: int, content: Mapping[str, Any]) -> None:
        """Send ``content`` to a worker, if it has a line; never waits."""

        def send() -> None:
            if worker in self._guests:
                self._send(self._guests[worker], frame(dict(content)))

        self.call(send)

    def _refuse(self, number: int, size: int) -> str:
        """As of ``Point``."""
        if size != 0:
            return "this is no meeting point of ranks"
        if number in self._came:
            return (
                f"worker {number} of the elastic job has its line to the launcher already: only "
                "the process that horovodrun has started calls hvd.init()"
            )
        return ""

    def _entered(self, guest: Guest) -> None:
        """As of ``Point``."""
        self._came.add(guest.rank)

    def _take(self, guest: Guest, content: Any) -> None:
        """As of ``Point``."""
        if not isinstance(content, dict):
            raise ValueError("expected a dict")
        self._heard(guest.rank, content)

    def _left(self, number: int, why: str) -> None:
        """As of ``Point``."""
        self._ended(number, why)
