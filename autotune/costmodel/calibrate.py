"""Links from measured times."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.costmodel.engine import predict
from autotune.costmodel.machine import Link, Machine
from autotune.costmodel.workload import Workload
from autotune.errors import InvalidSettingError
from autotune.trial import CommParams

SMALLEST_US_PER_BYTE = 1e-7


def fit_link(times: Sequence[tuple[float, float]]) -> Link:
    """Return the link that explains measured transfers best, by relative error.

    Args:
        times: (bytes, microseconds) of at least two transfers of different sizes.

    Raises:
        InvalidSettingError: Fewer than two sizes, or a time that is not positive.

    Source: weighted least squares with weights ``1 / time**2``, so that small messages decide alpha
    and large ones beta.
    """
    if len({size for size, _ in times}) < 2 or any(time <= 0 for _, time in times):
        raise InvalidSettingError(
            f"expected transfers of two sizes and positive times, got {list(times)[:4]}"
        )
    weights = [1 / time**2 for _, time in times]
    total = sum(weights)
    x = sum(w * size for w, (size, _) in zip(weights, times, strict=True)) / total
    y = sum(w * time for w, (_, time) in zip(weights, times, strict=True)) / total
    xx = sum(w * (size - x) ** 2 for w, (size, _) in zip(weights, times, strict=True))
    xy = sum(w * (size - x) * (time - y) for w, (size, time) in zip(weights, times, strict=True))
    beta = max(xy / xx, SMALLEST_US_PER_BYTE)
    return Link(alpha_us=max(0.0, y - beta * x), us_per_byte=beta)


def matched(workload: Workload, machine: Machine, params: CommParams, exposed_us: float) -> Machine:
    """Return ``machine`` with links as slow as the exposed time measured under ``params`` says.

    The exposed time grows with the links' times, so a bisection over three decades either way finds
    the factor; outside of them the end is returned.
    """
    low, high = -3.0, 3.0
    for _ in range(30):
        middle = (low + high) / 2
        predicted = predict(workload, machine.slowed(10**middle), params).exposed_us
        low, high = (middle, high) if predicted < exposed_us else (low, middle)
    return machine.slowed(10 ** ((low + high) / 2))
