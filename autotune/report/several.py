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
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.report.evidence import Waiting
from autotune.report.story import Story
from autotune.report.verdict import Kind, share
from autotune.result import setting_text

SHARED_BELOW = -0.5
"""Slope of log work over log ranks below which the ranks share the work: -1 if they do, else 0."""
UNCLEAR = 0.25
"""A slope so far from both is that of neither."""
FEWEST_POINTS = 3
"""Numbers of ranks from which on the model can be told from another one."""
NOTICED = 0.02
"""An efficiency so far above 1, or a C(W) so far below 0, is said."""


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
        efficiency_low, efficiency_high: The same by the middle half of the windows: the slower
            quarter here beside the faster one of the fewest ranks, and the other way round.
        model_us: What the model says the step takes without communication: G / W, or G.
        communication_us: C(W): what is left of the step.
    """

    ranks: int
    step_us: float
    wait_us: float
    default_us: float
    speed_up: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
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
        doubts: Why these numbers may not hold, a sentence each.
    """

    points: tuple[Point, ...]
    is_shared: bool
    work_us: float
    slope: float
    largest_error: float
    doubts: tuple[str, ...] = ()

    @property
    def is_clear(self) -> bool:
        """Whether the ranks' own work goes with their number as in one of the two models."""
        return min(abs(self.slope), abs(self.slope + 1)) <= UNCLEAR


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
    return story.tuned if _is_kept(story) else story.throughout


def default_of(story: Story) -> Waiting | None:
    """Return a step under the default: beside the tuned setting, if that is the answer."""
    return story.default if _is_kept(story) else story.throughout


def _is_kept(story: Story) -> bool:
    return story.verdict.kind in (Kind.FASTER, Kind.BEYOND_DOUBT)


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
        stories = [one for one, _ in mine]
        times = [step.step_us for _, step in mine]
        waits = [step.exposed_us for _, step in mine]
        defaults = [one.step_us for one in map(default_of, stories) if one is not None]
        lows = [step.step_low_us for _, step in mine]
        highs = [step.step_high_us for _, step in mine]
        columns = (times, waits, defaults or times, lows, highs)
        rows.append([float(np.median(column)) for column in columns])
    times, waits, defaults, lows, highs = np.array(rows).T
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
    efficiency = speed_up * sizes[0] / sizes
    points = [
        Point(
            ranks=size,
            step_us=float(times[k]),
            wait_us=float(waits[k]),
            default_us=float(defaults[k]),
            speed_up=float(speed_up[k]),
            efficiency=float(efficiency[k]),
            efficiency_low=float(efficiency[k] * times[k] / highs[k] * lows[0] / times[0]),
            efficiency_high=float(efficiency[k] * times[k] / lows[k] * highs[0] / times[0]),
            model_us=float(model[k]),
            communication_us=float(times[k] - model[k]),
        )
        for k, size in enumerate(ranks)
    ]
    found = Scaling(
        points=tuple(points),
        is_shared=is_shared,
        work_us=total,
        slope=slope,
        largest_error=float(np.abs(model / work - 1).max()),
    )
    hosts = {one.view.run.host for one, _ in usable if one.view.run is not None}
    return replace(found, doubts=tuple(_doubts(found, hosts)))


def _doubts(found: Scaling, hosts: Collection[str]) -> Iterator[str]:
    """Return why the numbers of a fit may not hold; ``hosts``: those that had a rank 0."""
    if len(found.points) < FEWEST_POINTS:
        yield (
            "Two numbers of ranks fit almost any model: this one is not tested by them, and says "
            "nothing about other numbers of ranks."
        )
    if len(hosts) > 1:
        yield f"Rank 0 was on different hosts ({', '.join(sorted(hosts))}): are they equally fast?"
    if not found.is_clear:
        yield (
            f"The part of a step that does not wait goes with the ranks to the power of "
            f"{found.slope:+.2f}. The model knows 0 (a batch for each rank) and -1 (one batch for "
            f"all) only, so G and C(W) describe this job badly{_why_it_grows(found.slope)}."
        )
    for point in found.points[1:]:
        if point.efficiency > 1 + NOTICED:
            noise = ""
            if point.efficiency_low <= 1:
                noise = ", and 100 % is within what its windows differ by"
            yield (
                f"{share(point.efficiency)} on {point.ranks} ranks is more than ranks can give: "
                f"the job on {found.points[0].ranks} ranks was slowed by something else{noise}. "
                "It means that no loss was seen."
            )
    short = [point for point in found.points if point.communication_us < -NOTICED * point.step_us]
    if short:
        ranks = ", ".join(str(point.ranks) for point in short)
        yield (
            f"On {ranks} ranks a step takes less than the model's work alone, so C(W) comes out "
            "negative there: it is no time of communication."
        )


def _why_it_grows(slope: float) -> str:
    return ": it grows, as where ranks share cores" if slope > UNCLEAR else ""


def short_names(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the shortest ends of paths that tell them apart."""
    parts = [os.path.abspath(path).split(os.sep) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = [os.sep.join(one[-count:]) for one in parts]
        if len(set(names)) == len(set(map(tuple, parts))):
            return tuple(names)
    return tuple(paths)


def model_text(scaling: Scaling) -> str:
    """Return how far the job scales, and the model, in two sentences."""
    first, last = scaling.points[0], scaling.points[-1]
    work = f"{scaling.work_us / 1000:.4g} ms"
    text = (
        f"From {first.ranks} to {last.ranks} ranks the job does {last.speed_up:.2f} times the work "
        f"in the same time: an efficiency of {share(last.efficiency)}. "
    )
    text += "" if scaling.is_clear else "By the nearer of two models: "
    if scaling.is_shared:
        return f"{text}The ranks share the work of a step: T = G / W + C(W) with G = {work}."
    return (
        f"{text}Every rank does the same work whatever their number: T = G + C(W) with G = {work} "
        "(a batch for each rank)."
    )
