"""A limit of time for something that several calls wait for."""

from __future__ import annotations

import time


class TimeoutException(Exception):
    """The time is over."""


class Timeout:
    """Time until a deadline.

    Args:
        timeout: Seconds from now.
        message: What to say when they are over; ``{activity}`` and ``{timeout}`` are filled in.
    """

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._until = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        """**Local.** Return the seconds that are left, 0 when there are none."""
        return max(0.0, self._until - time.monotonic())

    def timed_out(self) -> bool:
        """**Local.** Return whether the time is over."""
        return time.monotonic() > self._until

    def check_time_out_for(self, activity: str) -> None:
        """**Local.** Raise TimeoutException when the time is over; ``activity``: waited for."""
        if self.timed_out():
            raise TimeoutException(
                self._message.format(activity=activity, timeout=f"{self._timeout:g} seconds")
            )
