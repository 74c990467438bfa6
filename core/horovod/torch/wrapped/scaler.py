"""torch's GradScaler beside wrapped optimizers.

``scaler.unscale_(optimizer)`` looks at gradients, which must be reduced then; torch offers no place
to say so. So from the first wrapped optimizer on ``unscale_`` waits for the gradients of wrapped
ones before it does what it did. (``scaler.step`` asks: see ``DistributedGradients``.)
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch


def teach_scalers() -> None:
    """**Local.** Let every GradScaler wait for reduced gradients before it unscales them."""
    scalers: Any = torch.amp.GradScaler
    own = scalers.unscale_
    if hasattr(own, "__wrapped__"):
        return

    @wraps(own)
    def unscale_(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        wait = getattr(optimizer, "_wait_for_scaler", None)
        if wait is not None:
            wait()
        own(scaler, optimizer)

    scalers.unscale_ = unscale_
