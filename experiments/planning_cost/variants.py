"""How the tuner's process shares the cores with the ranks: as shipped, and other ways."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autotune.service import priority


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to run the process beside the ranks.

    Attributes:
        nice: What is added to its nice value when it plans.
        own_session: It is a scheduling group of its own (setsid), as it was before.
        holds: No step that is made during its imports is read.
    """

    nice: int
    own_session: bool = False
    holds: bool = True


VARIANTS = {
    "setsid": Variant(nice=19, own_session=True, holds=False),
    "nice 19": Variant(nice=19),
    "nice 16": Variant(nice=16),
    "nice 10": Variant(nice=10),
}


@contextlib.contextmanager
def started_as(variant: Variant) -> Iterator[None]:
    """Have the tuner's process started as ``variant`` wants, meanwhile."""
    spawn = os.posix_spawn

    def posix_spawn(*args: Any, setpgroup: int, **rest: Any) -> int:
        return spawn(*args, setsid=True, **rest)

    if variant.own_session:
        os.posix_spawn = posix_spawn
    try:
        yield
    finally:
        os.posix_spawn = spawn


def plan_as(variant: Variant) -> None:
    """Have this process, the tuner's, give way as ``variant`` wants."""
    priority.NICE = variant.nice
