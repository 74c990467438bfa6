"""The hosts of an elastic job: what was found, and what is left out because it fails. No clock."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_FAILURES = 3
"""That many failures of one slot in a row leave its host out."""


@dataclass
class _Host:
    """What is remembered of a host, also while it is not there.

    Attributes:
        failures: Of each slot, in a row.
        out_until: Left out until then (the caller's clock); None: it is not left out.
        times_out: How often it was.
    """

    failures: dict[int, int] = field(default_factory=dict)
    out_until: float | None = None
    times_out: int = 0


class HostBook:
    """Hosts and their slots.

    Args:
        cooldown_s: The shortest and the longest time for which a host is left out, in seconds; it
            doubles each time, and a random part of the shortest is added. None: for good.
        chance: Makes that part.
    """

    def __init__(self, cooldown_s: tuple[float, float] | None, chance: random.Random) -> None:
        self._cooldown_s, self._chance = cooldown_s, chance
        self._found: dict[str, int] = {}
        self._known: dict[str, _Host] = {}

    @property
    def found(self) -> Mapping[str, int]:
        """{host: slots} as found last; those that were there before come first."""
        return self._found

    def update(self, found: Mapping[str, int]) -> None:
        """Take note of what was found now."""
        there = {name: slots for name, slots in found.items() if slots > 0}
        kept = {name: there[name] for name in self._found if name in there}
        self._found = {**kept, **there}
        for name in there:
            self._known.setdefault(name, _Host())

    def usable(self, now: float) -> dict[str, int]:
        """Return {host: slots} without those that are left out."""
        return {name: slots for name, slots in self._found.items() if not self.is_out(name, now)}

    def is_out(self, name: str, now: float) -> bool:
        """Return whether the host is left out; one that comes back begins with a clean sheet."""
        host = self._known.get(name)
        if host is None or host.out_until is None:
            return False
        if now < host.out_until:
            return True
        host.out_until = None
        host.failures.clear()
        return False

    def failed(self, name: str, slot: int, *, got_on: bool, now: float) -> float | None:
        """Take note that the worker in a slot has failed.

        Args:
            name: The host.
            slot: Number of the slot.
            got_on: The job had got on with that worker: the failure is the first one in a row.
            now: The time, in seconds.

        Returns:
            For how many seconds the host is left out because of that (infinity: for good), or None.
        """
        host = self._known.setdefault(name, _Host())
        host.failures[slot] = 1 if got_on else host.failures.get(slot, 0) + 1
        if host.failures[slot] < MOST_FAILURES or self.is_out(name, now):
            return None
        seconds = self._time_out(host.times_out)
        host.times_out += 1
        host.out_until = now + seconds
        return seconds

    def _time_out(self, times_before: int) -> float:
        if self._cooldown_s is None:
            return float("inf")
        shortest, longest = self._cooldown_s
        seconds = shortest * 2.0 ** min(times_before, 60) + self._chance.random() * shortest
        return min(longest, seconds)
