"""Fit the cost model's constants to each measured grid and check it on settings not used for that.

    python experiments/cost_model/fit.py        # prints the tables of the README; writes fit.json

Half of the settings of a grid, every other one, decide the constants (links, and how long the
training thread really takes to hand over its tensors); the other half is predicted.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import grids
import numpy as np
from scipy.optimize import least_squares

from autotune.costmodel import EngineCosts, Link, Machine, Workload, predict
from autotune.trial import CommParams

HERE = Path(__file__).resolve().parent
WITHIN = 0.15
NAMES = ("alpha_us", "us_per_byte", "announce_us", "operation_us", "miss_us", "compute_us")
"""What is fitted; alpha and beta are those of the cable, or of shared memory on one host."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The constants of one grid, and how well they predict.

    Attributes:
        grid: What was measured.
        constants: {name: value}
        errors: {setting: predicted / measured - 1} of the settings that were held out.
    """

    grid: grids.Grid
    constants: dict[str, float]
    errors: dict[CommParams, float]


def typical_us(samples: Sequence[float]) -> float:
    """Return the midmean, in microseconds: other jobs shared the machine."""
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    return 1000 * statistics.mean(ordered[quarter : len(ordered) - quarter])


def machine_of(about: Any, theta: np.ndarray) -> Machine:
    """Return the machine with the constants ``exp(theta)`` in the order of ``NAMES``."""
    alpha, beta, announce, operation, miss, _ = np.exp(theta)
    engine = EngineCosts(announce_us=announce, operation_us=operation, miss_us=miss)
    link = Link(alpha_us=alpha, us_per_byte=beta)
    hosts, local_size = about["hosts"], about["local_size"]
    if hosts == 1:
        return Machine(hosts=hosts, local_size=local_size, local=link, engine=engine)
    return Machine(hosts=hosts, local_size=local_size, cross=link, engine=engine)


def workload_of(workload: Workload, compute_us: float) -> Workload:
    """Return ``workload`` as stretched by a training thread that needs ``compute_us``."""
    factor = compute_us / workload.compute_us
    ready = tuple(factor * time for time in workload.ready_us)
    return replace(workload, ready_us=ready, compute_us=max(compute_us, ready[-1]))


def predicted_us(grid: grids.Grid, params: CommParams, theta: np.ndarray) -> float:
    workload = workload_of(grid.workload, float(np.exp(theta[-1])))
    return predict(workload, machine_of(grid.about, theta), params).step_us


def start_of(grid: grids.Grid) -> np.ndarray:
    rate = grid.about["rate_mbit"]
    beta = 8 / rate if rate else 2e-4
    alpha = 200.0 if rate else 20.0
    return np.log([alpha, beta, 300.0, 50.0, 20.0, 1.1 * grid.workload.compute_us])


def fit(grid: grids.Grid) -> Fit:
    """Fit on every other setting, predict the others."""
    measured = {params: typical_us(samples) for params, samples in grid.cells.items()}
    settings = list(measured)
    used, held_out = settings[::2], settings[1::2]
    start = start_of(grid)

    def residuals(theta: np.ndarray) -> np.ndarray:
        ratios = [predicted_us(grid, params, theta) / measured[params] for params in used]
        return np.concatenate([np.log(ratios), 0.02 * (theta - start)])

    found = least_squares(
        residuals, start, loss="soft_l1", f_scale=0.1, diff_step=0.02, max_nfev=25
    )
    errors = {p: predicted_us(grid, p, found.x) / measured[p] - 1 for p in held_out}
    values = (float(f"{value:.3g}") for value in np.exp(found.x))
    return Fit(grid=grid, constants=dict(zip(NAMES, values, strict=True)), errors=errors)


def table(fits: Sequence[Fit]) -> str:
    """Return one line per grid."""
    head = ["grid", "settings held out", "median error", "within 15 %", *NAMES]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for one in fits:
        errors = np.abs(list(one.errors.values()))
        cells = [one.grid.name, str(len(errors)), f"{np.median(errors):.1%}"]
        cells += [f"{int((errors <= WITHIN).sum())}"]
        cells += [f"{one.constants[name]:.3g}" for name in NAMES]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    fits = [fit(grid) for grid in grids.read()]
    content = {one.grid.name: one.constants for one in fits}
    (HERE / "fit.json").write_text(json.dumps(content, indent=1) + "\n")
    errors = np.abs([error for one in fits for error in one.errors.values()])
    print(table(fits))
    inside = int((errors <= WITHIN).sum())
    print(f"\nAll: {inside} of {len(errors)} held-out settings within 15 %, median error ", end="")
    print(f"{np.median(errors):.1%}, 90 % below {np.quantile(errors, 0.9):.1%}")


if __name__ == "__main__":
    main()
