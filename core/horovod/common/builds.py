"""What is installed on each rank: two builds that cannot talk to each other say so at init.

A rank's build is a tuple of plain values: it is the first thing that ranks exchange, and has to be
readable for every other version. What ranks exchange after it may change from version to version.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence

import horovod
from horovod import _engine
from horovod.common.settings import ranks_text

Build = tuple[str, int, str]
"""Version of the package, version of the engine's messages, byte order."""

_KINDS = ("hvd-autotune {}", "message format {}", "byte order {}")


def own_build() -> Build:
    """**Local.** Return what this rank runs."""
    return horovod.__version__, _engine.MESSAGE_FORMAT, sys.byteorder


def find_difference(builds: Sequence[Hashable]) -> str | None:
    """**Local.** Return the one message that all ranks raise, or None; equal on every rank.

    Args:
        builds: By rank, of length size. One that is no ``Build`` is from a version before there
            were any.
    """
    ranks_of: dict[Hashable, list[int]] = {}
    for rank, build in enumerate(builds):
        ranks_of.setdefault(build if _is_build(build) else None, []).append(rank)
    if len(ranks_of) == 1:
        return None
    known = [build for build in ranks_of if isinstance(build, tuple)]
    places = [i for i in range(len(_KINDS)) if len({build[i] for build in known}) > 1] or [0]
    found = "; ".join(
        f"{_name(build, places)} on {ranks_text(ranks)}" for build, ranks in ranks_of.items()
    )
    return f"ranks cannot talk to each other: {found}; install the same build on all hosts"


def _is_build(build: Hashable) -> bool:
    kinds = (str, int, str)
    return isinstance(build, tuple) and tuple(type(part) for part in build) == kinds


def _name(build: Hashable, places: Sequence[int]) -> str:
    if not isinstance(build, tuple):
        return "an older hvd-autotune"
    return ", ".join(_KINDS[i].format(build[i]) for i in places)
