"""Where the ranks of a job without MPI meet: a point that passes on what each says to all.

The launcher runs it, or rank 0. Every rank keeps one connection to it (``tcp_world``) for the small
things that ranks agree on before and between the engine's lives; data never comes here. Handshake
and frames are a ``point``'s; the second number of a handshake is the job's size. Standard library
only: launchers import it.

From a rank: ``{"group": [ranks], "number": n, "value": v}``, its part of the n-th exchange of that
group. To a rank: ``{"missing": [ranks]}`` while ranks have not come yet, then ``{"group", "number",
"values": [...]}`` by position in the group, or ``"error"`` instead of the values where a rank of
the group has left.
"""

from __future__ import annotations

from typing import Any

from horovod.common.point import Guest, Point, frame


class MeetingPoint(Point):
    """Where the ranks of one job meet.

    Args:
        size: Number of ranks.
        key: What ranks prove to know.
        host: Address to listen at; "" for all of this host.
        port: TCP port; 0 for one that the system chooses.

    Raises:
        OSError: It cannot listen there.
    """

    def __init__(self, size: int, key: str, host: str = "", port: int = 0) -> None:
        self.size = size
        self._gone: set[int] = set()
        self._refusal = ""
        self._parts: dict[tuple[tuple[int, ...], int], dict[int, Any]] = {}
        super().__init__(key, host, port, "meeting point")

    def refuse_all(self, why: str) -> None:
        """From now on tell every rank, whenever it comes, that there is no meeting, and why."""

        def refuse() -> None:
            self._refusal = why
            for each in list(self._guests.values()):
                self._send(each, frame({"error": why}))

        self.call(refuse)

    def _refuse(self, number: int, size: int) -> str:
        """As of ``Point``."""
        if self._refusal:
            return self._refusal
        if size != self.size:
            return f"rank {number} says that the job has {size} ranks, expected {self.size}"
        if number >= self.size:
            return f"rank {number}: expected one from 0 to {self.size - 1}"
        if number in self._guests:
            return f"two processes say that they are rank {number} of {self.size}"
        if number in self._gone:
            return f"rank {number} of {self.size} has left this job before, and cannot come back"
        return ""

    def _entered(self, guest: Guest) -> None:
        """As of ``Point``."""
        missing = [each for each in range(self.size) if each not in self._guests]
        for each in list(self._guests.values()):
            self._send(each, frame({"missing": missing}))

    def _take(self, guest: Guest, content: Any) -> None:
        """As of ``Point``."""
        group = tuple(map(int, content["group"]))
        if guest.rank not in group or not set(group) <= set(range(self.size)):
            raise ValueError(f"rank {guest.rank} is none of the group {group}")
        name = (group, int(content["number"]))
        self._parts.setdefault(name, {})[guest.rank] = content["value"]
        self._finish(name)

    def _finish(self, name: tuple[tuple[int, ...], int]) -> None:
        """Answer an exchange that is complete, or that never will be."""
        group, number = name
        parts = self._parts[name]
        answer = {"group": group, "number": number}
        gone = [rank for rank in group if rank in self._gone and rank not in parts]
        if gone:
            text = f"rank {', '.join(map(str, gone))} has left the job"
            content: dict[str, Any] = {**answer, "error": text}
            receivers = list(parts)
            parts.clear()
        elif len(parts) == len(group):
            content = {**answer, "values": [parts[rank] for rank in group]}
            receivers = list(group)
            del self._parts[name]
        else:
            return
        for rank in receivers:
            if rank in self._guests:
                self._send(self._guests[rank], frame(content))

    def _left(self, number: int, why: str) -> None:
        """As of ``Point``."""
        self._gone.add(number)
        for name in list(self._parts):
            self._finish(name)
