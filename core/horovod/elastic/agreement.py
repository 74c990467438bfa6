"""What the ranks tell each other at a commit, and before a function begins or goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from horovod.common import arrays, basics
from horovod.common.objects import allgather_object
from horovod.common.reduce_ops import Max
from horovod.elastic.notifications import HostUpdateResult


@dataclass(frozen=True, kw_only=True)
class News:
    """What a rank has heard since it last asked.

    Attributes:
        timestamp: Of the newest change of the hosts that it knows, in seconds.
        kinds: Of the changes that are new, a ``HostUpdateResult``.
        is_new: Whether there are such.
        terminates: It was told to end (SIGTERM).
    """

    timestamp: float
    kinds: int
    is_new: bool
    terminates: bool

    def agree(self) -> News:
        """**Collective.** Return what some rank has heard; the same on all ranks.

        Raises:
            HorovodInternalError: A rank has died.
        """
        if not _has_others():
            return self
        removed, added = (bool(self.kinds & kind) for kind in _KINDS)
        own = [self.timestamp, removed, added, self.is_new, self.terminates]
        found = arrays.allreduce(np.array(own, np.float64), Max, "elastic.news")
        return News(
            timestamp=float(found[0]),
            kinds=int(sum(kind for kind, there in zip(_KINDS, found[1:3], strict=True) if there)),
            is_new=bool(found[3]),
            terminates=bool(found[4]),
        )


_KINDS = (HostUpdateResult.removed, HostUpdateResult.added)


def tell_all(own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """**Collective.** Return what every rank says, by rank.

    Raises:
        HorovodInternalError: A rank has died.
    """
    if not _has_others():
        return [dict(own)]
    return allgather_object(dict(own), "elastic.round")


def _has_others() -> bool:
    return basics.is_initialized() and basics.size() > 1
