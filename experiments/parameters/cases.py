"""One job for each parameter, in which its value should matter. Imports neither torch nor MPI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

KIB, MIB = 1024, 2**20


@dataclass(frozen=True, kw_only=True)
class Case:
    """One parameter, its values, and the job in which it is varied.

    Attributes:
        parameter: Varied; all others have their defaults.
        values: Of the parameter, over its search domain.
        step: For people: what a step is.
        rate_mbit: Cable between two hosts of 2 ranks; None: 2 ranks of one host.
    """

    parameter: str
    values: tuple[Any, ...]
    step: str
    rate_mbit: int | None = None


CYCLES_MS = (0.1, 1.0, 10.0, 100.0)
THRESHOLDS = (0, 64 * KIB, MIB, 16 * MIB, 512 * MIB)
CAPACITIES = (0, 256, 1024)
SMALL = "161 small gradients (0.9 MB)"
CASES = {
    "fusion": Case(
        parameter="fusion_threshold_bytes",
        values=THRESHOLDS,
        step=f"{SMALL}, 20 ms backward",
        rate_mbit=200,
    ),
    "fusion-one-host": Case(
        parameter="fusion_threshold_bytes", values=THRESHOLDS, step=f"{SMALL}, no computation"
    ),
    "cycle": Case(
        parameter="cycle_time_ms",
        values=CYCLES_MS,
        step=f"{SMALL}, 40 ms backward",
        rate_mbit=200,
    ),
    "cycle-one-host": Case(
        parameter="cycle_time_ms",
        values=CYCLES_MS,
        step="ResNet-50's gradients by eight (12.8 MB), 8 ms backward",
    ),
    "cache": Case(
        parameter="cache_capacity", values=CAPACITIES, step="a group of 1,000 gradients (64 kB)"
    ),
    "cache-161": Case(
        parameter="cache_capacity", values=CAPACITIES, step=f"{SMALL}, no computation"
    ),
    "cache-two-hosts": Case(
        parameter="cache_capacity",
        values=CAPACITIES,
        step="500 gradients of 64 elements (0.13 MB), no computation",
        rate_mbit=50,
    ),
    "allreduce": Case(
        parameter="hierarchical_allreduce",
        values=(False, True),
        step=f"{SMALL}, 20 ms backward",
        rate_mbit=200,
    ),
    "allreduce-float16": Case(
        parameter="hierarchical_allreduce",
        values=(False, True),
        step="a group of 60 gradients in float16 (2 MB)",
        rate_mbit=200,
    ),
    "allgather": Case(
        parameter="hierarchical_allgather",
        values=(False, True),
        step="8 gathers of 64 KiB a rank",
        rate_mbit=200,
    ),
}
