"""Which plans are being computed, and for whom."""

from __future__ import annotations

from autotune.tuning.events import Plan


class Planning:
    """Plans that the driver computes, from when they are handed out until they come back."""

    def __init__(self) -> None:
        """Nothing is being computed."""
        self._out = self._stale = 0
        self._just_came = False
        self._troubles: set[str] = set()

    def handed_out(self) -> None:
        """Take note that the driver computes a plan from now on."""
        self._out += 1

    def drop(self) -> None:
        """Take note that the run is no more whose plans are out."""
        self._stale = self._out

    def came_back(self, plan: Plan) -> bool:
        """Take note of a plan; return whether the run that asked for it is still there."""
        self._out -= 1
        self._just_came = True
        if self._stale:
            self._stale -= 1
            return False
        return True

    def may_have_disturbed(self) -> bool:
        """Return whether a plan may have been computed during the step that has just ended."""
        result, self._just_came = self._out > 0 or self._just_came, False
        return result

    def is_new(self, trouble: str) -> bool:
        """Return whether this reason why plans are worse than they should be was not heard yet."""
        is_new = trouble not in self._troubles
        self._troubles.add(trouble)
        return is_new
