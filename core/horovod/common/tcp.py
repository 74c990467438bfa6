"""Ranks that meet over TCP, in a job without MPI: nothing here imports mpi4py or needs a libmpi."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from horovod import _engine
from horovod.common.tcp_world import TcpWorld
from horovod.common.world import CONNECT_SECONDS, chosen_ranks, is_list_of_ranks, number_hosts

ROUND_TRIPS = 12
"""Of ``clock``."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class WithoutMpi:
    """All ranks of a job that does without MPI, or some of them. Implements ``World``.

    Args:
        joined: As they have met; None: this one is alone.
        connect_seconds: How long its ranks look for each other when an engine is made.
    """

    kind: Literal["mpi", "tcp"] = "tcp"
    name = "TCP"
    version = "none (TCP)"
    has_threads = False

    def __init__(self, joined: TcpWorld | None, connect_seconds: float = CONNECT_SECONDS) -> None:
        self._joined = joined
        self.connect_seconds = connect_seconds
        self.rank = joined.rank if joined else 0
        self.size = joined.size if joined else 1

    def allgather(self, value: Any) -> list[Any]:
        """As of ``World``."""
        return self._joined.allgather(value) if self._joined else [value]

    def wait(self) -> None:
        """As of ``World``; ``allgather`` sleeps, too."""

    def bcast(self, value: Any) -> Any:
        """As of ``World``."""
        return self.allgather(value if self.rank == 0 else None)[0]

    def find_hosts(self) -> tuple[int, ...]:
        """As of ``World``."""
        return number_hosts(self.allgather(host_identity()))

    def host_name(self) -> str:
        """As of ``World``."""
        return socket.gethostname()

    def clock(self) -> tuple[int, int]:
        """As of ``World``.

        Cristian's algorithm, each rank alone with rank 0: its time is taken after the other has
        begun to wait; the shortest of some round trips bounds the error.
        """
        own = (0, 0)
        for rank in range(1, self.size):
            if self._joined is None or self.rank not in (0, rank):
                continue
            pair = self._joined.subset([0, rank])
            readings = [_compare_clocks(pair) for _ in range(ROUND_TRIPS)]
            own = min(readings, key=lambda reading: reading[1]) if self.rank else own
        return own

    def subset(self, comm: object) -> WithoutMpi:
        """As of ``World``."""
        if comm is None or (isinstance(comm, Sequence) and not comm):
            return self
        if not is_list_of_ranks(comm):
            hint = "; this job runs without MPI" if hasattr(comm, "Get_group") else ""
            raise ValueError(
                f"hvd.init(comm=...): expected None or a list of ranks, got {comm!r}{hint}"
            )
        ranks = chosen_ranks(comm, self.rank, self.size)  # type: ignore[arg-type]
        joined = self._joined.subset(ranks) if self._joined else None
        return WithoutMpi(joined, self.connect_seconds)

    def ranks_of(self, comm: Any) -> tuple[int, ...]:
        """As of ``World``."""
        raise ValueError(
            f"a process set of {comm!r}: this job runs without MPI; make process sets of ranks"
        )

    def error(self) -> str | None:
        """As of ``World``."""
        return None

    def transport(
        self, key: bytes, hosts: Sequence[int], interfaces: str
    ) -> _engine.Transport | None:
        """As of ``World``."""
        if self.size == 1:
            return None
        listener, error = None, ""
        try:
            listener = _engine.TcpListener(self.rank, key, interfaces)
        except _engine.EngineError as wrong:
            error = str(wrong)
        reports = self.allgather((listener.address if listener else "", error))
        wrong_ranks = [f"{said} (rank {rank})" for rank, (_, said) in enumerate(reports) if said]
        if listener is None or wrong_ranks:
            raise RuntimeError(f"hvd.init(): {wrong_ranks[0]}")
        addresses = [address for address, _ in reports]
        return listener.connect(addresses, list(hosts), self.connect_seconds)

    def free(self) -> None:
        """As of ``World``; all worlds of a meeting use its connection."""

    def leave(self) -> None:
        """As of ``World``."""

    def end(self, *, failed: bool, raised: bool, leave: Callable[[int], None]) -> None:
        """As of ``World``: nobody waits for anybody, and the exit code is the script's."""
        del failed, raised, leave
        self.forget()

    def forget(self) -> None:
        """**Local.** Let go of what joins the ranks; also in a forked child."""
        if self._joined is not None:
            self._joined.close()


def _compare_clocks(pair: TcpWorld) -> tuple[int, int]:
    """Return (this rank's steady clock minus that of ``pair``'s first, largest error), ns."""
    sent = time.monotonic_ns()
    pair.allgather(None)
    theirs = pair.allgather(time.monotonic_ns())[0]
    received = time.monotonic_ns()
    return (sent + received) // 2 - theirs, (received - sent + 1) // 2


def host_identity() -> tuple[str, ...]:
    """**Local.** Return what is equal for processes that can share memory.

    They are of one kernel since its boot, of one host name, and see each other's processes and
    abstract sockets; pods of one node may share the kernel alone.
    """
    return (
        socket.gethostname(),
        _text_of(_BOOT_ID),
        *(_link_of(f"/proc/self/ns/{kind}") for kind in ("pid", "net")),
    )


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link_of(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
