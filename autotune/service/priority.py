"""How little of the processors the service takes, and how many of them the job may use.

Ranks often fill all cores, and a training step is as slow as the slowest of them. The service lives
in rank 0's session, hence in its scheduling group: there a nice value counts directly against the
ranks' threads, whatever the number of cores. (In a session of its own it would be a group of its
own, with a fair share of a core; ``sched_autogroup_enabled``, on in Debian and Ubuntu.)
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

NICE = 16
"""Lets a thread have 2.8 % of a core beside one busy thread of a rank (weights 29 and 1,024).

A plan takes 20 to 30 ms of CPU time, about half a second where the ranks leave no core idle. While
it is under way, steps take a tenth to a fifth longer on 2 cores, in all less than the plan's own
CPU time; at 19 no less, at 10 more (experiments/planning_cost). An idle priority (weight 3) would
leave a plan five seconds.
"""

ROOT = Path("/")
"""Where ``proc`` and ``sys`` are."""


def become_ordinary(cores: Collection[int] = ()) -> None:
    """Run on the ranks' cores, without real-time priority, whatever was inherited from the rank.

    For this thread and those that it starts. mpirun binds a rank to its core; on a core that it may
    not leave the service could only disturb that rank. Cores that no rank may use are others'.

    Args:
        cores: Those that the ranks of this host may use together; none: the inherited ones.
    """
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):  # the inherited cores have to do
        os.sched_setaffinity(0, os.sched_getaffinity(0).union(cores))


def give_way(besides: Collection[threading.Thread] = ()) -> None:
    """Lower the priority of all threads of this process, and of those that they start.

    Args:
        besides: Threads that keep theirs. None of the others can have its priority back: that is a
            privilege.
    """
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
    for thread in threading.enumerate():
        if thread not in besides and thread.native_id is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.setpriority(os.PRIO_PROCESS, thread.native_id, nice)


def available_cores(root: Path | None = None) -> float:
    """Return how many cores this process and the ranks of its host can keep busy at most.

    Args:
        root: Where ``proc`` and ``sys`` are; None: ``ROOT``.
    """
    return min(len(os.sched_getaffinity(0)), quota(root))


def quota(root: Path | None = None) -> float:
    """Return how many cores' worth of time this process's control groups allow; inf: no limit.

    Args:
        root: As of ``available_cores``.
    """
    return min(_quotas(root or ROOT), default=math.inf)


def _quotas(root: Path) -> Iterator[float]:
    """Return the cores' worth of time that each control group around this process allows.

    A container may see the host's paths in ``/proc/self/cgroup`` and only its own folder below
    ``/sys/fs/cgroup``: folders that are not there are passed over on the way up.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        folder = mount / path.lstrip("/")
        for group in (folder, *folder.parents):
            quota = _quota(group)
            if quota is not None:
                yield quota
            if group == mount:
                break


def _quota(group: Path) -> float | None:
    """Return the cores' worth of a control group; None: no limit, or no such group."""
    try:
        if (file := group / "cpu.max").exists():
            quota, period = file.read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None  # "max" is no number
