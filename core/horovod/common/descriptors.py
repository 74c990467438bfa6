"""Room for the connections of a job: each takes a file descriptor of its process.

Systems allow 1,024 as a rule, and more to who asks (the *hard* limit). Rank 0 has a connection with
every rank that reports to it, and without MPI each rank has some with every rank of other hosts.
"""

from __future__ import annotations

import os
import resource
from typing import Literal

from horovod import _engine
from horovod.common.world import Topology

OWN = 16
"""What a rank opens besides: listeners, what wakes it, shared memory."""
SPARE = 256
"""Asked for on top, for what the script opens later; nothing fails for want of these."""
MOST_STREAMS, MOST_CONNECTIONS = 4, 512
"""As of ``comm/tcp``: of two ranks on different hosts, and of one rank where that is enough."""


def needed(topology: Topology, kind: Literal["mpi", "tcp"], fan_out: int = 0) -> int:
    """**Local.** Return how many descriptors this rank's connections take.

    Args:
        topology: Place of this rank.
        kind: What moves the data of several hosts; MPI opens its connections as it needs them, one
            with each of the others at most.
        fan_out: As of ``_engine.control_parents``.
    """
    peers = topology.size - 1
    others = sum(host != topology.hosts[topology.rank] for host in topology.hosts)
    parents = _engine.control_parents(topology.hosts, fan_out)
    control = parents.count(topology.rank) + (topology.rank != 0)
    data = others
    if kind == "tcp" and peers:
        data = peers - others + others * min(max(MOST_CONNECTIONS // peers, 1), MOST_STREAMS)
    return OWN + control + data


def make_room(count: int) -> str | None:
    """**Local.** Raise this process's limit where ``count`` more descriptors want that.

    Returns:
        What is wrong where they will not suffice, else None.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        least = len(os.listdir("/proc/self/fd")) + count
    except OSError:  # not a single one is left
        least = soft + count
    if soft == resource.RLIM_INFINITY or soft >= least + SPARE:
        return None
    limit = least + SPARE if hard == resource.RLIM_INFINITY else min(least + SPARE, hard)
    if limit > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):  # above the system's own bound
            limit = soft
    if limit >= least:
        return None
    return (
        f"expected room for {least} open file descriptors, of which {count} are for the "
        f"connections with other ranks, got a limit of {limit}; raise it, e.g. ulimit -n "
        f"{least + SPARE}, LimitNOFILE= of a service, --ulimit nofile= of a container"
    )
