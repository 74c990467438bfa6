"""The surfaces of the bench: what a step really takes under a setting, and the oracle's grid."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cost_model"))

import grids
from judge import Cluster, Step, step_times
from models import MODELS

from autotune.trial import CommParams

KIB = 1024
SIMULATED, MEASURED = "simulated", "measured"
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A step under one setting, in microseconds, free of noise.

    Attributes:
        step_us: Its time.
        exposed_us: What the training thread waits for communication in it.
        trace: Measured step times, of all settings, scaled to this one's; None: simulated.
    """

    step_us: float
    exposed_us: float
    trace: FloatArray | None = None


@dataclass(kw_only=True)
class Surface:
    """One job: its steps' truth under every setting.

    Attributes:
        name: For reports.
        source: ``SIMULATED`` or ``MEASURED``; never mixed in a report.
        operations: (operation, bytes) of a step's collectives.
        size, hosts: Ranks, and hosts.
        gpu: Whether GPUs communicate.
        block: Consecutive steps of a trace that are resampled together.
        truth_of: The truth under a setting; slow, so ``truth`` remembers.
        grid: Makes the settings of the oracle's grid, thousands; ``cells`` remembers them.
    """

    name: str
    source: str
    operations: tuple[tuple[str, int], ...]
    size: int
    hosts: int
    truth_of: Callable[[CommParams], Truth]
    grid: Callable[[], Sequence[CommParams]]
    gpu: bool = False
    block: int = 1
    _known: dict[CommParams, Truth] = field(default_factory=dict)
    _oracle: Truth | None = None
    _cells: Sequence[CommParams] | None = None

    def truth(self, params: CommParams) -> Truth:
        if params not in self._known:
            self._known[params] = self.truth_of(params)
        return self._known[params]

    @property
    def cells(self) -> Sequence[CommParams]:
        if self._cells is None:
            self._cells = self.grid()
        return self._cells

    @property
    def oracle(self) -> Truth:
        """The fastest of the grid."""
        if self._oracle is None:
            cells = (self.truth(params) for params in self.cells)
            self._oracle = min(cells, key=lambda truth: truth.step_us)
        return self._oracle

    def has_oracle(self, params: CommParams) -> None:
        """Take note of the fastest setting of the grid."""
        self._oracle = self.truth(params)

    @property
    def default_us(self) -> float:
        return self.truth(CommParams()).step_us

    @property
    def inert(self) -> dict[str, str]:
        """What the runtime tells the tuner about such a job."""
        if self.hosts > 1:
            return {}
        return dict.fromkeys(("hierarchical_allreduce", "hierarchical_allgather"), "one host")


def oracle_grid(tensors: int, payload: int, *, hosts: int, gathers: bool) -> list[CommParams]:
    """Return every setting worth looking at: half octaves x tenths of decades x the rest."""
    high = min(512 * 2**20, 2 ** math.ceil(math.log2(max(payload, 2**17))))
    thresholds = [0] + [
        round(64 * 2 ** (k / 2)) * KIB for k in range(2 * round(math.log2(high / 65536)) + 1)
    ]
    cycles = [float(f"{0.1 * 10 ** (k / 10):.2g}") for k in range(31)]
    caches = [0, max(1024, 1 << (tensors - 1).bit_length())]
    reduces = (False, True) if hosts > 1 else (False,)
    gatherings = (False, True) if hosts > 1 and gathers else (False,)
    return [CommParams()] + [
        CommParams(
            fusion_threshold_bytes=threshold,
            cycle_time_ms=cycle,
            cache_capacity=cache,
            hierarchical_allreduce=reduce,
            hierarchical_allgather=gather,
        )
        for threshold, cycle, cache, reduce, gather in itertools.product(
            thresholds, cycles, caches, reduces, gatherings
        )
    ]


# ---- simulated ----------------------------------------------------------------------------------

ON_GPU = {"ring": True, "local_alpha": 6.0, "copy": 4e-6, "cache_bytes": 32 * 2**20}
NVLINK = {**ON_GPU, "alpha": 10.0, "beta": 1e-5, "local_beta": 1.2e-5}
GPU = {**ON_GPU, "alpha": 25.0, "local_beta": 2e-5}
CPU = {"alpha": 40.0, "local_beta": 1.5e-4}
GBIT = {1: 8e-3, 10: 8e-4, 25: 3.2e-4}
"""Nominal microseconds per byte of a cable."""

