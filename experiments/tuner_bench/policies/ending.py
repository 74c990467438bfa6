"""What a policy says at its end."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.trial import CommParams


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How tuning ended.

    Attributes:
        params: The setting that stays.
        trials: Settings that were read in the search, the default included where it was.
        windows: Windows of the certificate.
        best_score: The score (bytes/us) on which the choice rests; None: ``gain`` says it.
        gain: Gain over the default that the policy claims; None: the best score is its claim.
        certified: Whether a certificate proves that gain.
        finished: Whether it ended by itself.
    """

    params: CommParams
    trials: int
    windows: int = 0
    best_score: float | None = None
    gain: float | None = None
    certified: bool = False
    finished: bool = True
