"""Changes of the communication settings inside a running job, for the ranks of experiments."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict, dataclass
from typing import Any

from horovod import _engine
from horovod.common import basics

_epochs = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting; the values are those of the package's defaults."""

    fusion_threshold_bytes: int = 64 * 2**20
    cycle_time_ms: float = 1.0
    cache_capacity: int = 1024
    hierarchical_allreduce: bool = False
    hierarchical_allgather: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def propose(setting: Setting) -> None:
    """Rank 0: have ``setting`` in force from the first operation of the next step on."""
    if basics.rank() == 0:
        basics.engine().propose(next(_epochs), _engine.Params(**setting.as_dict()))


def in_force(setting: Setting) -> bool:
    """Return whether this rank communicates under ``setting``. **Local.**"""
    current = basics.engine().params()
    return all(getattr(current, name) == value for name, value in setting.as_dict().items())


def sleep_until(moment: float) -> None:
    """Sleep until ``time.perf_counter()`` reads ``moment``; short waits are left out."""
    left = moment - time.perf_counter()
    if left > 0.0002:
        time.sleep(left)
