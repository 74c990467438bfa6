"""What the ranks tell each other once, when the first module is wrapped: whether the job is tuned.

They meet at the key-value store of the default group, without a collective: a rank on which the
adapter is missing or fails keeps the others waiting for ``PATIENCE_S`` at most, and then all of
them train untouched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from autotune.ddp.lines import Invitation
from autotune.tables.ddp import DDP

PATIENCE_S = 20.0
_PREFIX = "autotune_ddp"


class Store(Protocol):
    """The key-value store of a job."""

    def set(self, key: str, value: str) -> None:
        """Keep a value."""

    def get(self, key: str) -> bytes:
        """Return a value that is there."""

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Return when all of these are there; raises after ``timeout``."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Keep a value where ``expected`` is, '': none; return the one that is there then."""
        ...


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """What one rank says.

    Attributes:
        host: The machine: its name and the id of its boot.
        cores: Those that the rank may use.
        baseline: {parameter: value} that the script has set.
        fixed: {parameter: value} that the user has set by variables.
        trouble: Why this rank cannot be tuned; empty: it can.
        nccl: Over what its GPUs talk, where NCCL has loaded our tuner; empty: it has not.
        refused: {word of ``tables.further``: why this rank cannot have its parameter in force}.
    """

    host: str
    cores: Sequence[int]
    baseline: Mapping[str, Any]
    fixed: Mapping[str, Any]
    trouble: str = ""
    nccl: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What rank 0 says to all.

    Attributes:
        invitation: Where rank 0 waits for the others, if the job is tuned; else None.
        start: {parameter: value} that all ranks put in force now; None: what the script has set.
        reason: Why nothing is done, where nothing is.
        table: Name of the table of parameters of the settings.
    """

    invitation: Invitation | None = None
    start: Mapping[str, Any] | None = None
    reason: str = ""
    table: str = DDP.name


def arrive(store: Store, rank: int, arrival: Arrival) -> None:
    """Tell rank 0 that this rank is there."""
    store.set(f"{_PREFIX}/rank/{rank}", json.dumps(asdict(arrival)))


def arrivals(store: Store, size: int) -> list[Arrival]:
    """**Rank 0 only.** Return what the ranks say, by rank.

    Raises:
        Exception: A rank has not come in time.
    """
    keys = [f"{_PREFIX}/rank/{rank}" for rank in range(size)]
    store.wait(keys, timedelta(seconds=PATIENCE_S))
    return [Arrival(**json.loads(store.get(key))) for key in keys]


def announce(store: Store, verdict: Verdict) -> None:
    """**Rank 0 only.** Tell all ranks what to do."""
    store.set(f"{_PREFIX}/verdict", json.dumps(asdict(verdict)))


def verdict(store: Store) -> Verdict:
    """Return what rank 0 has told; it may be starting the tuner's service.

    Raises:
        Exception: It has told nothing in time.
    """
    key = f"{_PREFIX}/verdict"
    store.wait([key], timedelta(seconds=2 * PATIENCE_S))
    found = json.loads(store.get(key))
    invitation = found.pop("invitation")
    return Verdict(invitation=Invitation(**invitation) if invitation else None, **found)


def disagreement(found: Sequence[Arrival]) -> str:
    """Return why ranks that said this cannot be tuned together, '' if nothing is in the way."""
    for rank, one in enumerate(found):
        if one.trouble:
            return f"{one.trouble} (rank {rank})"
    for what, name in (("fixed", "variables AUTOTUNE_*"), ("baseline", "module")):
        if any(getattr(one, what) != getattr(found[0], what) for one in found):
            return f"the {name} must be the same on all ranks"
    return ""


def refusals(found: Sequence[Arrival]) -> dict[str, str]:
    """Return {word: why} of what one rank at least cannot have in force."""
    reasons: dict[str, str] = {}
    for rank, one in enumerate(found):
        for word, why in one.refused.items():
            reasons.setdefault(word, f"{why} (rank {rank})" if rank else why)
    return reasons


class Decisions:
    """The register of ``agreement``: the store keeps the first answer to each question.

    Args:
        store: The job's.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def settle(self, number: int, is_made: bool) -> bool:
        """See ``agreement.Register``."""
        key = f"{_PREFIX}/decision/{number}"
        try:
            return self._store.compare_set(key, "", str(int(is_made))) == b"1"
        except Exception as error:
            raise ConnectionError(f"the job's store cannot be reached ({error})") from None