JOBS: tuple[tuple[str, str, int, int, int, float], ...] = (
    # (model, link, hosts, ranks on each, tensors that are gathered, computation in ms)
    ("resnet50", "1", 2, 1, 0, 450.0),
    ("resnet50", "10", 4, 2, 0, 180.0),
    ("resnet50", "25", 8, 8, 0, 110.0),
    ("resnet50", "nvlink", 1, 8, 0, 60.0),
    ("vgg16", "1", 2, 4, 0, 900.0),
    ("vgg16", "10", 2, 2, 0, 300.0),
    ("vgg16", "25", 4, 8, 0, 200.0),
    ("vgg16", "nvlink", 1, 2, 0, 90.0),
    ("bert-base", "1", 4, 1, 0, 2500.0),
    ("bert-base", "10", 8, 4, 4, 350.0),
    ("bert-base", "25", 16, 4, 0, 250.0),
    ("bert-base", "nvlink", 1, 4, 0, 120.0),
    ("gpt2", "1", 2, 2, 0, 3000.0),
    ("gpt2", "10", 4, 4, 2, 500.0),
    ("gpt2", "25", 8, 8, 0, 300.0),
    ("gpt2", "nvlink", 1, 8, 0, 150.0),
    ("narrow-resnet50", "1", 2, 2, 0, 25.0),
    ("narrow-resnet50", "10", 2, 4, 6, 25.0),
)
ON_CPU = frozenset({"narrow-resnet50"})


def simulated() -> list[Surface]:
    """Return the simulated surfaces; the same ones in every process."""
    return [_simulated(number, *job) for number, job in enumerate(JOBS)]


