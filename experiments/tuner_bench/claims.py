"""What is said about gains while tuning goes on, against the truth.

A gain is over the default at the same time, so the machine's speed cancels in its truth.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from autotune.trial import Gain

TRIAL, STANDING = "trial", "standing"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One line for people.

    Attributes:
        line: ``TRIAL``: about a trial that has ended; ``STANDING``: about the best one so far.
        trial: Trials that have ended so far, the default's included.
        state: Of the trial that is spoken of.
        claimed: The gain that is said; NaN: none is.
        low, high: Of its interval; NaN: none is said.
        true: The true gain.
    """

    line: str
    trial: int
    state: str
    claimed: float
    low: float
    high: float
    true: float

    @classmethod
    def of(
        cls,
        gain: Gain | None,
        *,
        line: str,
        trial: int,
        state: str,
        true: float,
        otherwise: float = math.nan,
    ) -> Claim:
        """Return the claim that ``gain`` is; ``otherwise``: what is claimed without one."""
        return cls(
            line=line,
            trial=trial,
            state=state,
            claimed=otherwise if gain is None else gain.estimate,
            low=math.nan if gain is None else gain.low,
            high=math.nan if gain is None else gain.high,
            true=true,
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            name: float(f"{value:.5g}") if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
