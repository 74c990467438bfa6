"""Several logs beside each other; with different numbers of ranks also how the job scales.

Notation of the model:
    W  ranks;  T(W)  time of a step;  C(W)  the part of it that waits for communication
    G  work of a step that the ranks share:  T = G / W + C(W)

A log says what a step takes and what of it waits. Where every rank does the same work whatever
their number (a batch per rank, the usual way), the work does not shrink and T = G + C(W); which of
the two it is follows from how the part that does not wait changes with W.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.report.evidence import Waiting
from autotune.report.story import Story
from autotune.report.verdict import Kind
from autotune.result import setting_text

SHARED_BELOW = -0.5
"""Slope of log work over log ranks below which the ranks share the work: -1 if they do, else 0."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """The job on one number of ranks, under what its log answers with.

    Attributes:
        ranks: W.
        step_us: T(W).
        wait_us: The part of it that was seen to wait.
        default_us: T(W) under the default.
        speed_up: Over the fewest ranks: work done in a given time.
        efficiency: ``speed_up`` over the ratio of the ranks.
        model_us: What the model says the step takes without communication: G / W, or G.
        communication_us: C(W): what is left of the step.
    """

    ranks: int
    step_us: float
    wait_us: float
    default_us: float
    speed_up: float
    efficiency: float
    model_us: float
    communication_us: float


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How a job scales.

    Attributes:
        points: By ranks, ascending.
        is_shared: The ranks share the work (one batch for all); else each has a batch of its own.
        work_us: G.
        slope: Of log work over log ranks.
        largest_error: Largest relative distance of a log's own work from the model's.
    """

    points: tuple[Point, ...]
    is_shared: bool
    work_us: float
    slope: float
    largest_error: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Some logs.

    Attributes:
        stories: In the order in which they were named.
        names: The shortest ends of their paths that tell them apart.
        scaling: How the job scales; None: that does not follow from these logs.
        why_not: Why it does not.
    """

    stories: tuple[Story, ...]
    names: tuple[str, ...]
    scaling: Scaling | None
    why_not: str


def compare(stories: Sequence[Story]) -> Comparison:
    """Return some logs beside each other."""
    scaling, why_not = scale(stories)
    return Comparison(
        stories=tuple(stories),
        names=short_names([story.path for story in stories]),
        scaling=scaling,
        why_not=why_not,
    )


def in_force(story: Story) -> Waiting | None:
    """Return a step under what the log answers with: the tuned setting, or the default."""
    is_kept = story.verdict.kind in (Kind.FASTER, Kind.BEYOND_DOUBT)
    return story.tuned if is_kept else story.default


def answer_text(story: Story) -> str:
    """Return the setting that a log answers with, beside the default."""
    if story.replay is None:
        return "none yet"
    default = type(story.replay.params)()
    return setting_text(story.replay.params, beside=default) or "the default"


def scale(stories: Sequence[Story]) -> tuple[Scaling | None, str]:
    """Return how the job of these logs scales; or None, and why that does not follow from them."""
    known = [(one, in_force(one)) for one in stories if one.view.run is not None]
    usable = [(one, step) for one, step in known if step is not None and step.step_us > 0]
    ranks = sorted({one.view.run.size for one, _ in usable if one.view.run is not None})
    if len(ranks) < 2:
        return None, "it takes logs of jobs with different numbers of ranks"
    steps = {(one.tensors, one.payload_bytes) for one, _ in usable}
    if len(steps) > 1:
        return None, "the jobs exchange different tensors in a step, so they are not the same job"
    return _scaling(ranks, usable), ""


def _scaling(ranks: Sequence[int], usable: Sequence[tuple[Story, Waiting]]) -> Scaling:
    rows = []
    for size in ranks:
        mine = [(one, step) for one, step in usable if one.view.run and one.view.run.size == size]
        times = [step.step_us for _, step in mine]
        waits = [step.exposed_us for _, step in mine]
        defaults = [one.default.step_us for one, _ in mine if one.default is not None]
        rows.append([float(np.median(column)) for column in (times, waits, defaults or times)])
    times, waits, defaults = np.array(rows).T
    sizes = np.array(ranks, dtype=float)
    work = np.maximum(times - waits, 1e-3 * times)
    slope = float(np.polyfit(np.log(sizes), np.log(work), 1)[0])
    is_shared = slope < SHARED_BELOW
    shape = 1 / sizes if is_shared else np.ones_like(sizes)
    # Least squares of relative errors: work = G * shape.
    ratio = shape / work
    total = float(ratio.sum() / (ratio @ ratio))
    model = total * shape
    done = sizes / sizes[0] if not is_shared else np.ones_like(sizes)
    speed_up = done * times[0] / times
    points = [
        Point(
            ranks=size,
            step_us=float(times[k]),
            wait_us=float(waits[k]),
            default_us=float(defaults[k]),
            speed_up=float(speed_up[k]),
            efficiency=float(speed_up[k] * sizes[0] / sizes[k]),
            model_us=float(model[k]),
            communication_us=float(times[k] - model[k]),
        )
        for k, size in enumerate(ranks)
    ]
    return Scaling(
        points=tuple(points),
        is_shared=is_shared,
        work_us=total,
        slope=slope,
        largest_error=float(np.abs(model / work - 1).max()),
    )


def short_names(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the shortest ends of paths that tell them apart."""
    parts = [os.path.abspath(path).split(os.sep) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = [os.sep.join(one[-count:]) for one in parts]
        if len(set(names)) == len(set(map(tuple, parts))):
            return tuple(names)
    return tuple(paths)


def model_text(scaling: Scaling) -> str:
    """Return the model in a sentence."""
    work = f"{scaling.work_us / 1000:.4g} ms"
    if scaling.is_shared:
        return f"The ranks share the work of a step: T = G / W + C(W) with G = {work}."
    return (
        f"Every rank does the same work whatever their number: T = G + C(W) with G = {work} "
        "(a batch for each rank)."
    )