def _simulated(
    number: int,
    model: str,
    link: str,
    hosts: int,
    lanes: int,
    gathers: int,
    compute_ms: float,
    *,
    bandwidth: float = 1.0,
) -> Surface:
    elements = MODELS[model]()
    gathered = [len(elements) // 2 + 7 * k for k in range(gathers)]
    step = Step.of(elements, compute_ms=compute_ms, gathered=gathered)
    if link == "nvlink":
        cluster = Cluster(hosts=hosts, lanes=lanes, **NVLINK)
        speed = link
    else:
        base = CPU if model in ON_CPU or link == "1" else GPU
        beta = GBIT[int(link)] / bandwidth
        cluster = Cluster(hosts=hosts, lanes=lanes, beta=beta, **base)
        speed = f"{bandwidth * int(link):g}G"
    cluster = cluster.drawn(np.random.default_rng([20261128, number]))
    names = ["allgather" if flag else "allreduce" for flag in step.gathered]

    def truth_of(params: CommParams) -> Truth:
        step_us, exposed_us = step_times(step, cluster, params)
        return Truth(step_us=step_us, exposed_us=exposed_us)

    return Surface(
        name=f"{model} {speed} {hosts}x{lanes}",
        source=SIMULATED,
        operations=tuple(zip(names, step.sizes, strict=True)),
        size=hosts * lanes,
        hosts=hosts,
        truth_of=truth_of,
        gpu=cluster.ring,
        grid=partial(oracle_grid, len(elements), sum(step.sizes), hosts=hosts, gathers=gathers > 0),
    )


def relative(name: str, *, hosts: int | None = None, bandwidth: float = 1.0) -> Surface:
    """Return a simulated surface with other hosts, or cables so many times as fast."""
    number = next(k for k, surface in enumerate(simulated()) if surface.name == name)
    model, link, usual, lanes, gathers, compute_ms = JOBS[number]
    return _simulated(
        number, model, link, hosts or usual, lanes, gathers, compute_ms, bandwidth=bandwidth
    )


# ---- measured -----------------------------------------------------------------------------------

CLIP = 3.0
"""Measured steps beyond this multiple of their setting's median are cut to it: other jobs ran on
the machine, and the noise to be withstood has steps three times slower."""


def measured() -> list[Surface]:
    """Return the measured surfaces; a setting that was not measured is its nearest neighbour."""
    if not (grids.FOLDER / grids.INDEX).exists():
        return []
    return [_measured(grid) for grid in grids.read()]


def _measured(grid: grids.Grid) -> Surface:
    settings = list(grid.cells)
    traces = [_clipped(np.array(samples) * 1000) for samples in grid.cells.values()]
    levels = shrunk(settings, traces)
    noise = np.concatenate([trace / midmean(trace) for trace in traces])
    truths = {
        params: _truth(noise * level, level, grid.workload.compute_us)
        for params, level in zip(settings, levels, strict=True)
    }
    places = np.array([_place(params) for params in settings])
    kinds = np.array([_kind(params) for params in settings])

    def truth_of(params: CommParams) -> Truth:
        distance = np.square(places - _place(params)).sum(axis=1)
        distance += 100.0 * np.square(kinds - _kind(params)) @ np.array([1.0, 10.0])
        return truths[settings[int(np.argmin(distance))]]

    return Surface(
        name=grid.name,
        source=MEASURED,
        operations=tuple(("allreduce", size) for size in grid.workload.sizes),
        size=grid.about["hosts"] * grid.about["local_size"],
        hosts=grid.about["hosts"],
        truth_of=truth_of,
        grid=lambda: settings,
        block=grid.about["block"],
    )


def _clipped(samples: FloatArray) -> FloatArray:
    return np.minimum(samples, CLIP * float(np.median(samples)))


def _truth(trace: FloatArray, level: float, compute_us: float) -> Truth:
    return Truth(step_us=level, exposed_us=max(0.0, level - compute_us), trace=trace)


def midmean(trace: FloatArray) -> float:
    """Return the mean of the middle half: it ignores what other jobs on the machine did."""
    low, high = len(trace) // 4, len(trace) - len(trace) // 4
    return float(np.mean(np.sort(trace)[low:high]))


def shrunk(settings: Sequence[CommParams], traces: Sequence[FloatArray]) -> FloatArray:
    """Return the level ``(n,)`` of each setting in microseconds: its trace's, without its luck.

    A minimum over many noisy cells is mostly luck. So log midmeans are shrunk towards a sum of
    effects (threshold, cycle time, booleans; thresholds apart for each level of the hierarchy),
    the more the less the scatter of all cells lets be believed of their distance to it.

    Source: James and Stein (1961), Estimation with quadratic loss, in its usual empirical form.
    """
    values = np.log([midmean(trace) for trace in traces])
    scatter = _scatter(traces)  # of all cells: a few samples say little of their own scatter
    errors = np.array([1.2 * scatter / math.sqrt(len(trace)) for trace in traces])
    design = _effects(settings)
    fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
    left = values - fitted
    spare = max(1, len(values) - int(np.linalg.matrix_rank(design)))
    between = max(0.0, float(left @ left) / spare - float(np.mean(errors**2)))
    weights = between / (between + errors**2)
    result: FloatArray = np.exp(fitted + weights * left)
    return result


def _scatter(traces: Sequence[FloatArray]) -> float:
    """Return the robust standard deviation of log times around their cells' midmeans."""
    left = [
        np.log(trace / midmean(trace)) * math.sqrt(len(trace) / max(1, len(trace) - 1))
        for trace in traces
    ]
    pooled = np.concatenate(left)
    return 1.4826 * float(np.median(np.abs(pooled - np.median(pooled)))) + 1e-4


def _effects(settings: Sequence[CommParams]) -> FloatArray:
    """Return one column per effect, 0 or 1."""
    keys = [
        [
            ("size", p.fusion_threshold_bytes, p.hierarchical_allreduce),
            ("cycle", p.cycle_time_ms),
            ("cache", p.cache_capacity == 0),
        ]
        for p in settings
    ]
    every = sorted({key for row in keys for key in row}, key=str)
    return np.array([[float(key in row) for key in every] for row in keys])


def _place(params: CommParams) -> FloatArray:
    octaves = math.log2(max(params.fusion_threshold_bytes, 2**13))
    decades = math.log10(max(params.cycle_time_ms, 0.01))
    return np.array([octaves, 3.3 * decades])


def _kind(params: CommParams) -> FloatArray:
    return np.array([float(params.cache_capacity == 0), float(params.hierarchical_allreduce)])


def all_surfaces() -> Mapping[str, Surface]:
    """Return every surface by name."""
    return {surface.name: surface for surface in [*simulated(), *measured()]}
