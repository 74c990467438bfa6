"""What a moment of a timeline is spent on: the vocabulary of the analysis.

Every moment belongs to exactly one phase, so the phases of a job sum to its time. Where several
operations are under way, the one that is furthest counts: while bytes move, it does not matter that
another tensor still waits.
"""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """In order of precedence: the smallest number among all tensors is what a moment counts as."""

    TRANSFER = 0
    COPIES = 1
    QUEUE = 2
    DATA = 3
    PROTOCOL = 4
    NEGOTIATION = 5
    LAST_RANK = 6
    IDLE = 7

    @property
    def label(self) -> str:
        """Return how people call it."""
        return _LABELS[self]

    @property
    def key(self) -> str:
        """Return its name in JSON."""
        return _KEYS[self]


_LABELS = (
    "transfer",
    "copies and buffers",
    "queue",
    "waiting for data",
    "protocol",
    "negotiation (file does not say which part)",
    "waiting for the last rank",
    "no communication (idle gaps)",
)
_KEYS = (
    "transfer",
    "copies",
    "queue",
    "waiting_for_data",
    "protocol",
    "negotiation_undivided",
    "waiting_for_last_rank",
    "idle",
)

COMMUNICATION = tuple(phase for phase in Phase if phase is not Phase.IDLE)
NEGOTIATE = "NEGOTIATE_"
NO_OPERATION_FOLLOWS = frozenset({"NEGOTIATE_BARRIER", "NEGOTIATE_JOIN"})

_COPIES = ("MEMCPY_", "ALLOCATE_", "INIT_", "COPY_")
_EXACT = {
    "QUEUE": Phase.QUEUE,
    "WAIT_FOR_DATA": Phase.DATA,
    "WAIT_FOR_OTHER_TENSOR_DATA": Phase.DATA,
}
_OPERATIONS = frozenset(
    ("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER", "ADASUM", "ERROR")
)
_BACKENDS = frozenset(("MPI", "NCCL", "GLOO", "CCL", "DDL", "SHM", "TCP", "SELF"))


def activity_phase(name: str) -> Phase:
    """Return what an activity inside an operation is."""
    if name in _EXACT:
        return _EXACT[name]
    if name.startswith(_COPIES):
        return Phase.COPIES
    return Phase.TRANSFER if backend_of(name) else Phase.QUEUE


def backend_of(name: str) -> str:
    """Return the backend that an activity such as NCCL_ALLREDUCE names, "" for none."""
    prefix, _, rest = name.partition("_")
    return prefix if rest and prefix in _BACKENDS else ""


def is_operation(name: str) -> bool:
    """Return whether ``name`` is a whole operation on a tensor, e.g. ALLREDUCE."""
    return name in _OPERATIONS
