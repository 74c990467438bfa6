"""Where timelines go, and one clock for those of several ranks.

Rank 0 writes the timeline. A path with ``{rank}`` in it asks every rank for one of its own; their
times count from the same moment, so the clocks of the ranks are compared at init.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horovod.common.world import World

DYNAMIC = "DYNAMIC"
"""HOROVOD_TIMELINE=DYNAMIC: record nothing until ``hvd.start_timeline``."""
RANK = "{rank}"


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The moment from which a timeline counts, as this rank's steady clock shows it.

    Attributes:
        origin_ns: ``time.monotonic_ns()`` of this rank at that moment.
        origin_epoch_us: The same moment in microseconds since 1970, on rank 0's clock.
        offset_ns: This rank's steady clock minus rank 0's.
        offset_error_ns: How wrong that can be: half of the shortest round trip.
    """

    origin_ns: int
    origin_epoch_us: int
    offset_ns: int = 0
    offset_error_ns: int = 0

    @property
    def values(self) -> tuple[int, int, int, int]:
        """Return the fields in order, as the engine wants them."""
        return (self.origin_ns, self.origin_epoch_us, self.offset_ns, self.offset_error_ns)


def file_of(path: str | None, rank: int) -> str:
    """**Local.** Return the file that ``rank`` writes, "" for none."""
    if not path or path == DYNAMIC or (rank != 0 and RANK not in path):
        return ""
    return path.replace(RANK, str(rank))


class Files:
    """The timelines that this process writes: each has a file of its own, whoever else writes.

    Two jobs of one script (``hvd.init`` on halves of the ranks), and two ``init`` of one process,
    have the same HOROVOD_TIMELINE: the later one writes beside the earlier one. A lock of the file
    (``flock``) tells other processes that it is being written.
    """

    def __init__(self) -> None:
        self._written: set[str] = set()
        self._open: dict[str, int] = {}

    def claim(self, path: str, *, keep: bool, keep_others: bool = False) -> str:
        """**Local.** Return where to write instead of ``path``: itself, or a file beside it.

        Args:
            path: What was asked for; "" stays "".
            keep: What this process has written there is kept, too.
            keep_others: Any file that is there is kept.
        """
        if not path or path in self._open:
            return path
        for number in itertools.count():
            stem, suffix = os.path.splitext(path)
            beside = f"{stem}.{number}{suffix}" if number else path
            if beside in self._written and keep:
                continue
            if keep_others and beside not in self._open and os.path.exists(beside):
                continue
            if beside in self._open or self._lock(beside):
                self._written.add(beside)
                return beside
        raise AssertionError("itertools.count ends")

    def release(self) -> None:
        """**Local.** The files are complete."""
        for descriptor in self._open.values():
            if descriptor >= 0:
                os.close(descriptor)
        self._open.clear()

    def _lock(self, path: str) -> bool:
        """Lock ``path``; False: another process writes it. What cannot be locked is taken."""
        descriptor = -1
        try:
            descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666
            )
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:  # the engine says what is wrong with the file; some file systems lock none
            if descriptor >= 0:
                os.close(descriptor)
                descriptor = -1
        self._open[path] = descriptor
        return True


files = Files()
"""Those of this process."""


def own_clock(origin_ns: int) -> Clock:
    """**Local.** Return the clock of a rank that nobody is compared with."""
    age_ns = time.monotonic_ns() - origin_ns
    return Clock(origin_ns=origin_ns, origin_epoch_us=(time.time_ns() - age_ns) // 1000)


def common_clock(world: World, origin_ns: int) -> Clock:
    """Return rank 0's origin on this rank's clock. **Collective:** all ranks of ``world``.

    Args:
        world: The job's ranks.
        origin_ns: Of rank 0; elsewhere ignored.
    """
    own = own_clock(origin_ns)
    first_origin_ns, first_epoch_us = world.bcast((own.origin_ns, own.origin_epoch_us))
    offset_ns, error_ns = world.clock()
    return Clock(
        origin_ns=first_origin_ns + offset_ns,
        origin_epoch_us=first_epoch_us,
        offset_ns=offset_ns,
        offset_error_ns=error_ns,
    )
